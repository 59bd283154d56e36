#include "adapter/adapter_keys.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace hexport::adapter {
namespace {

// What torch.compile, FSDP and activation checkpointing wrap modules in; no part of their names.
constexpr std::array kWrappers{std::string_view("_orig_mod"),
                               std::string_view("_fsdp_wrapped_module"),
                               std::string_view("_checkpoint_wrapped_module")};

std::vector<std::string_view> Segments(std::string_view key) {
  std::vector<std::string_view> segments;
  for (;;) {
    const size_t dot = key.find('.');
    const std::string_view segment = key.substr(0, dot);
    if (std::find(kWrappers.begin(), kWrappers.end(), segment) == kWrappers.end()) {
      segments.push_back(segment);
    }
    if (dot == std::string_view::npos) return segments;
    key.remove_prefix(dot + 1);
  }
}

std::string Join(const std::vector<std::string_view>& segments, size_t first, size_t last) {
  std::string text;
  for (size_t i = first; i < last; ++i) {
    if (i > first) text += '.';
    text += segments[i];
  }
  return text;
}

bool IsParameter(std::string_view name) { return name == "weight" || name == "bias"; }

struct Marker {
  std::string_view name;
  TensorRole role;
  bool is_module;  // a module with a "weight"; else a bare parameter
};
constexpr std::array kMarkers{
    Marker{"lora_A", TensorRole::kLoraA, true},
    Marker{"lora_B", TensorRole::kLoraB, true},
    Marker{"lora_embedding_A", TensorRole::kEmbeddingA, false},
    Marker{"lora_embedding_B", TensorRole::kEmbeddingB, false},
    Marker{"lora_magnitude_vector", TensorRole::kMagnitude, false},
};

// What follows a marker: [adapter name] [weight or bias].
void ParseLora(const Marker& marker, const std::vector<std::string_view>& segments, size_t at,
               ParsedKey& parsed) {
  std::vector<std::string_view> rest(segments.begin() + static_cast<ptrdiff_t>(at) + 1,
                                     segments.end());
  std::string_view parameter = "weight";
  if (!rest.empty() && IsParameter(rest.back())) {
    parameter = rest.back();
    rest.pop_back();
  } else if (marker.is_module) {
    return;
  }
  if (rest.size() > 1) return;
  if (parameter == "bias" && marker.role != TensorRole::kLoraB) return;
  parsed.role = parameter == "bias" ? TensorRole::kLoraBias : marker.role;
  parsed.module = Join(segments, 0, at);
  if (!rest.empty()) parsed.adapter_name = rest[0];
}

// <module>.token_adapter.trainable_tokens_delta[.<adapter name>]
void ParseTokenRows(const std::vector<std::string_view>& segments, size_t at, ParsedKey& parsed) {
  if (segments.size() > at + 2) return;
  parsed.role = TensorRole::kTokenRows;
  const bool wrapped = at > 0 && segments[at - 1] == "token_adapter";
  parsed.module = Join(segments, 0, wrapped ? at - 1 : at);
  if (segments.size() == at + 2) parsed.adapter_name = segments[at + 1];
}

// A parameter saved whole: <module>[.base_layer].weight, or
// <module>.modules_to_save[.<adapter name>][.<submodule>].weight.
void ParseWhole(std::vector<std::string_view> segments, ParsedKey& parsed) {
  if (segments.size() < 2 || !IsParameter(segments.back())) return;
  const auto saved = std::find(segments.begin(), segments.end(), "modules_to_save");
  if (saved != segments.end()) {
    parsed.saved_module = true;
    const auto rest = segments.end() - saved - 1;
    if (rest > 1) {
      parsed.adapter_name = *(saved + 1);
      segments.erase(saved, saved + 2);
    } else {
      segments.erase(saved);
    }
  }
  const auto original = std::find(segments.begin(), segments.end(), "original_module");
  if (original != segments.end()) {
    parsed.base_copy = true;
    segments.erase(original);
  }
  segments.erase(std::remove(segments.begin(), segments.end(), "base_layer"), segments.end());
  if (segments.size() < 2) return;
  parsed.role = TensorRole::kWhole;
  parsed.module = Join(segments, 0, segments.size() - 1);
  parsed.parameter = segments.back();
}

}  // namespace

ParsedKey ParseKey(std::string_view key) {
  std::vector<std::string_view> segments = Segments(key);
  if (segments.size() > 2 && segments[0] == "base_model" && segments[1] == "model") {
    segments.erase(segments.begin(), segments.begin() + 2);
  }
  ParsedKey parsed;
  for (size_t at = 1; at < segments.size(); ++at) {
    for (const Marker& marker : kMarkers) {
      if (segments[at] != marker.name) continue;
      ParseLora(marker, segments, at, parsed);
      return parsed;
    }
    if (segments[at] == "trainable_tokens_delta") {
      ParseTokenRows(segments, at, parsed);
      return parsed;
    }
    // Other inventions of PEFT (lora_diag, lora_E, ...) are no weights of the base.
    if (segments[at].starts_with("lora_") || segments[at] == "trainable_tokens_original") {
      return parsed;
    }
  }
  ParseWhole(segments, parsed);
  return parsed;
}

}  // namespace hexport::adapter
