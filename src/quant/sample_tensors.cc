#include "quant/sample_tensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

namespace hexport::quant {

SampleTensors::SampleTensors(SpillBudget& budget, size_t samples)
    : budget_(&budget), entries_(samples) {}

SampleTensors::~SampleTensors() { Release(); }

SampleTensors::SampleTensors(SampleTensors&& other) noexcept
    : budget_(other.budget_),
      entries_(std::exchange(other.entries_, {})),
      file_(std::exchange(other.file_, -1)),
      file_end_(std::exchange(other.file_end_, 0)) {}

SampleTensors& SampleTensors::operator=(SampleTensors&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = other.budget_;
  entries_ = std::exchange(other.entries_, {});
  file_ = std::exchange(other.file_, -1);
  file_end_ = std::exchange(other.file_end_, 0);
  return *this;
}

void SampleTensors::Release() {
  for (const Entry& entry : entries_) {
    if (!entry.values.empty()) budget_->in_memory_bytes_ -= entry.bytes;
  }
  entries_.clear();
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

Status SampleTensors::OpenFile() {
  if (file_ >= 0) return OkStatus();
  std::string path = (budget_->folder() / "hexport-spill-XXXXXX").string();
  file_ = ::mkostemp(path.data(), O_CLOEXEC);
  if (file_ < 0) return ErrnoStatus(errno, path);
  ::unlink(path.c_str());
  return OkStatus();
}

Status SampleTensors::Put(size_t sample, const Shape& shape, std::span<const float> values) {
  if (sample >= entries_.size() || NumElements(shape) != static_cast<int64_t>(values.size())) {
    return InvalidArgument("sample " + std::to_string(sample) + " of " +
                           std::to_string(entries_.size()) + ": expected " + ShapeString(shape) +
                           " values, got " + std::to_string(values.size()));
  }
  Entry& entry = entries_[sample];
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  if (!entry.values.empty()) budget_->in_memory_bytes_ -= entry.bytes;
  const bool same_place = entry.offset >= 0 && entry.bytes == bytes;
  entry.shape = shape;
  entry.bytes = bytes;
  if (budget_->in_memory_bytes_ + bytes <= budget_->limit_bytes_) {
    entry.values.assign(values.begin(), values.end());
    budget_->in_memory_bytes_ += bytes;
    return OkStatus();
  }
  entry.values = {};
  HEXPORT_RETURN_IF_ERROR(OpenFile());
  if (!same_place) {
    entry.offset = file_end_;
    file_end_ += bytes;
  }
  const auto* data = reinterpret_cast<const char*>(values.data());
  for (int64_t done = 0; done < bytes;) {
    const ssize_t count =
        ::pwrite(file_, data + done, static_cast<size_t>(bytes - done), entry.offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return ErrnoStatus(errno, "writing calibration states to " + budget_->folder().string());
    }
    done += count;
  }
  budget_->spilled_bytes_ += bytes;
  return OkStatus();
}

Result<std::span<const float>> SampleTensors::Get(size_t sample,
                                                  std::vector<float>& scratch) const {
  if (sample >= entries_.size() || entries_[sample].bytes == 0) {
    return NotFound("sample " + std::to_string(sample) + ": no tensor was put for it");
  }
  const Entry& entry = entries_[sample];
  if (!entry.values.empty()) return std::span<const float>(entry.values);
  scratch.resize(static_cast<size_t>(entry.bytes) / sizeof(float));
  auto* data = reinterpret_cast<char*>(scratch.data());
  for (int64_t done = 0; done < entry.bytes;) {
    const ssize_t count =
        ::pread(file_, data + done, static_cast<size_t>(entry.bytes - done), entry.offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, "reading spilled calibration states");
    if (count == 0) return DataLoss("spilled calibration states: expected more bytes, got none");
    done += count;
  }
  return std::span<const float>(scratch);
}

}  // namespace hexport::quant
