// Rotary position embeddings (RoPE, arXiv:2104.09864): frequencies and the tables of cosines and
// sines. One place for the float graphs' reference and for the runtime, which must agree to the
// last bit.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hexport {

// How a model stretches its positions. The fields are transformers' (ROPE_INIT_FUNCTIONS).
struct RopeScaling {
  enum class Type {
    kNone,
    kLinear,    // frequencies / factor
    kLlama3,    // Llama 3.1: long waves / factor, short ones kept, those between blended
    kYarn,      // arXiv:2309.00071: blended by the number of turns within the original length
    kLongrope,  // arXiv:2402.13753: a divisor for each pair, one set for short, one for long
                // contexts
  };
  Type type = Type::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;  // kLlama3
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;  // kLlama3, kYarn, kLongrope
  double attention_factor = 1.0;  // cosines and sines are multiplied by it; kYarn, kLongrope
  double beta_fast = 32.0;        // kYarn: turns at which blending begins and ends
  double beta_slow = 1.0;
  bool truncate = true;                               // kYarn: the ramp's ends are whole numbers
  std::vector<double> short_factor{}, long_factor{};  // kLongrope: [rotary_dim / 2]
};

// "none", "linear", "llama3", "yarn", "longrope".
std::string_view RopeTypeName(RopeScaling::Type type);

struct RopeParameters {
  double rope_theta = 10000.0;
  int64_t rotary_dim = 0;  // elements of a head that turn, the first ones; even
  RopeScaling scaling;
};

// Radians a position of the rotary_dim / 2 pairs. `context_length`: the longest text that the graph
// takes; beyond original_max_position_embeddings kLongrope uses long_factor, as transformers does
// for a text of that length. Other types do not look at it.
std::vector<double> InverseFrequencies(const RopeParameters& rope, int64_t context_length);

// cos and sin for positions [first, first + count), times `attention_factor`: each becomes
// [count, frequencies.size()] row-major. Phases are computed in double and rounded once.
void RopeTable(std::span<const double> frequencies, double attention_factor, int64_t first,
               int64_t count, std::vector<float>& cos, std::vector<float>& sin);

}  // namespace hexport
