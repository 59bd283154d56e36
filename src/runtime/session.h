// A conversation with a bundle: prefill in chunks, then decode.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bundle/manifest.h"
#include "runtime/sampler.h"

namespace hexport::runtime {

// kCpu: cpu/model.onnx (MatMulNBits), float caches. kQdq: the NPU's graphs on ONNX Runtime's CPU, 8
// bit caches. kEmulator: the plain context binaries on Qualcomm's HTP emulator; loads vendor code
// into THIS process, so apps do it in a child.
enum class EngineKind { kCpu, kQdq, kEmulator };
Result<EngineKind> ParseEngineKind(std::string_view text);

struct GenerateOptions {
  int64_t max_tokens = 256;
  SamplingOptions sampling;
  std::vector<int64_t> stop_token_ids;  // empty: the manifest's eos_token_ids
};

struct GeneratedToken {
  int32_t id = 0;
  float margin = 0;  // best minus second-best logit at this step
};

struct GenerateResult {
  std::vector<GeneratedToken> tokens;              // without the stop token
  std::string finish_reason;                       // "stop", "length" or "cancelled"
  double prefill_seconds = 0, decode_seconds = 0;  // of this PC; never a phone's
};

// Works on ids; text is the caller's business. Not thread-safe.
class Session {
 public:
  // Errors: OpenBundle's, ort::Session's, kFailedPrecondition when the bundle has no graphs for the
  // engine.
  static Result<std::unique_ptr<Session>> Create(const std::filesystem::path& bundle,
                                                 EngineKind kind);
  virtual ~Session() = default;
  // Answers as if from an empty cache; tokens that the last prompt and answer begin with are not
  // run again. on_token may be empty; returning false stops with finish_reason "cancelled". Prompt
  // and answer together hold at most context_length tokens; a full context ends the answer with
  // "length". Errors: kInvalidArgument (empty prompt, id outside the vocabulary),
  // kResourceExhausted when the prompt does not leave room for one token (both numbers).
  virtual Result<GenerateResult> Generate(
      std::span<const int32_t> prompt, const GenerateOptions& options,
      const std::function<bool(const GeneratedToken&)>& on_token) = 0;
  // Float logits of every position, [ids.size(), vocab_size] row-major, from an empty cache, in
  // chunks of the prompt AR. Up to context_length ids. Errors: as for Generate.
  virtual Result<std::vector<float>> Logits(std::span<const int32_t> ids) = 0;
  virtual const bundle::Manifest& manifest() const = 0;
};

}  // namespace hexport::runtime
