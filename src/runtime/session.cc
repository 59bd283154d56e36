#include "runtime/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "base/file.h"
#include "runtime/engine.h"
#include "runtime/kv_cache.h"
#include "text/tokenizer.h"

namespace hexport::runtime {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Best minus second-best logit of the ids that can be chosen.
float Margin(std::span<const float> logits, int64_t valid_ids) {
  float best = -std::numeric_limits<float>::infinity(), second = best;
  for (const float value : logits.first(std::min(logits.size(), static_cast<size_t>(valid_ids)))) {
    if (value > best) {
      second = std::exchange(best, value);
    } else if (value > second) {
      second = value;
    }
  }
  return best - second;
}

class BundleSession final : public Session {
 public:
  BundleSession(bundle::Manifest manifest, int64_t valid_ids,
                std::vector<std::unique_ptr<GraphRunner>> runners, KvCache cache)
      : manifest_(std::move(manifest)),
        valid_ids_(valid_ids),
        runners_(std::move(runners)),
        cache_(std::move(cache)) {}

  Result<GenerateResult> Generate(
      std::span<const int32_t> prompt, const GenerateOptions& options,
      const std::function<bool(const GeneratedToken&)>& on_token) override;
  Result<std::vector<float>> Logits(std::span<const int32_t> ids) override;
  const bundle::Manifest& manifest() const override { return manifest_; }

 private:
  // The smallest graph that takes `count` ids at the cache's end in one call, else the largest that
  // can run there; null when none can: a graph's past must fit its stride.
  GraphRunner* Pick(int64_t count) const;
  Status CheckIds(std::span<const int32_t> ids) const;
  // Keeps the tokens that the cache and `ids` begin with; the mask hides the rest.
  Status KeepCommonPrefix(std::span<const int32_t> ids);
  // Runs ids after what is cached. logits: [ids.size(), vocab_size], or the last row only.
  Status Feed(std::span<const int32_t> ids, bool all_rows, std::vector<float>& logits);

  bundle::Manifest manifest_;
  int64_t valid_ids_;
  std::vector<std::unique_ptr<GraphRunner>> runners_;
  KvCache cache_;
  std::vector<int32_t> cached_ids_;  // of the tokens in cache_
};

GraphRunner* BundleSession::Pick(int64_t count) const {
  GraphRunner* picked = nullptr;
  for (const std::unique_ptr<GraphRunner>& runner : runners_) {  // largest first
    if (cache_.length() > runner->stride()) continue;
    if (picked == nullptr || runner->ar() >= count) picked = runner.get();
  }
  return picked;
}

Status BundleSession::CheckIds(std::span<const int32_t> ids) const {
  if (ids.empty()) return InvalidArgument("prompt: expected at least one token, got none");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < manifest_.model.vocab_size) continue;
    return InvalidArgument("prompt: token " + std::to_string(i) + ": expected an id from 0 to " +
                           std::to_string(manifest_.model.vocab_size - 1) + ", got " +
                           std::to_string(ids[i]));
  }
  return OkStatus();
}

Status BundleSession::KeepCommonPrefix(std::span<const int32_t> ids) {
  size_t common = 0;  // at least one id must run, for its logits
  while (common < cached_ids_.size() && common + 1 < ids.size() &&
         cached_ids_[common] == ids[common]) {
    ++common;
  }
  // Without a single-step graph, chunks must start where they would without a cache, or the last
  // one may not fit.
  common -= common % static_cast<size_t>(runners_.back()->ar());
  cached_ids_.resize(common);
  return cache_.Truncate(static_cast<int64_t>(common));
}

Status BundleSession::Feed(std::span<const int32_t> ids, bool all_rows,
                           std::vector<float>& logits) {
  std::vector<float> rows;
  logits.clear();
  while (!ids.empty()) {
    const int64_t left = static_cast<int64_t>(ids.size());
    GraphRunner* runner = Pick(left);
    if (runner == nullptr) {
      return ResourceExhausted("context: " + std::to_string(cache_.length()) + " of " +
                               std::to_string(manifest_.context_length) + " tokens are used, " +
                               std::to_string(left) + " more do not fit the bundle's graphs");
    }
    const std::span<const int32_t> chunk =
        ids.first(static_cast<size_t>(std::min(left, runner->ar())));
    HEXPORT_RETURN_IF_ERROR(runner->Run(chunk, all_rows, cache_, all_rows ? rows : logits));
    if (all_rows) logits.insert(logits.end(), rows.begin(), rows.end());
    const size_t added = static_cast<size_t>(cache_.length()) - cached_ids_.size();
    cached_ids_.insert(cached_ids_.end(), chunk.begin(),
                       chunk.begin() + static_cast<std::ptrdiff_t>(added));
    ids = ids.subspan(chunk.size());
    if (added < chunk.size() && !ids.empty()) {
      return ResourceExhausted("context: is full with " + std::to_string(manifest_.context_length) +
                               " tokens, " + std::to_string(ids.size()) + " more do not fit");
    }
  }
  return OkStatus();
}

Result<GenerateResult> BundleSession::Generate(
    std::span<const int32_t> prompt, const GenerateOptions& options,
    const std::function<bool(const GeneratedToken&)>& on_token) {
  HEXPORT_RETURN_IF_ERROR(CheckIds(prompt));
  const int64_t context = manifest_.context_length;
  int64_t total = static_cast<int64_t>(prompt.size());  // tokens of prompt and answer
  if (total >= context) {
    return ResourceExhausted("prompt: " + std::to_string(total) +
                             " tokens do not fit the context of " + std::to_string(context) +
                             " with room for an answer; shorten it");
  }
  const std::vector<int64_t>& stops =
      options.stop_token_ids.empty() ? manifest_.model.eos_token_ids : options.stop_token_ids;
  GenerateResult result;
  std::vector<float> logits;
  Clock::time_point start = Clock::now();
  HEXPORT_RETURN_IF_ERROR(KeepCommonPrefix(prompt));
  HEXPORT_RETURN_IF_ERROR(
      Feed(prompt.subspan(static_cast<size_t>(cache_.length())), false, logits));
  result.prefill_seconds = SecondsSince(start);

  start = Clock::now();
  Sampler sampler(options.sampling);
  const int64_t allowed = std::min(options.max_tokens, context - total);
  result.finish_reason = "length";
  while (static_cast<int64_t>(result.tokens.size()) < allowed) {
    const GeneratedToken token = {sampler.Sample(logits, valid_ids_), Margin(logits, valid_ids_)};
    if (std::find(stops.begin(), stops.end(), token.id) != stops.end()) {
      result.finish_reason = "stop";
      break;
    }
    result.tokens.push_back(token);
    if (on_token && !on_token(token)) {
      result.finish_reason = "cancelled";
      break;
    }
    if (static_cast<int64_t>(result.tokens.size()) == allowed) break;
    if (Pick(1) == nullptr) break;  // a bundle without an ar 1 graph is full earlier
    HEXPORT_RETURN_IF_ERROR(Feed(std::span(&token.id, 1), false, logits));
  }
  result.decode_seconds = SecondsSince(start);
  return result;
}

Result<std::vector<float>> BundleSession::Logits(std::span<const int32_t> ids) {
  HEXPORT_RETURN_IF_ERROR(CheckIds(ids));
  if (static_cast<int64_t>(ids.size()) > manifest_.context_length) {
    return ResourceExhausted("prompt: " + std::to_string(ids.size()) +
                             " tokens do not fit the context of " +
                             std::to_string(manifest_.context_length) + "; shorten it");
  }
  cached_ids_.clear();
  HEXPORT_RETURN_IF_ERROR(cache_.Truncate(0));
  std::vector<float> logits;
  HEXPORT_RETURN_IF_ERROR(Feed(ids, true, logits));
  return logits;
}

// Rows of the output layer that are real tokens; models pad their vocabulary.
Result<int64_t> ValidIds(const fs::path& bundle, const bundle::Manifest& manifest) {
  if (manifest.tokenizer.empty()) return manifest.model.vocab_size;
  HEXPORT_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(bundle / manifest.tokenizer));
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(json);
  if (!tokenizer.ok())
    return tokenizer.status().WithContext((bundle / manifest.tokenizer).string());
  return std::min<int64_t>(manifest.model.vocab_size, (*tokenizer)->vocab_size());
}

}  // namespace

Result<EngineKind> ParseEngineKind(std::string_view text) {
  if (text == "cpu") return EngineKind::kCpu;
  if (text == "qdq") return EngineKind::kQdq;
  if (text == "emulator") return EngineKind::kEmulator;
  return InvalidArgument("engine: expected cpu, qdq or emulator, got \"" + std::string(text) +
                         "\"");
}

Result<std::unique_ptr<Session>> Session::Create(const fs::path& bundle, EngineKind kind) {
  HEXPORT_ASSIGN_OR_RETURN(bundle::Manifest manifest, bundle::OpenBundle(bundle, /*hash=*/false));
  HEXPORT_ASSIGN_OR_RETURN(const int64_t valid_ids, ValidIds(bundle, manifest));
  HEXPORT_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<GraphRunner>> runners,
                           OpenRunners(bundle, manifest, kind));
  KvCache::Geometry geometry;
  geometry.layers = manifest.model.num_hidden_layers;
  geometry.num_key_value_heads = manifest.model.num_key_value_heads;
  geometry.head_dim = manifest.model.head_dim;
  geometry.context_length = manifest.context_length;
  geometry.dtype = runners[0]->cache_dtype();
  HEXPORT_ASSIGN_OR_RETURN(KvCache cache, KvCache::Create(geometry));
  return std::unique_ptr<Session>(std::make_unique<BundleSession>(
      std::move(manifest), valid_ids, std::move(runners), std::move(cache)));
}

}  // namespace hexport::runtime
