#include "bundle/genie_config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace hexport::bundle {
namespace {

// Genie puts its bos-token before every prompt. Prompts here are rendered by the chat template,
// which writes the one that the model wants: a second would change the answers.
constexpr int kNoBosToken = -1;

using nlohmann::ordered_json;

constexpr int64_t kMaxGenieInt =
    std::numeric_limits<int32_t>::max();  // Genie's schema refuses larger ones

std::string Dump(const ordered_json& value) {
  return value.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Status CheckRopeTheta(double theta) {
  if (theta >= 1 && theta <= static_cast<double>(kMaxGenieInt) && theta == std::floor(theta))
    return OkStatus();
  return InvalidArgument("Genie config: rope_theta: expected an integer from 1 to " +
                         std::to_string(kMaxGenieInt) + ", got " + std::to_string(theta) +
                         "; Genie cannot run this model, hexport's own runtime can");
}

constexpr const char* kOwnRuntime = "; Genie cannot run this model, hexport's own runtime can";

// Genie fills one mask and one pair of tables.
Status CheckInputs(const Manifest& manifest) {
  for (const GraphEntry& graph : manifest.graphs) {
    for (const IoEncoding& input : graph.inputs) {
      if (input.name != "sliding_attention_mask" && !input.name.starts_with("local_")) continue;
      return Unimplemented(
          "Genie config: " + graph.name + ": input " + input.name +
          ": expected attention_mask, position_ids_cos and position_ids_sin alone" + kOwnRuntime);
    }
  }
  const size_t turned = 2 * manifest.model.rope_frequencies.size();
  if (turned == 0 || static_cast<int64_t>(turned) == manifest.model.head_dim) return OkStatus();
  return Unimplemented("Genie config: RoPE over " + std::to_string(turned) +
                       " elements of a head: expected head_dim " +
                       std::to_string(manifest.model.head_dim) + kOwnRuntime);
}

// Empty for "none".
Result<ordered_json> PositionalEncoding(const ModelFacts& model) {
  ordered_json scaling;
  if (model.rope_scaling == "none") return ordered_json();
  if (model.rope_scaling == "linear") {
    scaling = {{"rope-type", "linear"}, {"factor", model.rope_factor}};
  } else if (model.rope_scaling == "llama3") {
    scaling = {{"rope-type", "llama3"},
               {"factor", model.rope_factor},
               {"low-freq-factor", model.rope_low_freq_factor},
               {"high-freq-factor", model.rope_high_freq_factor},
               {"original-max-position-embeddings", model.rope_original_max_position_embeddings}};
  } else {
    return Unimplemented("Genie config: rope_scaling: expected none, linear or llama3, got \"" +
                         model.rope_scaling + "\"" + kOwnRuntime);
  }
  return ordered_json{{"type", "rope"},
                      {"rope-dim", model.head_dim / 2},
                      {"rope-theta", static_cast<int64_t>(model.rope_theta)},
                      {"rope-scaling", scaling}};
}

ordered_json Context(const Manifest& manifest) {
  const std::vector<int64_t>& eos = manifest.model.eos_token_ids;
  ordered_json out = {{"version", 1},
                      {"size", manifest.context_length},
                      {"n-vocab", manifest.model.vocab_size},
                      {"bos-token", kNoBosToken}};
  if (eos.empty()) {
    out["eos-token"] = -1;  // the field is mandatory
  } else if (eos.size() == 1) {
    out["eos-token"] = eos[0];
  } else {
    out["eos-token"] = eos;
  }
  return out;
}

ordered_json Sampler(const GenieOptions& options) {
  const bool greedy = options.temperature <= 0;
  ordered_json out = {{"version", 1},
                      {"seed", options.seed & kMaxGenieInt},
                      {"temp", greedy ? 1.0 : options.temperature},
                      {"top-k", greedy ? int64_t{1} : options.top_k},
                      {"top-p", greedy ? 1.0 : options.top_p}};
  if (greedy) out["greedy"] = true;
  return out;
}

ordered_json Backend(const Manifest& manifest, const GenieOptions& options, bool plain_rope) {
  ordered_json htp = {{"version", 1},
                      {"use-mmap", !options.emulator},
                      {"spill-fill-bufsize", 0},
                      {"mmap-budget", 0},
                      {"poll", !options.emulator},
                      {"cpu-mask", options.emulator ? "0x3" : "0xe0"},
                      {"kv-dim", manifest.model.head_dim}};
  if (plain_rope) {
    htp["pos-id-dim"] = manifest.model.head_dim / 2;
    htp["rope-theta"] = static_cast<int64_t>(manifest.model.rope_theta);
  }
  htp["allow-async-init"] = false;
  return {
      {"version", 1}, {"type", "QnnHtp"}, {"extensions", options.extensions_path}, {"QnnHtp", htp}};
}

}  // namespace

Status CheckGenie(const Manifest& manifest) {
  HEXPORT_RETURN_IF_ERROR(CheckInputs(manifest));
  HEXPORT_RETURN_IF_ERROR(PositionalEncoding(manifest.model).status());
  return CheckRopeTheta(manifest.model.rope_theta);
}

Result<std::string> GenieConfigJson(const Manifest& manifest, const GenieOptions& options) {
  try {
    if (options.binaries.empty()) {
      return InvalidArgument(
          "Genie config: ctx-bins: expected at least one context binary, got none");
    }
    HEXPORT_RETURN_IF_ERROR(CheckGenie(manifest));
    HEXPORT_ASSIGN_OR_RETURN(const ordered_json positions, PositionalEncoding(manifest.model));
    ordered_json model = {{"version", 1},
                          {"type", "binary"},
                          {"binary", {{"version", 1}, {"ctx-bins", options.binaries}}}};
    if (!positions.is_null()) model["positional-encoding"] = positions;
    ordered_json dialog = {{"version", 1},
                           {"type", "basic"},
                           {"max-num-tokens", options.max_tokens},
                           {"context", Context(manifest)},
                           {"sampler", Sampler(options)},
                           {"tokenizer", {{"version", 1}, {"path", options.tokenizer_path}}},
                           {"engine",
                            {{"version", 1},
                             {"n-threads", options.emulator ? 2 : 3},
                             {"backend", Backend(manifest, options, positions.is_null())},
                             {"model", model}}}};
    return Dump({{"dialog", dialog}});
  } catch (const std::exception& error) {  // json's own, or out of memory
    return Internal(std::string("Genie config: ") + error.what());
  }
}

std::string BackendConfigJson(int soc_model, int htp_arch, bool emulator) {
  ordered_json core = {{"core_id", 0}, {"perf_profile", "burst"}, {"rpc_control_latency", 100}};
  ordered_json device = {{"soc_model", soc_model}, {"dsp_arch", "v" + std::to_string(htp_arch)}};
  device["cores"] = ordered_json::array({core});
  ordered_json out;
  out["devices"] = ordered_json::array({device});
  if (!emulator) {
    out["memory"] = {{"mem_type", "shared_buffer"}};
    out["context"] = {{"weight_sharing_enabled", true}};
  }
  return Dump(out);
}

}  // namespace hexport::bundle
