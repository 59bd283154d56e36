#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "checkpoint/json_fields.h"

namespace hexport {
namespace {

using checkpoint::Excerpt;
using checkpoint::JsonFields;
using nlohmann::json;

constexpr uint64_t kPrefixBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference loader's limit
constexpr std::string_view kMetadata = "__metadata__";

constexpr std::array<std::pair<std::string_view, int64_t>, 18> kDTypeBytes{{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
    {"C64", 8},
    {"F8_E5M2FNUZ", 1},
}};

// 0 for an unknown dtype.
int64_t BytesPerElement(std::string_view dtype) {
  for (const auto& [name, bytes] : kDTypeBytes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

// -1 when it does not fit int64.
int64_t TensorBytes(const SafetensorsEntry& entry) {
  const int64_t count = NumElements(entry.shape);
  int64_t bytes = 0;
  if (count < 0 || __builtin_mul_overflow(count, BytesPerElement(entry.dtype), &bytes)) return -1;
  return bytes;
}

// A list of non-negative integers; false when it is anything else.
bool ReadSizes(const json* value, std::vector<int64_t>& sizes) {
  if (value == nullptr || !value->is_array()) return false;
  for (const json& element : *value) {
    if (!element.is_number_unsigned() || element.get<uint64_t>() > uint64_t{INT64_MAX})
      return false;
    sizes.push_back(element.get<int64_t>());
  }
  return true;
}

Result<SafetensorsEntry> ParseEntry(const std::string& name, const json& value, uint64_t data_begin,
                                    const std::string& where) {
  const std::string here = where + "@8: tensor " + Excerpt(json(name));
  if (!value.is_object()) return DataLoss(here + ": expected an object, got " + Excerpt(value));
  const JsonFields fields(value, here);
  SafetensorsEntry entry;
  entry.name = name;
  std::vector<int64_t> offsets;
  const json* dtype = fields.Find("dtype");
  if (dtype == nullptr || !dtype->is_string()) return DataLoss(here + ": expected a dtype");
  entry.dtype = dtype->get<std::string>();
  if (BytesPerElement(entry.dtype) == 0) {
    return Unimplemented(here + ": expected a known dtype, got " + Excerpt(*dtype));
  }
  if (!ReadSizes(fields.Find("shape"), entry.shape)) {
    return DataLoss(fields.Mismatch("shape", "a list of sizes").message());
  }
  if (!ReadSizes(fields.Find("data_offsets"), offsets) || offsets.size() != 2 ||
      offsets[0] > offsets[1]) {
    return DataLoss(fields.Mismatch("data_offsets", "[begin, end]").message());
  }
  const int64_t expected = TensorBytes(entry);
  if (expected != offsets[1] - offsets[0]) {
    return DataLoss(here + ": expected " + std::to_string(expected) + " bytes for " + entry.dtype +
                    ShapeString(entry.shape) + ", got " + std::to_string(offsets[1] - offsets[0]));
  }
  // Cannot overflow: data_begin is at most 100 MB and offsets are at most INT64_MAX.
  entry.begin = data_begin + static_cast<uint64_t>(offsets[0]);
  entry.end = data_begin + static_cast<uint64_t>(offsets[1]);
  return entry;
}

// No holes, no overlaps, nothing after the last tensor.
Status CheckCoverage(const std::vector<SafetensorsEntry>& sorted, uint64_t data_begin,
                     uint64_t file_size, const std::string& where) {
  uint64_t position = data_begin;
  for (const SafetensorsEntry& entry : sorted) {
    if (entry.begin != position) {
      return DataLoss(where + "@" + std::to_string(position) + ": tensor " +
                      Excerpt(json(entry.name)) + ": expected to begin here, got " +
                      std::to_string(entry.begin));
    }
    position = entry.end;
  }
  if (position != file_size) {
    return DataLoss(where + "@" + std::to_string(std::min(position, file_size)) + ": expected " +
                    std::to_string(position) + " bytes by its header, got " +
                    std::to_string(file_size) +
                    (file_size < position ? " (truncated); fetch the file again"
                                          : " (bytes after the last tensor)"));
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                             const std::string& where) {
  if (file.size() < kPrefixBytes) {
    return DataLoss(where + "@0: expected 8 bytes of header length, got " +
                    std::to_string(file.size()));
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kPrefixBytes; ++i) {
    header_bytes |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  }
  const uint64_t room = std::min<uint64_t>(file.size() - kPrefixBytes, kMaxHeaderBytes);
  if (header_bytes > room) {
    return DataLoss(where + "@0: header length: expected at most " + std::to_string(room) +
                    " (file of " + std::to_string(file.size()) + " bytes), got " +
                    std::to_string(header_bytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kPrefixBytes,
                              header_bytes);
  HEXPORT_ASSIGN_OR_RETURN(const json header, checkpoint::ParseJsonObject(text, where + "@8"));
  const uint64_t data_begin = kPrefixBytes + header_bytes;
  std::vector<SafetensorsEntry> entries;
  entries.reserve(header.size());
  for (const auto& item : header.items()) {
    if (item.key() == kMetadata) continue;
    HEXPORT_ASSIGN_OR_RETURN(SafetensorsEntry entry,
                             ParseEntry(item.key(), item.value(), data_begin, where));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  HEXPORT_RETURN_IF_ERROR(CheckCoverage(entries, data_begin, file.size(), where));
  return entries;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::filesystem::path& path) {
  std::unique_ptr<SafetensorsFile> opened = std::make_unique<SafetensorsFile>();
  HEXPORT_ASSIGN_OR_RETURN(opened->file_, MappedFile::Open(path));
  HEXPORT_ASSIGN_OR_RETURN(opened->entries_,
                           ParseSafetensorsHeader(opened->file_->bytes(), path.string()));
  for (size_t i = 0; i < opened->entries_.size(); ++i) {
    opened->index_.emplace(opened->entries_[i].name, i);
  }
  return opened;
}

const SafetensorsEntry* SafetensorsFile::Find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

std::span<const std::byte> SafetensorsFile::Bytes(const SafetensorsEntry& entry) const {
  return file_->bytes().subspan(entry.begin, entry.end - entry.begin);
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::filesystem::path& path, std::vector<SafetensorsEntry> entries,
    std::map<std::string, std::string> metadata) {
  json header = json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  uint64_t position = 0;
  for (SafetensorsEntry& entry : entries) {
    const int64_t bytes = TensorBytes(entry);
    const std::string here = path.string() + ": tensor " + Excerpt(json(entry.name));
    if (BytesPerElement(entry.dtype) == 0 || bytes < 0) {
      return InvalidArgument(here + ": expected a known dtype and a sane shape, got " +
                             entry.dtype + ShapeString(entry.shape));
    }
    if (entry.name == kMetadata || header.contains(entry.name)) {
      return InvalidArgument(here + ": expected a name that is not taken");
    }
    entry.begin = position;
    position += static_cast<uint64_t>(bytes);
    entry.end = position;
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // tensors begin aligned, as the reference writer's
  std::array<std::byte, kPrefixBytes> prefix{};
  for (size_t i = 0; i < kPrefixBytes; ++i) {
    prefix[i] = static_cast<std::byte>(static_cast<uint64_t>(text.size()) >> (8 * i));
  }
  std::unique_ptr<SafetensorsWriter> created(new SafetensorsWriter());
  HEXPORT_ASSIGN_OR_RETURN(created->writer_, FileWriter::Create(path));
  created->entries_ = std::move(entries);
  HEXPORT_RETURN_IF_ERROR(created->writer_->Write(prefix));
  HEXPORT_RETURN_IF_ERROR(created->writer_->Write(text));
  return created;
}

Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (next_ == entries_.size()) {
    return InvalidArgument("safetensors: expected no more than " + std::to_string(next_) +
                           " tensors, got another");
  }
  const SafetensorsEntry& entry = entries_[next_];
  if (part_bytes_ != 0 || bytes.size() != entry.end - entry.begin) {
    return InvalidArgument("safetensors: " + entry.name + ": expected " +
                           std::to_string(entry.end - entry.begin - part_bytes_) + " bytes, got " +
                           std::to_string(bytes.size()));
  }
  HEXPORT_RETURN_IF_ERROR(writer_->Write(bytes));
  ++next_;
  return OkStatus();
}

Status SafetensorsWriter::AppendPart(std::span<const std::byte> bytes) {
  // Tensors without values are complete as they are.
  while (next_ < entries_.size() && entries_[next_].begin == entries_[next_].end) ++next_;
  if (bytes.empty()) return OkStatus();
  if (next_ == entries_.size()) {
    return InvalidArgument("safetensors: expected no more than " + std::to_string(next_) +
                           " tensors, got another");
  }
  const SafetensorsEntry& entry = entries_[next_];
  const uint64_t room = entry.end - entry.begin - part_bytes_;
  if (bytes.size() > room) {
    return InvalidArgument("safetensors: " + entry.name + ": expected at most " +
                           std::to_string(room) + " bytes, got " + std::to_string(bytes.size()));
  }
  HEXPORT_RETURN_IF_ERROR(writer_->Write(bytes));
  part_bytes_ += bytes.size();
  if (part_bytes_ == entry.end - entry.begin) {
    part_bytes_ = 0;
    ++next_;
  }
  return OkStatus();
}

Status SafetensorsWriter::Commit() {
  HEXPORT_RETURN_IF_ERROR(AppendPart({}));
  if (next_ != entries_.size()) {
    return FailedPrecondition("safetensors: expected " + std::to_string(entries_.size()) +
                              " tensors, got " + std::to_string(next_) + "; the next is " +
                              entries_[next_].name);
  }
  return writer_->Commit();
}

}  // namespace hexport
