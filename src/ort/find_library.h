// Where the vendor libraries may be, as pure functions over lists of folders.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace hexport::ort {

// Folders to search, in order. `variable` non-null and non-empty (the value of HEXPORT_ORT_ROOT or
// HEXPORT_QNN_ROOT): only that folder, so that a wrong value is reported and not silently passed
// over. Else `configured` (may be empty), then each of `relative` below `executable_folder`.
std::vector<std::filesystem::path> CandidateRoots(const char* variable,
                                                  const std::filesystem::path& configured,
                                                  const std::filesystem::path& executable_folder,
                                                  const std::vector<std::string>& relative);

// First libonnxruntime.so* in lib/, the root itself or capi/ of a root. libonnxruntime.so and
// libonnxruntime.so.1 are preferred over longer names. Errors: kUnavailable with the roots and what
// to set.
Result<std::filesystem::path> FindOrtLibraryIn(const std::vector<std::filesystem::path>& roots);

// First root (or its onnxruntime_qnn/ or lib/) that holds libonnxruntime_providers_qnn.so,
// libQnnHtp.so and libGenie.so. Errors: kUnavailable with the roots, the files missing from an
// incomplete one and what to set.
Result<std::filesystem::path> FindQnnFolderIn(const std::vector<std::filesystem::path>& roots);

}  // namespace hexport::ort
