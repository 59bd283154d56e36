// One float tensor a sample, in memory up to a limit and in a temporary file past it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace hexport::quant {

// How many bytes of tensors may stay in memory, over all SampleTensors that share it. Must outlive
// them. Thread-compatible.
class SpillBudget {
 public:
  // `folder`: where temporary files are made; they have no name and go away with the process.
  SpillBudget(int64_t limit_bytes, std::filesystem::path folder)
      : limit_bytes_(limit_bytes), folder_(std::move(folder)) {}
  int64_t in_memory_bytes() const { return in_memory_bytes_; }
  int64_t spilled_bytes() const { return spilled_bytes_; }  // written to disk in all
  const std::filesystem::path& folder() const { return folder_; }

 private:
  friend class SampleTensors;
  int64_t limit_bytes_, in_memory_bytes_ = 0, spilled_bytes_ = 0;
  std::filesystem::path folder_;
};

// Calibration states between two layers. Thread-compatible; movable.
class SampleTensors {
 public:
  explicit SampleTensors(SpillBudget& budget, size_t samples = 0);
  ~SampleTensors();
  SampleTensors(SampleTensors&& other) noexcept;
  SampleTensors& operator=(SampleTensors&& other) noexcept;

  // Copies `values`, row-major of `shape`. A sample that was put before is replaced; in a file its
  // old place is used again when the size is the same. Errors: kInvalidArgument (size against
  // shape), those of writing the temporary file (kResourceExhausted: disk full).
  Status Put(size_t sample, const Shape& shape, std::span<const float> values);
  // The values of one sample; `scratch` holds them when they were in the file. Valid until the next
  // Put of this sample or the next use of `scratch`. Errors: kNotFound (never put), reading errors.
  Result<std::span<const float>> Get(size_t sample, std::vector<float>& scratch) const;
  const Shape& shape(size_t sample) const { return entries_[sample].shape; }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Shape shape;
    std::vector<float> values;  // empty when in the file
    int64_t offset = -1;        // in the file
    int64_t bytes = 0;
  };
  Status OpenFile();
  void Release();
  SpillBudget* budget_;
  std::vector<Entry> entries_;
  int file_ = -1;
  int64_t file_end_ = 0;
};

}  // namespace hexport::quant
