// Float decoder graph + ranges + quantized weights -> the graphs that run.
#pragma once

#include <set>
#include <string>

#include "base/status.h"
#include "decoder/decoder.h"
#include "graph/graph.h"
#include "quant/encoding.h"
#include "quant/quant_config.h"
#include "quant/weights.h"

namespace hexport::quant {

struct QdqGraph {
  graph::Graph graph;
  EncodingMap io;                 // every quantized graph input and output
  EncodingMap activations;        // every activation, for reports and diagnosis
  EncodingMap constants;          // norm weights and biases
  std::set<std::string> float16;  // activations that a node reads or writes in float16
};

struct QdqOptions {
  QuantConfig config;  // widths of activations and caches, and what computes in float16
};

// Static-shape float graph -> QDQ graph for the NPU: activations u16, caches u8 symmetric
// (zero_point 128), softmax and sigmoid fixed to [0,1], data-moving ops share one encoding,
// RMSNormalization native, weights in the patterns that the QNN provider fuses. The config changes:
//   kv_bits 16           caches u16 symmetric (zero_point 32768)
//   activation_bits 8    every linear but lm_head reads and writes u8; all else stays u16
//   rules with bits 8    a linear that reads such an activation reads and writes u8; other readers
//                        get its 8 bit value in u16
//   float16              a norm or softmax between casts, or an activation that is not quantized
// The NPU has no operator between u8 and u16 but Convert (DQ -> Q), so widths change in those.
// `store` must outlive the graph. Errors: kInvalidArgument naming an activation without a range, or
// one that rules put into float16 where the NPU takes integers alone; kNotFound naming a weight
// that the store lacks.
Result<QdqGraph> BuildQdq(const decoder::DecoderGraph& graph, const RangeMap& ranges,
                          const WeightStore& store, const QdqOptions& options = {});

// Whether ranges and the whole graph's activations are the same set: kInvalidArgument naming the
// activations without a range and the ranges without an activation (a graph rewritten after
// calibration), with their numbers. Ranges of masks and tables that the graph does not read are
// let be.
Status CheckRanges(const decoder::DecoderGraph& graph, const RangeMap& ranges);

struct CpuOptions {
  // MatMulNBits quantizes its input to 8 bit blocks and multiplies integers (accuracy_level 4). For
  // SmolLM2 with int8 weights a token takes 0.02 s instead of 0.37 s; logit cosine .9992 instead of
  // .9996. The weights' codes are the same either way.
  bool int8_activations = false;
};

// Float graph -> CPU graph: every linear becomes com.microsoft:MatMulNBits (4 or 8 bits) with
// exactly the store's codes and scales; activations and caches stay float32. `store` must outlive
// the graph. Errors: kNotFound naming a weight that the store lacks.
Result<graph::Graph> BuildCpu(const decoder::DecoderGraph& graph, const WeightStore& store,
                              const CpuOptions& options = {});

}  // namespace hexport::quant
