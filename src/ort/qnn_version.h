// QAIRT's build id, as text in its files.
#pragma once

#include <string>
#include <string_view>

namespace hexport::ort {

// First "v<major>.<minor>.<patch>.<at least 9 digits>" of a library's bytes, without the v:
// "2.51.0.260929181845". "" when there is none.
std::string FindBuildId(std::string_view bytes);

// qnn_version of the wheel's build_and_package_info.py: "2.51.0". "" when there is none.
std::string VersionOfPackageInfo(std::string_view python);

}  // namespace hexport::ort
