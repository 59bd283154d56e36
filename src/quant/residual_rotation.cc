#include "quant/residual_rotation.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>
#include <string_view>
#include <utility>

namespace hexport::quant {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";
constexpr char kFinalNorm[] = "model.norm.weight";

// What a tensor is to the residual stream.
enum class Role { kOther, kGain, kEmbedding, kReader, kWriter, kWriterBias };

struct Place {
  Role role = Role::kOther;
  std::string gain;  // kReader: the norm before it
};

bool EndsWith(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

Place PlaceOf(const std::string& name) {
  if (name == kEmbedding) return {Role::kEmbedding, {}};
  if (name == kHead) return {Role::kReader, kFinalNorm};
  if (name == kFinalNorm) return {Role::kGain, {}};
  for (const char* tail : {".input_layernorm.weight", ".post_attention_layernorm.weight"}) {
    if (EndsWith(name, tail)) return {Role::kGain, {}};
  }
  for (const char* linear :
       {".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj", ".self_attn.qkv_proj"}) {
    const std::string tail = std::string(linear) + ".weight";
    if (EndsWith(name, tail)) {
      return {Role::kReader, name.substr(0, name.size() - tail.size()) + ".input_layernorm.weight"};
    }
  }
  for (const char* linear : {".mlp.gate_proj", ".mlp.up_proj", ".mlp.gate_up_proj"}) {
    const std::string tail = std::string(linear) + ".weight";
    if (EndsWith(name, tail)) {
      return {Role::kReader,
              name.substr(0, name.size() - tail.size()) + ".post_attention_layernorm.weight"};
    }
  }
  for (const char* linear : {".self_attn.o_proj", ".mlp.down_proj"}) {
    if (EndsWith(name, std::string(linear) + ".weight")) return {Role::kWriter, {}};
    if (EndsWith(name, std::string(linear) + ".bias")) return {Role::kWriterBias, {}};
  }
  return {};
}

class RotatedCheckpoint : public Checkpoint {
 public:
  RotatedCheckpoint(const Checkpoint& base, uint64_t seed)
      : base_(base),
        config_(base.config()),
        tensors_(base.tensors()),
        rotation_(config_.hidden_size, seed) {
    config_.tie_word_embeddings = false;
    head_source_ = base.Find(kHead) != nullptr ? kHead : kEmbedding;
    if (base.Find(kHead) == nullptr) {
      TensorInfo head = *base.Find(kEmbedding);
      head.name = kHead;
      tensors_.push_back(std::move(head));
    }
  }

  const ModelConfig& config() const override { return config_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(const std::string& name) const override {
    if (name == kHead) {
      const auto it = std::find_if(tensors_.begin(), tensors_.end(),
                                   [](const auto& t) { return t.name == kHead; });
      return &*it;
    }
    return base_.Find(name);
  }
  Result<TextAssets> Text() const override { return base_.Text(); }
  std::vector<std::filesystem::path> Files() const override { return base_.Files(); }

  Status Read(const std::string& name, std::span<float> out) const override {
    const Place place = PlaceOf(name);
    if (place.role == Role::kReader || place.role == Role::kEmbedding)
      return ReadRows(name, 0, out);
    HEXPORT_RETURN_IF_ERROR(base_.Read(name, out));
    if (place.role == Role::kGain) std::fill(out.begin(), out.end(), 1.0f);
    if (place.role == Role::kWriterBias) rotation_.ApplyToRows(out);
    if (place.role == Role::kWriter) RotateColumns(out);
    return OkStatus();
  }

  Status ReadRows(const std::string& name, int64_t first_row, std::span<float> out) const override {
    const Place place = PlaceOf(name);
    if (place.role == Role::kWriter) return ReadWriterRows(name, first_row, out);
    HEXPORT_RETURN_IF_ERROR(base_.ReadRows(name == kHead ? head_source_ : name, first_row, out));
    if (place.role != Role::kReader && place.role != Role::kEmbedding) return OkStatus();
    if (place.role == Role::kReader) {
      std::vector<float> gain(static_cast<size_t>(config_.hidden_size));
      HEXPORT_RETURN_IF_ERROR(base_.Read(place.gain, gain));
      for (size_t i = 0; i < out.size(); ++i) out[i] *= gain[i % gain.size()];
    }
    rotation_.ApplyToRows(out);
    return OkStatus();
  }

 private:
  // A row of a rotated output mixes all rows of the stored one: the tensor read last is kept whole.
  Status ReadWriterRows(const std::string& name, int64_t first_row, std::span<float> out) const {
    const TensorInfo* info = base_.Find(name);
    if (info == nullptr) return NotFound(name + ": no such tensor");
    const std::lock_guard<std::mutex> lock(writer_mutex_);
    if (writer_name_ != name) {
      writer_name_.clear();
      writer_.resize(static_cast<size_t>(NumElements(info->shape)));
      HEXPORT_RETURN_IF_ERROR(Read(name, writer_));
      writer_name_ = name;
    }
    const size_t columns = static_cast<size_t>(info->shape[1]);
    const size_t begin = static_cast<size_t>(first_row) * columns;
    if (first_row < 0 || columns == 0 || out.size() % columns != 0 ||
        begin + out.size() > writer_.size()) {
      return InvalidArgument(name + ": rows from " + std::to_string(first_row) +
                             " do not lie within " + ShapeString(info->shape));
    }
    std::copy_n(writer_.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
    return OkStatus();
  }

  // w: [hidden_size, in_features]; every column x becomes R^T x, in strips of columns.
  void RotateColumns(std::span<float> w) const {
    const size_t rows = static_cast<size_t>(config_.hidden_size), columns = w.size() / rows;
    constexpr size_t kStrip = 16;
    std::vector<float> strip(rows * kStrip);
    for (size_t first = 0; first < columns; first += kStrip) {
      const size_t count = std::min(kStrip, columns - first);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < count; ++c) strip[c * rows + r] = w[r * columns + first + c];
      }
      rotation_.ApplyToRows(std::span<float>(strip).first(count * rows));
      for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < count; ++c) w[r * columns + first + c] = strip[c * rows + r];
      }
    }
  }

  const Checkpoint& base_;
  ModelConfig config_;
  std::vector<TensorInfo> tensors_;
  ResidualRotation rotation_;
  std::string head_source_;
  mutable std::mutex writer_mutex_;
  mutable std::string writer_name_;  // the tensor in writer_; empty: none
  mutable std::vector<float> writer_;
};

}  // namespace

ResidualRotation::ResidualRotation(int64_t size, uint64_t seed)
    : size_(size), power_(1), odd_(size) {
  while (odd_ % 2 == 0) {
    odd_ /= 2;
    power_ *= 2;
  }
  std::mt19937_64 random(seed);
  const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(power_)));
  signs_.resize(static_cast<size_t>(size));
  for (float& sign : signs_) sign = (random() >> 63) != 0 ? norm : -norm;
  hartley_.resize(static_cast<size_t>(odd_ * odd_));
  for (int64_t j = 0; j < odd_; ++j) {
    for (int64_t k = 0; k < odd_; ++k) {
      const double phase = 2.0 * 3.14159265358979323846 * static_cast<double>(j * k % odd_) /
                           static_cast<double>(odd_);
      hartley_[static_cast<size_t>(j * odd_ + k)] = static_cast<float>(
          (std::cos(phase) + std::sin(phase)) / std::sqrt(static_cast<double>(odd_)));
    }
  }
}

void ResidualRotation::ApplyToRow(float* row, std::vector<float>& scratch) const {
  const size_t odd = static_cast<size_t>(odd_), power = static_cast<size_t>(power_);
  for (size_t i = 0; i < odd * power; ++i) row[i] *= signs_[i];
  // The index is (p, m) with m fastest: Hadamard over p, Hartley over m.
  for (size_t step = 1; step < power; step *= 2) {
    for (size_t block = 0; block < power; block += 2 * step) {
      for (size_t i = block * odd; i < (block + step) * odd; ++i) {
        const float a = row[i], b = row[i + step * odd];
        row[i] = a + b;
        row[i + step * odd] = a - b;
      }
    }
  }
  if (odd == 1) return;
  for (size_t p = 0; p < power; ++p) {
    float* part = row + p * odd;
    std::fill(scratch.begin(), scratch.end(), 0.0f);
    for (size_t j = 0; j < odd; ++j) {
      for (size_t k = 0; k < odd; ++k) scratch[k] += part[j] * hartley_[j * odd + k];
    }
    std::copy(scratch.begin(), scratch.end(), part);
  }
}

void ResidualRotation::ApplyToRows(std::span<float> rows) const {
  std::vector<float> scratch(static_cast<size_t>(odd_));
  const size_t size = static_cast<size_t>(size_);
  for (size_t row = 0; row + size <= rows.size(); row += size)
    ApplyToRow(rows.data() + row, scratch);
}

bool CanRotateResidual(const ModelConfig& config) {
  return !config.branch_norms && config.norm_offset == 0.0 && config.embedding_scale == 1.0;
}

std::unique_ptr<Checkpoint> RotateResidual(const Checkpoint& base, uint64_t seed) {
  return std::make_unique<RotatedCheckpoint>(base, seed);
}

}  // namespace hexport::quant
