// A read-only memory-mapped file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "base/status.h"

namespace hexport {

class MappedFile {
 public:
  // Maps the whole file. An empty file maps to an empty span.
  // Errors: kNotFound, kPermissionDenied, kInvalidArgument (a directory), kInternal. All name the
  // path.
  static Result<std::unique_ptr<MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Valid as long as this object lives.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the kernel that [offset, offset+size) is not needed soon, so that streamed weights do not
  // stay in the resident set. Never fails; a hint.
  void Release(size_t offset, size_t size) const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace hexport
