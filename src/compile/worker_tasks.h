// The tasks a worker child runs. Each takes the request object and returns the result object.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace hexport::compile {

using EventSink = std::function<void(const nlohmann::json&)>;

// "compile": {"models": [paths], "context_models": [paths], "soc_model", "htp_arch", "vtcm_mb",
// "share": bool,
//  "trace_dir"} -> {"binaries": [paths], "nodes": n}. One context binary per model, or one shared
//  by all.
// Errors: kUnimplemented naming the node that the NPU does not take.
Result<nlohmann::json> CompileTask(const nlohmann::json& request, const EventSink& event);

// "logits": {"bundle", "engine", "samples": [[ids]], "out"} -> {"tokens", "vocab_size"}. Float32
// rows of all samples one after the other go to the file `out`; an event {"done", "total"} after
// each sample.
Result<nlohmann::json> LogitsTask(const nlohmann::json& request, const EventSink& event);

// "generate": {"bundle", "engine", "prompt": [ids], "max_tokens", "temperature", "top_k", "top_p",
// "seed"} ->
// {"finish_reason", "prefill_seconds", "decode_seconds"}; an event {"id", "margin"} per token.
Result<nlohmann::json> GenerateTask(const nlohmann::json& request, const EventSink& event);

// "genie": {"config": text, "prompt": text} -> {}; an event {"bytes": [0..255], "code"} per
// piece (bytes, because Genie may cut a character in two).
Result<nlohmann::json> GenieTask(const nlohmann::json& request, const EventSink& event);

}  // namespace hexport::compile
