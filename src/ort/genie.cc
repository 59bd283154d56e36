#include "ort/genie.h"

#include <dlfcn.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

namespace hexport::ort {
namespace {

// Opaque handles are pointers; every function returns 0 on success.
using Handle = const void*;
using TextCallback = void (*)(const char* text, int sentence_code, const void* user);

struct GenieFunctions {
  int32_t (*config_create)(const char* json, Handle* config) = nullptr;
  int32_t (*config_free)(Handle config) = nullptr;
  int32_t (*dialog_create)(Handle config, Handle* dialog) = nullptr;
  int32_t (*dialog_query)(Handle dialog, const char* text, int sentence_code, TextCallback callback,
                          const void* user) = nullptr;
  int32_t (*dialog_free)(Handle dialog) = nullptr;
};

template <typename Function>
bool Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

// The library stays open: it starts threads that may still run when the dialog is freed.
Result<GenieFunctions> LoadGenie() {
  HEXPORT_ASSIGN_OR_RETURN(const std::filesystem::path folder, FindQnnFolder());
  const std::string path = (folder / "libGenie.so").string();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Unavailable("Genie: expected a library that loads, got \"" +
                       std::string(why == nullptr ? path : why) +
                       "\"; start the child with LD_LIBRARY_PATH=" + VendorLibraryPath());
  }
  GenieFunctions genie;
  if (!Load(library, "GenieDialogConfig_createFromJson", &genie.config_create) ||
      !Load(library, "GenieDialogConfig_free", &genie.config_free) ||
      !Load(library, "GenieDialog_create", &genie.dialog_create) ||
      !Load(library, "GenieDialog_query", &genie.dialog_query) ||
      !Load(library, "GenieDialog_free", &genie.dialog_free)) {
    return Unavailable(
        path +
        ": expected Genie's dialog functions, got a library without them; set HEXPORT_QNN_ROOT");
  }
  return genie;
}

struct Answer {
  const std::function<void(std::string_view, int)>* on_text = nullptr;
  bool threw = false;
};

void OnText(const char* text, int sentence_code, const void* user) {
  auto* answer = static_cast<Answer*>(const_cast<void*>(user));
  if (answer->threw || !*answer->on_text) return;
  try {
    (*answer->on_text)(text == nullptr ? std::string_view() : std::string_view(text),
                       sentence_code);
  } catch (...) {
    answer->threw = true;  // no exception may cross the vendor's frames
  }
}

// Genie corrupts its heap when the tokenizer's file is missing, so that files are looked at first.
// A config of another form is left to Genie, which refuses it by itself.
Status CheckFiles(const std::string& config_json) {
  const auto config = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> paths;
  for (const char* key : {"/dialog/tokenizer/path", "/dialog/engine/backend/extensions"}) {
    const nlohmann::json::json_pointer pointer(key);
    if (config.contains(pointer) && config[pointer].is_string())
      paths.push_back(config[pointer].get<std::string>());
  }
  const nlohmann::json::json_pointer bins("/dialog/engine/model/binary/ctx-bins");
  if (config.contains(bins) && config[bins].is_array()) {
    for (const auto& bin : config[bins]) {
      if (bin.is_string()) paths.push_back(bin.get<std::string>());
    }
  }
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
      return NotFound("Genie config: expected a file at " + path + ", got none");
    }
  }
  return OkStatus();
}

using HandleGuard = std::unique_ptr<const void, int32_t (*)(Handle)>;

}  // namespace

Status RunGenie(const std::string& config_json, const std::string& prompt,
                const std::function<void(std::string_view text, int sentence_code)>& on_text) {
  constexpr int kWholeSentence = 0;
  constexpr int32_t kJsonFormat = -7;  // seen with libGenie of QAIRT 2.51
  HEXPORT_RETURN_IF_ERROR(CheckFiles(config_json));
  HEXPORT_ASSIGN_OR_RETURN(const GenieFunctions genie, LoadGenie());
  Handle config_handle = nullptr;
  if (const int32_t code = genie.config_create(config_json.c_str(), &config_handle); code != 0) {
    return InvalidArgument(
        "Genie config: expected " +
        std::string(code == kJsonFormat ? "JSON" : "every mandatory key and no unknown one") +
        ", got code " + std::to_string(code) + "; its reason is on standard error");
  }
  const HandleGuard config(config_handle, genie.config_free);
  Handle dialog_handle = nullptr;
  if (const int32_t code = genie.dialog_create(config.get(), &dialog_handle); code != 0) {
    return Internal("Genie dialog: expected it to load the context binaries, got code " +
                    std::to_string(code) + "; its reason is on standard error");
  }
  const HandleGuard dialog(dialog_handle, genie.dialog_free);
  Answer answer{&on_text};
  const int32_t code =
      genie.dialog_query(dialog.get(), prompt.c_str(), kWholeSentence, OnText, &answer);
  if (answer.threw) return Internal("Genie query: the receiver of the text threw an exception");
  if (code != 0) {
    return Internal("Genie query: expected an answer, got code " + std::to_string(code) +
                    "; its reason is on standard error");
  }
  return OkStatus();
}

}  // namespace hexport::ort
