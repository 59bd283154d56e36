// The parts of `hexport inspect`, one for each kind of thing.
#pragma once

#include <filesystem>
#include <string>

namespace hexport::cli {

struct InspectArguments {
  std::string path, base;
  bool json = false, hash = false;
};

bool IsAdapter(const std::filesystem::path& path);

// Each prints its report and returns the exit code.
int InspectBundle(const InspectArguments& arguments);
int InspectCheckpoint(const InspectArguments& arguments);
int InspectAdapter(const InspectArguments& arguments);

}  // namespace hexport::cli
