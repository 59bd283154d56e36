// The safetensors container: 8-byte little-endian header length, JSON header, raw tensors.
// Format: https://github.com/huggingface/safetensors (reference loader's rules, trailing bytes
// refused).
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/mapped_file.h"
#include "base/status.h"

namespace hexport {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "F16", "BF16", "I8", "U8", "U16", "I32", ...
  Shape shape;
  uint64_t begin = 0, end = 0;  // absolute file offsets
};

// Parses and checks a header against the file's size. `where` names the file in messages.
// Errors: kDataLoss with byte offset, expected and got (header length past the end, bad JSON, holes
// or overlaps, size not equal to dtype x shape, bytes after the last tensor).
Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                             const std::string& where);

class SafetensorsFile {
 public:
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::filesystem::path& path);
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry* Find(const std::string& name) const;  // O(log n); nullptr if absent
  std::span<const std::byte> Bytes(const SafetensorsEntry& entry) const;  // valid while this lives
  const MappedFile& file() const { return *file_; }

 private:
  std::unique_ptr<MappedFile> file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> index_;
};

// Writes a file tensor by tensor. Declare all tensors first, then write their bytes in the same
// order.
class SafetensorsWriter {
 public:
  // entries: name, dtype and shape; begin/end are ignored. metadata goes to "__metadata__".
  static Result<std::unique_ptr<SafetensorsWriter>> Create(
      const std::filesystem::path& path, std::vector<SafetensorsEntry> entries,
      std::map<std::string, std::string> metadata);
  // Bytes of the next declared tensor. kInvalidArgument when the size differs from the declaration.
  Status Append(std::span<const std::byte> bytes);
  // The same in pieces: the next bytes of the tensor that is not complete yet. kInvalidArgument
  // when they are more than it has room for.
  Status AppendPart(std::span<const std::byte> bytes);
  // kFailedPrecondition when a declared tensor was not written, or only a part of it.
  Status Commit();

 private:
  SafetensorsWriter() = default;
  std::unique_ptr<FileWriter> writer_;
  std::vector<SafetensorsEntry> entries_;
  size_t next_ = 0;
  uint64_t part_bytes_ = 0;  // written of entries_[next_]
};

}  // namespace hexport
