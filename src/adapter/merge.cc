#include "adapter/merge.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

#include "adapter/base_hash.h"
#include "adapter/merge_plan.h"
#include "adapter/rounding.h"
#include "adapter/row_merger.h"
#include "base/file.h"
#include "checkpoint/weight_files.h"

namespace hexport::adapter {
namespace {

// Values of a tensor that are in memory at once, in a few buffers of float32 that fit the cache
// together; but enough rows that the product does not spend its time on A's columns.
constexpr int64_t kChunkValues = int64_t{1} << 16;
constexpr int64_t kChunkRows = 32;
constexpr size_t kCopyBytes = size_t{8} << 20;
constexpr size_t kNamedNonfinite = 10;

// Hashes the base beside the merge; joins when it goes out of scope.
class BackgroundHash {
 public:
  explicit BackgroundHash(const BaseTensors& base) : result_(Internal("not hashed")) {
    try {
      thread_ = std::thread([this, &base] { result_ = HashBase(base); });
    } catch (const std::exception&) {
      result_ = HashBase(base);  // no thread to be had
    }
  }
  ~BackgroundHash() { Join(); }
  BackgroundHash(const BackgroundHash&) = delete;
  BackgroundHash& operator=(const BackgroundHash&) = delete;
  const Result<std::string>& Get() {
    Join();
    return result_;
  }

 private:
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  Result<std::string> result_;
  std::thread thread_;
};

class Merger {
 public:
  Merger(const std::filesystem::path& folder, const BaseTensors& base,
         const MatchedAdapters& adapters, const MergeOptions& options, Progress& progress)
      : folder_(folder), base_(base), adapters_(adapters), options_(options), progress_(progress) {}
  Result<MergeReport> Run();

 private:
  Status CheckHashes();
  Status WriteShards();
  Status WriteTensor(const PlannedTensor& planned, SafetensorsWriter& writer);
  Status CopyTensor(const PlannedTensor& planned, SafetensorsWriter& writer, ChangeStats& stats);
  Status MergeTensor(const PlannedTensor& planned, SafetensorsWriter& writer, ChangeStats& stats,
                     bool& comparable);
  Status CountWritten();
  void Conclude();
  void CheckMatches();
  void CheckIdentity();
  void CheckProjection();

  const std::filesystem::path& folder_;
  const BaseTensors& base_;
  const MatchedAdapters& adapters_;
  const MergeOptions& options_;
  Progress& progress_;
  MergePlan plan_;
  MergeReport report_;
  ChangeStats stats_;
  ProjectionSums projection_;
  double projection_variance_ = 0;  // of the dot product, if W knew nothing of delta
  int64_t reshaped_ = 0;            // tensors that cannot be compared with the base's
};

Result<MergeReport> Merger::Run() {
  const auto start = std::chrono::steady_clock::now();
  HEXPORT_RETURN_IF_ERROR(CheckNotMergedBefore(base_, adapters_));
  HEXPORT_ASSIGN_OR_RETURN(plan_, PlanMerge(base_, adapters_, options_));
  report_.warnings = base_.warnings();
  report_.warnings.insert(report_.warnings.end(), adapters_.warnings().begin(),
                          adapters_.warnings().end());
  HEXPORT_ASSIGN_OR_RETURN(
      const std::string config,
      MergedConfig(base_, adapters_, options_, report_.warnings, report_.failures));
  HEXPORT_RETURN_IF_ERROR(CheckHashes());
  {
    std::optional<BackgroundHash> hash;
    if (report_.base_sha256.empty()) hash.emplace(base_);
    HEXPORT_RETURN_IF_ERROR(WriteShards());
    if (hash.has_value()) {
      HEXPORT_ASSIGN_OR_RETURN(report_.base_sha256, hash->Get());
    }
  }
  HEXPORT_RETURN_IF_ERROR(WriteIndex(folder_, plan_));
  HEXPORT_RETURN_IF_ERROR(WriteFileAtomically(folder_ / "config.json", config));
  HEXPORT_RETURN_IF_ERROR(WriteRecord(folder_, base_, adapters_, report_.base_sha256));
  HEXPORT_RETURN_IF_ERROR(CountWritten());
  Conclude();
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(report_);
}

// Hashes first only when an adapter says which base it was trained on: a wrong base costs no merge.
Status Merger::CheckHashes() {
  for (const MatchedAdapters::Source& source : adapters_.sources()) {
    report_.adapter_sha256.push_back(source.adapter->sha256());
    const std::string& wanted = source.adapter->config().base_sha256;
    if (wanted.empty()) continue;
    if (report_.base_sha256.empty()) {
      HEXPORT_ASSIGN_OR_RETURN(report_.base_sha256, HashBase(base_));
    }
    if (wanted != report_.base_sha256) {
      return FailedPrecondition(
          source.adapter->path().string() +
          ": hexport_base_sha256: expected the base that it was trained on, " + wanted + ", got " +
          report_.base_sha256 + "; the base may hold the adapter already, or be another model");
    }
  }
  return OkStatus();
}

Status Merger::WriteShards() {
  int64_t done = 0;
  for (const PlannedShard& shard : plan_.shards) {
    std::vector<SafetensorsEntry> entries;
    for (const PlannedTensor& planned : shard.tensors) {
      entries.push_back({planned.tensor->name, planned.dtype, planned.tensor->shape, 0, 0});
    }
    HEXPORT_ASSIGN_OR_RETURN(
        const std::unique_ptr<SafetensorsWriter> writer,
        SafetensorsWriter::Create(folder_ / shard.file, std::move(entries), {{"format", "pt"}}));
    for (const PlannedTensor& planned : shard.tensors) {
      progress_.Update("merge", done++, plan_.tensors);
      HEXPORT_RETURN_IF_ERROR(WriteTensor(planned, *writer));
    }
    HEXPORT_RETURN_IF_ERROR(writer->Commit());
  }
  progress_.Update("merge", plan_.tensors, plan_.tensors);
  return OkStatus();
}

Status Merger::WriteTensor(const PlannedTensor& planned, SafetensorsWriter& writer) {
  ChangeStats stats;
  bool comparable = true;
  HEXPORT_RETURN_IF_ERROR(planned.copied ? CopyTensor(planned, writer, stats)
                                         : MergeTensor(planned, writer, stats, comparable));
  const std::string& name = planned.tensor->name;
  TensorOutcome outcome{name, planned.dtype, 0};
  if (stats.delta_abs > 0 && std::isfinite(stats.delta_abs))
    outcome.delta_lost_share = stats.lost_abs / stats.delta_abs;
  report_.tensors.push_back(std::move(outcome));
  if (!comparable) ++reshaped_;
  if (stats.changed > 0 || !comparable) ++report_.tensors_changed;
  if (stats.nonfinite > 0 && report_.nonfinite_tensors.size() < kNamedNonfinite) {
    report_.nonfinite_tensors.push_back(name);
  }
  stats_ += stats;
  return OkStatus();
}

Status Merger::CopyTensor(const PlannedTensor& planned, SafetensorsWriter& writer,
                          ChangeStats& stats) {
  const std::span<const std::byte> bytes = base_.Bytes(planned.tensor->name);
  const std::optional<DType> dtype = FloatType(planned.dtype);
  for (size_t at = 0; at < bytes.size(); at += kCopyBytes) {
    const auto piece = bytes.subspan(at, std::min(kCopyBytes, bytes.size() - at));
    if (dtype.has_value()) stats.nonfinite += CountNonfinite(*dtype, piece);
    HEXPORT_RETURN_IF_ERROR(writer.AppendPart(piece));
  }
  base_.Release(planned.tensor->name);
  return writer.AppendPart({});
}

Status Merger::MergeTensor(const PlannedTensor& planned, SafetensorsWriter& writer,
                           ChangeStats& stats, bool& comparable) {
  const MatchedAdapters::MergedTensor& tensor = *planned.tensor;
  const DType dtype = *FloatType(planned.dtype);
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<RowMerger> merger,
                           RowMerger::Create(adapters_, tensor));
  const BaseTensor* stored = base_.Find(tensor.name);
  comparable = stored != nullptr && stored->shape == tensor.shape;
  const int64_t rows = merger->rows(), columns = merger->columns();
  const int64_t step = std::max(kChunkRows, kChunkValues / std::max<int64_t>(columns, 1));
  std::vector<float> values, delta, merged, before;
  std::vector<std::byte> bytes;
  for (int64_t row = 0; row < rows && columns > 0; row += step) {
    const auto size = static_cast<size_t>(std::min(step, rows - row) * columns);
    values.resize(size);
    delta.resize(size);
    merged.resize(size);
    bytes.resize(size * static_cast<size_t>(DTypeBits(dtype) / 8));
    HEXPORT_RETURN_IF_ERROR(merger->Merge(row, values, delta, merged));
    std::span<const float> base = values, change = delta;
    if (!comparable) {
      base = change = {};
    } else if (tensor.replaced) {
      // What the base stores is something else than what the low-rank change is added to.
      before.resize(size);
      HEXPORT_RETURN_IF_ERROR(base_.ReadRows(tensor.name, row, before));
      for (size_t i = 0; i < size; ++i) delta[i] = merged[i] - before[i];
      base = before;
    }
    stats += StoreRounded(dtype, merged, base, change, bytes);
    HEXPORT_RETURN_IF_ERROR(writer.AppendPart(bytes));
  }
  const ProjectionSums& sums = merger->projection();
  if (sums.delta_squares > 0) {
    projection_.dot += sums.dot;
    projection_.delta_squares += sums.delta_squares;
    projection_variance_ +=
        sums.weight_squares * sums.delta_squares / static_cast<double>(rows * columns);
  }
  return writer.AppendPart({});
}

// Opens what was written as any reader would.
Status Merger::CountWritten() {
  HEXPORT_ASSIGN_OR_RETURN(const checkpoint::WeightFiles written,
                           checkpoint::OpenWeightFiles(folder_));
  std::map<std::string, Shape> shapes;
  for (const checkpoint::WeightFile& file : written.files) {
    for (const SafetensorsEntry& entry : file.entries) shapes[entry.name] = entry.shape;
  }
  report_.tensors_in = static_cast<int64_t>(base_.tensors().size());
  report_.tensors_out = static_cast<int64_t>(shapes.size());
  if (report_.tensors_out != plan_.tensors) {
    report_.failures.push_back("expected " + std::to_string(plan_.tensors) +
                               " tensors in the merged model, got " +
                               std::to_string(report_.tensors_out));
  }
  for (const MatchedAdapters::MergedTensor& tensor : adapters_.tensors()) {
    const auto found = shapes.find(tensor.name);
    if (found != shapes.end() && found->second == tensor.shape) continue;
    report_.failures.push_back("tensor " + tensor.name + ": expected " + ShapeString(tensor.shape) +
                               " in the merged model, got " +
                               (found == shapes.end() ? "nothing" : ShapeString(found->second)));
  }
  return OkStatus();
}

void Merger::Conclude() {
  // Sums that hold a NaN say nothing; the values themselves are counted below.
  if (!std::isfinite(stats_.delta_abs)) stats_.delta_abs = 0;
  if (!std::isfinite(stats_.delta_squares)) stats_.delta_squares = 0;
  report_.delta_lost_share = stats_.delta_abs > 0 ? stats_.lost_abs / stats_.delta_abs : 0;
  report_.delta_norm = std::sqrt(stats_.delta_squares);
  report_.delta_relative_error =
      stats_.delta_squares > 0 ? std::sqrt(stats_.error_squares / stats_.delta_squares) : 0;
  report_.nonfinite = stats_.nonfinite;
  if (report_.nonfinite > 0) {
    report_.failures.push_back(std::to_string(report_.nonfinite) +
                               " values are NaN or infinite, the first in " +
                               report_.nonfinite_tensors[0]);
  }
  CheckMatches();
  CheckIdentity();
  CheckProjection();
}

void Merger::CheckMatches() {
  for (const AdapterKey& key : adapters_.keys()) {
    ++report_.adapter_tensors;
    if (key.tensor.empty()) {
      report_.unmatched.push_back(key.key);
    } else {
      ++report_.matched;
    }
  }
  if (report_.unmatched.empty()) return;
  std::string line = "matched " + std::to_string(report_.matched) + " of " +
                     std::to_string(report_.adapter_tensors) +
                     " adapter tensors; the first without a place is " + report_.unmatched[0];
  for (const auto& [from, to] : adapters_.SuggestedRename()) {
    line += "; renaming \"" + from + "\" to \"" + to + "\" would match more";
  }
  const bool fails = !options_.allow_partial || report_.matched == 0;
  (fails ? report_.failures : report_.warnings).push_back(std::move(line));
}

void Merger::CheckIdentity() {
  report_.identity = stats_.changed == 0 && reshaped_ == 0;
  if (!report_.identity) return;
  report_.failures.push_back(stats_.delta_abs > 0
                                 ? "every change was lost to rounding: use --dtype float32"
                                 : "adapter is an exact identity: it changes nothing (untrained, "
                                   "or its weights are zero)");
}

void Merger::CheckProjection() {
  // False for NaN too, which is a failure of its own.
  if (!(projection_.delta_squares > 0) || !std::isfinite(projection_.dot)) return;
  const double projection = projection_.dot / projection_.delta_squares;
  const double sigma = std::sqrt(projection_variance_) / projection_.delta_squares;
  report_.base_projection = projection;
  report_.base_projection_sigma = sigma;
  if (std::fabs(projection - 1) > 4 * sigma || std::fabs(projection) < 6 * sigma) return;
  char text[200];
  std::snprintf(text, sizeof(text),
                "the base seems to hold this adapter already: its weights contain the change %.3f "
                "times, %.0f standard deviations from chance",
                projection, projection / sigma);
  report_.warnings.emplace_back(text);
}

}  // namespace

Result<MergeReport> MergeInto(const std::filesystem::path& folder, const BaseTensors& base,
                              const MatchedAdapters& adapters, const MergeOptions& options,
                              Progress& progress) {
  Merger merger(folder, base, adapters, options, progress);
  return merger.Run();
}

}  // namespace hexport::adapter
