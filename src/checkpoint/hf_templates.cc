// Where transformers looks for chat templates, in its order.
#include <algorithm>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/hf_text.h"
#include "checkpoint/json_fields.h"

namespace hexport::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFile = "chat_template.jinja";
constexpr const char* kFolder = "additional_chat_templates";

void Add(TextAssets& assets, const std::string& name, std::string source, std::string where) {
  assets.template_places[name] = std::move(where);
  assets.chat_templates[name] = std::move(source);
}

// chat_template.jinja, then the .jinja files of the folder by name. With any of these the config's
// templates do not count, as in transformers.
Status AddFiles(const fs::path& folder, TextAssets& assets) {
  HEXPORT_ASSIGN_OR_RETURN(std::optional<std::string> text, ReadIfPresent(folder / kFile));
  if (text.has_value()) {
    Add(assets, "default", *std::move(text), (folder / kFile).string());
  }
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator entry(folder / kFolder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".jinja") paths.push_back(entry->path());
  }
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    HEXPORT_ASSIGN_OR_RETURN(std::string source, ReadTextFile(path));
    Add(assets, path.stem().string(), std::move(source), path.string());
  }
  return OkStatus();
}

// A string, or a list of {"name", "template"}.
Status AddConfig(const JsonFields& fields, TextAssets& assets) {
  const json* value = fields.Find("chat_template");
  if (value == nullptr) return OkStatus();
  const std::string where = fields.where() + ": chat_template";
  if (value->is_string()) {
    Add(assets, "default", value->get<std::string>(), where);
    return OkStatus();
  }
  if (!value->is_array()) return fields.Mismatch("chat_template", "a string or a list");
  for (const json& entry : *value) {
    if (!entry.is_object()) return fields.Mismatch("chat_template", "a list of objects");
    const JsonFields named(entry, where);
    HEXPORT_ASSIGN_OR_RETURN(const std::string name, named.String("name", ""));
    HEXPORT_ASSIGN_OR_RETURN(std::string source, named.String("template", ""));
    if (name.empty()) return fields.Mismatch("chat_template", "a name for each template");
    Add(assets, name, std::move(source), where + "[" + name + "]");
  }
  return OkStatus();
}

}  // namespace

Status HfTemplates(const fs::path& folder, const JsonFields& config, TextAssets& assets) {
  HEXPORT_RETURN_IF_ERROR(AddFiles(folder, assets));
  if (assets.chat_templates.empty()) HEXPORT_RETURN_IF_ERROR(AddConfig(config, assets));
  const auto found = assets.chat_templates.find("default");
  if (found != assets.chat_templates.end()) assets.chat_template = found->second;
  return OkStatus();
}

}  // namespace hexport::checkpoint
