#include "checkpoint/rope_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>

namespace hexport::checkpoint {
namespace {

using nlohmann::json;
using Type = RopeScaling::Type;

// Every key that some rope type has; a type does not look at another's. "finetuned" is a remark of
// old YaRN files.
constexpr std::array<std::string_view, 18> kRopeKeys = {"type",
                                                        "rope_type",
                                                        "rope_theta",
                                                        "partial_rotary_factor",
                                                        "factor",
                                                        "low_freq_factor",
                                                        "high_freq_factor",
                                                        "original_max_position_embeddings",
                                                        "attention_factor",
                                                        "mscale",
                                                        "mscale_all_dim",
                                                        "beta_fast",
                                                        "beta_slow",
                                                        "truncate",
                                                        "short_factor",
                                                        "long_factor",
                                                        "finetuned",
                                                        "max_position_embeddings"};

Status UnknownKeys(const JsonFields& rope) {
  for (const auto& item : rope.object().items()) {
    if (std::find(kRopeKeys.begin(), kRopeKeys.end(), item.key()) != kRopeKeys.end()) continue;
    if (item.value().is_null() || item.value() == json(false)) continue;
    return Unimplemented(rope.where() + ": " + item.key() + ": expected no such field, got " +
                         Excerpt(item.value()) + "; hexport does not know this kind of RoPE");
  }
  return OkStatus();
}

Result<std::vector<double>> Factors(const JsonFields& rope, std::string_view name) {
  const json* list = rope.Find(name);
  if (list == nullptr || !list->is_array()) return rope.Mismatch(name, "a list of numbers");
  std::vector<double> factors;
  for (const json& value : *list) {
    if (!value.is_number()) return rope.Mismatch(name, "a list of numbers");
    factors.push_back(value.get<double>());
  }
  return factors;
}

class RopeParser {
 public:
  RopeParser(const JsonFields& fields, const RopeDefaults& defaults, const ModelConfig& config)
      : fields_(fields), defaults_(defaults), config_(config) {}

  // `rope` is one flat set of parameters; `theta` stands for an absent rope_theta.
  Result<RopeParameters> Parse(const JsonFields& rope, double theta, double rotary) const {
    HEXPORT_RETURN_IF_ERROR(UnknownKeys(rope));
    RopeParameters out;
    HEXPORT_ASSIGN_OR_RETURN(out.rope_theta, rope.Number("rope_theta", theta));
    HEXPORT_ASSIGN_OR_RETURN(rotary, rope.Number("partial_rotary_factor", rotary));
    if (rotary != 1.0 && !defaults_.partial_rotary) {
      return Unimplemented(rope.where() + ": partial_rotary_factor: expected 1 for " +
                           config_.architecture + ", got " + std::to_string(rotary));
    }
    if (!(rotary > 0.0 && rotary <= 1.0)) {
      return InvalidArgument(rope.where() +
                             ": partial_rotary_factor: expected above 0 and up to 1, got " +
                             std::to_string(rotary));
    }
    // ValidateConfig names a head_dim out of bounds; here it must not overflow.
    const int64_t head_dim = std::clamp<int64_t>(config_.head_dim, 0, 1 << 20);
    out.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * rotary);
    HEXPORT_RETURN_IF_ERROR(ParseType(rope, out.scaling));
    return out;
  }

 private:
  Status ParseType(const JsonFields& rope, RopeScaling& scaling) const {
    HEXPORT_ASSIGN_OR_RETURN(const std::string old_spelling, rope.String("type", "default"));
    HEXPORT_ASSIGN_OR_RETURN(std::string type, rope.String("rope_type", old_spelling));
    const bool phi = defaults_.original_max_position_embeddings > 0;
    if (phi && (type == "su" || type == "yarn")) type = "longrope";
    if (type == "default" || type == "none") return OkStatus();
    if (type == "dynamic") return rope.Number("factor").status();
    if (type == "linear") {
      scaling.type = Type::kLinear;
      HEXPORT_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor"));
      return OkStatus();
    }
    if (type != "llama3" && type != "yarn" && type != "longrope") {
      return Unimplemented(
          rope.where() +
          ": rope_type: expected default, linear, dynamic, llama3, yarn or longrope, got " + type);
    }
    HEXPORT_ASSIGN_OR_RETURN(scaling.original_max_position_embeddings, OriginalLength(rope));
    if (type == "llama3") return ParseLlama3(rope, scaling);
    return type == "yarn" ? ParseYarn(rope, scaling) : ParseLongrope(rope, scaling);
  }

  // The length of pretraining. Outside Phi-3 transformers looks into the object alone; a field
  // beside it that says something else is a sign of a file that was meant otherwise.
  Result<int64_t> OriginalLength(const JsonFields& rope) const {
    static constexpr std::string_view kName = "original_max_position_embeddings";
    if (defaults_.original_max_position_embeddings > 0)
      return fields_.Int(kName, defaults_.original_max_position_embeddings);
    HEXPORT_ASSIGN_OR_RETURN(const int64_t length,
                             rope.Int(kName, config_.max_position_embeddings));
    HEXPORT_ASSIGN_OR_RETURN(const int64_t beside, fields_.Int(kName, length));
    if (beside != length) {
      return Unimplemented(fields_.where() + ": " + std::string(kName) + ": expected " +
                           std::to_string(length) + " as for RoPE, got " + std::to_string(beside) +
                           "; write the right one into " + rope.where());
    }
    return length;
  }

  static Status ParseLlama3(const JsonFields& rope, RopeScaling& scaling) {
    scaling.type = Type::kLlama3;
    HEXPORT_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor"));
    HEXPORT_ASSIGN_OR_RETURN(scaling.low_freq_factor, rope.Number("low_freq_factor"));
    HEXPORT_ASSIGN_OR_RETURN(scaling.high_freq_factor, rope.Number("high_freq_factor"));
    return OkStatus();
  }

  // The factor, or how much longer max_position_embeddings is than the original.
  Result<double> Stretch(const JsonFields& rope, const RopeScaling& scaling) const {
    if (scaling.original_max_position_embeddings < 1) return 1.0;  // ValidateConfig names it
    return rope.Number("factor", static_cast<double>(config_.max_position_embeddings) /
                                     static_cast<double>(scaling.original_max_position_embeddings));
  }

  Status ParseYarn(const JsonFields& rope, RopeScaling& scaling) const {
    scaling.type = Type::kYarn;
    HEXPORT_ASSIGN_OR_RETURN(scaling.factor, Stretch(rope, scaling));
    HEXPORT_ASSIGN_OR_RETURN(scaling.beta_fast, rope.Number("beta_fast", 32.0));
    HEXPORT_ASSIGN_OR_RETURN(scaling.beta_slow, rope.Number("beta_slow", 1.0));
    // transformers takes 0 as absent
    if (scaling.beta_fast == 0.0) scaling.beta_fast = 32.0;
    if (scaling.beta_slow == 0.0) scaling.beta_slow = 1.0;
    HEXPORT_ASSIGN_OR_RETURN(scaling.truncate, rope.Bool("truncate", true));
    HEXPORT_ASSIGN_OR_RETURN(const double mscale, rope.Number("mscale", 0.0));
    HEXPORT_ASSIGN_OR_RETURN(const double mscale_all_dim, rope.Number("mscale_all_dim", 0.0));
    HEXPORT_ASSIGN_OR_RETURN(
        scaling.attention_factor,
        rope.Number("attention_factor",
                    DefaultYarnAttentionFactor(scaling.factor, mscale, mscale_all_dim)));
    return OkStatus();
  }

  Status ParseLongrope(const JsonFields& rope, RopeScaling& scaling) const {
    scaling.type = Type::kLongrope;
    HEXPORT_ASSIGN_OR_RETURN(scaling.factor, Stretch(rope, scaling));
    HEXPORT_ASSIGN_OR_RETURN(scaling.short_factor, Factors(rope, "short_factor"));
    HEXPORT_ASSIGN_OR_RETURN(scaling.long_factor, Factors(rope, "long_factor"));
    HEXPORT_ASSIGN_OR_RETURN(
        scaling.attention_factor,
        rope.Number("attention_factor",
                    DefaultLongropeAttentionFactor(scaling.factor,
                                                   scaling.original_max_position_embeddings)));
    return OkStatus();
  }

  const JsonFields& fields_;
  const RopeDefaults& defaults_;
  const ModelConfig& config_;
};

bool SameRope(const RopeParameters& a, const RopeParameters& b) {
  return a.rope_theta == b.rope_theta && a.rotary_dim == b.rotary_dim &&
         a.scaling.type == b.scaling.type && a.scaling.factor == b.scaling.factor &&
         a.scaling.attention_factor == b.scaling.attention_factor;
}

// rope_scaling or rope_parameters, whichever is there and not empty; null when neither is.
Result<const json*> RopeObject(const JsonFields& fields, std::string_view& name) {
  const json* found = nullptr;
  for (const char* candidate : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.Find(candidate);
    if (object == nullptr) continue;
    if (!object->is_object()) return fields.Mismatch(candidate, "an object");
    if (object->empty()) continue;
    if (found != nullptr && *found != *object) {
      return Unimplemented(fields.where() +
                           ": rope_scaling and rope_parameters: expected one of them, got two that "
                           "differ");
    }
    found = object;
    name = candidate;
  }
  return found;
}

bool IsByLayerType(const json& object) {
  return std::any_of(object.begin(), object.end(),
                     [](const json& value) { return value.is_object(); });
}

// Gemma 3: rope_scaling is the full layers' alone; transformers 5 nests by layer type. Splits
// `rope` into the parameters of full and of sliding layers.
Status SplitByLayerType(const json& rope, const std::string& where, json& full, json& sliding) {
  for (const auto& item : rope.items()) {
    if (item.value().is_null()) continue;
    if (item.value().is_object() && item.key() == "full_attention") {
      full = item.value();
    } else if (item.value().is_object() && item.key() == "sliding_attention") {
      sliding = item.value();
    } else {
      return Unimplemented(where + ": " + item.key() +
                           ": expected full_attention and sliding_attention, got " +
                           Excerpt(item.value()));
    }
  }
  return OkStatus();
}

}  // namespace

double DefaultYarnAttentionFactor(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [factor](double weight) {
    return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
  };
  if (mscale != 0.0 && mscale_all_dim != 0.0) return scale(mscale) / scale(mscale_all_dim);
  return scale(1.0);
}

double DefaultLongropeAttentionFactor(double factor, int64_t original_length) {
  if (factor <= 1.0 || original_length < 2) return 1.0;
  return std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(original_length)));
}

Status ParseRope(const JsonFields& fields, const RopeDefaults& defaults, ModelConfig& config) {
  HEXPORT_ASSIGN_OR_RETURN(const double theta, fields.Number("rope_theta", defaults.rope_theta));
  HEXPORT_ASSIGN_OR_RETURN(const double rotary, fields.Number("partial_rotary_factor", 1.0));
  std::string_view name = "rope_scaling";
  HEXPORT_ASSIGN_OR_RETURN(const json* object, RopeObject(fields, name));
  const json rope = object == nullptr ? json::object() : *object;
  const std::string where = fields.where() + ": " + std::string(name);
  const RopeParser parser(fields, defaults, config);
  if (defaults.rope_local_base_freq <= 0.0) {
    if (IsByLayerType(rope)) {
      return Unimplemented(where + ": expected one set of parameters for all layers, got " +
                           Excerpt(rope));
    }
    HEXPORT_ASSIGN_OR_RETURN(config.rope, parser.Parse(JsonFields(rope, where), theta, rotary));
    return OkStatus();
  }
  HEXPORT_ASSIGN_OR_RETURN(const double local_theta,
                           fields.Number("rope_local_base_freq", defaults.rope_local_base_freq));
  json full = json::object(), sliding = json::object();
  if (name == "rope_parameters" || IsByLayerType(rope)) {
    HEXPORT_RETURN_IF_ERROR(SplitByLayerType(rope, where, full, sliding));
  } else {
    full = rope;
  }
  HEXPORT_ASSIGN_OR_RETURN(
      config.rope, parser.Parse(JsonFields(full, where + ": full_attention"), theta, rotary));
  HEXPORT_ASSIGN_OR_RETURN(
      const RopeParameters local,
      parser.Parse(JsonFields(sliding, where + ": sliding_attention"), local_theta, rotary));
  if (!SameRope(local, config.rope)) config.local_rope = local;
  return OkStatus();
}

}  // namespace hexport::checkpoint
