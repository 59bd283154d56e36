// Qualcomm's Genie, by its C functions.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "ort/session.h"

namespace hexport::ort {

// Loads a dialog and asks one question. `config_json`: {"dialog": {...}}; `prompt`: text already in
// the chat template. `on_text` is called with each piece of the answer and its sentence code (0
// complete, 1 begin, 2 continue, 3 end, 4 abort); a piece may end inside a UTF-8 character. An
// exception from it ends the answer with kInternal. Call it in a child process whose
// LD_LIBRARY_PATH is VendorLibraryPath(): the vendor's code may crash, prints to standard output,
// and takes gigabytes. Errors: kUnavailable (libGenie.so), kNotFound (a file that the config
// names), kInvalidArgument (config refused), kInternal (dialog or query) with Genie's number; Genie
// prints the reason to standard error.
Status RunGenie(const std::string& config_json, const std::string& prompt,
                const std::function<void(std::string_view text, int sentence_code)>& on_text);

}  // namespace hexport::ort
