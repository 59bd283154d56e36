// Files written whole or not at all.
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hexport {

// Errors: kNotFound, kPermissionDenied, kInvalidArgument (a directory; larger than max_bytes).
Result<std::string> ReadTextFile(const std::filesystem::path& path,
                                 size_t max_bytes = size_t{1} << 30);

// Writes to "<path>.tmp-<pid>", flushes to disk, renames. On any error the temporary file is
// removed and an older file at `path` is untouched. Errors: kPermissionDenied, kNotFound (no
// folder), kResourceExhausted (disk full).
Status WriteFileAtomically(const std::filesystem::path& path, std::string_view contents);

// A file under construction: bytes go to "<path>.tmp-<pid>"; Commit() renames it to `path`.
// Destroyed without Commit(), the temporary file is removed. Thread-compatible.
class FileWriter {
 public:
  static Result<std::unique_ptr<FileWriter>> Create(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Errors: kResourceExhausted when the disk is full, kInternal otherwise. All name the path. After
  // an error the temporary file is gone and every further call is kFailedPrecondition.
  Status Write(std::span<const std::byte> bytes);
  Status Write(std::string_view bytes);
  // Appends zeros until offset() is a multiple of `alignment`.
  Status PadTo(size_t alignment);
  uint64_t offset() const { return offset_; }
  // fflush, fsync, rename. After it only destruction is allowed.
  Status Commit();

 private:
  FileWriter() = default;
  void Discard();          // closes and removes the temporary file
  Status Fail(int error);  // Discard(), then the status of this errno value
  std::filesystem::path path_, temporary_;
  std::FILE* file_ = nullptr;
  uint64_t offset_ = 0;
};

// A directory under construction: files are written below path(), a sibling "<final>.tmp-<pid>".
// Commit() renames it to `final_path` (replacing an old directory there when `replace`). Destroyed
// without Commit(), it is removed with everything in it.
class StagedDirectory {
 public:
  // Creates parents of `final_path` when missing. Errors: kFailedPrecondition when final_path
  // exists and !replace; kPermissionDenied; kResourceExhausted.
  static Result<std::unique_ptr<StagedDirectory>> Create(const std::filesystem::path& final_path,
                                                         bool replace);
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  const std::filesystem::path& path() const { return staged_; }
  Status Commit();

 private:
  StagedDirectory() = default;
  std::filesystem::path final_, staged_;
  bool replace_ = false, committed_ = false;
};

// Hard-links `from` to `to`, or copies where links are impossible. Errors as for writing.
Status LinkOrCopy(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hexport
