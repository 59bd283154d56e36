#include "compile/genie_run.h"

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "bundle/genie_config.h"
#include "compile/worker.h"
#include "text/chat_template.h"

namespace hexport::compile {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Bytes at the end of `text` that begin a UTF-8 character and do not complete it.
size_t IncompleteTail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

// A file that lives as long as this object.
class TemporaryFile {
 public:
  static Result<std::unique_ptr<TemporaryFile>> Create(const std::string& contents) {
    std::string folder = (fs::temp_directory_path() / "hexport-genie-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, folder);
    auto file = std::make_unique<TemporaryFile>();
    file->folder_ = folder;
    HEXPORT_RETURN_IF_ERROR(WriteFileAtomically(file->path(), contents));
    return file;
  }
  ~TemporaryFile() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  fs::path path() const { return folder_ / "htp_backend_ext_config.json"; }

 private:
  fs::path folder_;
};

}  // namespace

Result<std::string> RenderPrompt(const fs::path& bundle, const bundle::Manifest& manifest,
                                 const std::string& prompt, const std::string& system, bool raw) {
  if (raw) return prompt;
  if (manifest.chat_template.empty()) {
    return FailedPrecondition(bundle.string() +
                              ": has no chat template; pass --raw to send the text as it stands");
  }
  HEXPORT_ASSIGN_OR_RETURN(std::string source, ReadTextFile(bundle / manifest.chat_template));
  HEXPORT_ASSIGN_OR_RETURN(
      std::unique_ptr<ChatTemplate> chat_template,
      ChatTemplate::Create(source, manifest.model.bos_token, manifest.model.eos_token,
                           (bundle / manifest.chat_template).string()));
  json messages = json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", prompt}});
  const std::string text = messages.dump(-1, ' ', false, json::error_handler_t::replace);
  return chat_template->Render(text, /*add_generation_prompt=*/true, "");
}

Result<std::string> AskGenie(const fs::path& bundle, const bundle::Manifest& manifest,
                             const GenieRequest& request,
                             const std::function<void(std::string_view)>& on_text) {
  HEXPORT_RETURN_IF_ERROR(bundle::CheckGenie(manifest));
  HEXPORT_ASSIGN_OR_RETURN(std::string text, RenderPrompt(bundle, manifest, request.prompt,
                                                          request.system, request.raw));
  HEXPORT_ASSIGN_OR_RETURN(std::unique_ptr<TemporaryFile> extensions,
                           TemporaryFile::Create(bundle::BackendConfigJson(
                               manifest.soc_model, manifest.htp_arch, /*emulator=*/true)));
  const fs::path root = fs::absolute(bundle);
  bundle::GenieOptions options;
  for (const bundle::GraphEntry& entry : manifest.graphs) {
    if (entry.emulator_binary.empty()) {
      return FailedPrecondition(bundle.string() + ": has no plain binaries for the emulator");
    }
    options.binaries.push_back((root / entry.emulator_binary).string());
  }
  options.tokenizer_path = (root / manifest.tokenizer).string();
  options.extensions_path = extensions->path().string();
  options.max_tokens = request.max_tokens;
  options.temperature = request.temperature;
  options.top_k = request.top_k;
  options.top_p = request.top_p;
  options.seed = static_cast<int64_t>(request.seed);
  options.emulator = true;
  HEXPORT_ASSIGN_OR_RETURN(std::string config, bundle::GenieConfigJson(manifest, options));
  std::string answer, pending;
  Result<json> result = CallWorker(
      "genie", {{"config", config}, {"prompt", text}}, "Genie",
      [&](const json& event) {
        for (const json& byte : event.value("bytes", json::array())) {
          pending += static_cast<char>(byte.get<unsigned>());
        }
        const size_t whole = pending.size() - IncompleteTail(pending);
        if (whole == 0) return;
        answer += pending.substr(0, whole);
        if (on_text) on_text(std::string_view(pending).substr(0, whole));
        pending.erase(0, whole);
      },
      nullptr);
  if (!result.ok()) return result.status();
  return answer + pending;
}

}  // namespace hexport::compile
