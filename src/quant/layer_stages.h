// A decoder layer cut at the inputs of its linears. Each group of linears that read one input can
// be quantized before anything that follows it is computed, so that later groups see what the
// quantized ones give; together the stages cost one run of the layer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "decoder/decoder.h"
#include "ort/session.h"
#include "quant/sample_tensors.h"

namespace hexport::quant {

class LayerStages {
 public:
  // Linears that read one activation.
  struct Group {
    std::string input;  // the activation, [1, tokens, in_features]
    std::vector<decoder::LinearWeight> linears;
    std::string residual;  // what the linear's output is added to; "" when it is not
  };

  struct Options {
    int64_t context_length = 0;  // as in WalkOptions
    // The checkpoint's own weights all the way: the last group's run goes on to the end of the
    // layer, so that its input need not be kept.
    bool own_weights = false;
  };
  // `hidden`: the residual stream that enters the layer, [1, tokens, hidden_size] a sample; it is
  // consumed. Checkpoint and budget must outlive this. Errors: those of building the graphs.
  static Result<std::unique_ptr<LayerStages>> Create(const Checkpoint& checkpoint, int64_t layer,
                                                     const Options& options, SampleTensors hidden,
                                                     SpillBudget& budget);

  const std::vector<Group>& groups() const { return groups_; }
  // The weight that later stages compute with, [in_features, out_features] row-major. Without one
  // the checkpoint's is read when it is first needed.
  void SetWeight(const std::string& name, std::vector<float> values);

  // Groups come in order: open the next one, run every sample up to its input, close it. The
  // weights of the groups before must be set (or are the checkpoint's). Errors: those of running;
  // kFailedPrecondition after the last group.
  Status OpenGroup();
  // [tokens, in_features] row-major, the group's input for one sample; valid until the next call.
  Result<std::span<const float>> Run(size_t sample);
  void CloseGroup();
  // [tokens, hidden_size]: the residual that the open group's linears are added to (Group::residual
  // is not empty). `scratch` as in SampleTensors::Get.
  Result<std::span<const float>> Residual(size_t sample, std::vector<float>& scratch) const;
  // After the last group: the residual stream that leaves the layer.
  Result<SampleTensors> Finish();

 private:
  // Nodes that are run together, what they read from the sample, and what they leave for later.
  struct Stage {
    graph::Graph graph;
    std::vector<std::string> reads;    // of the state
    std::vector<std::string> weights;  // linears, as graph inputs
    std::vector<std::string> writes;   // graph outputs, the target first
    bool keep_target = true;           // a later stage reads the target
  };
  LayerStages(const Checkpoint& checkpoint, const Options& options, SpillBudget& budget)
      : checkpoint_(checkpoint), options_(options), budget_(budget) {}
  void FindGroups();
  std::string ResidualOf(const std::string& value) const;
  Status Cut();
  Status CutStage(const std::vector<std::string>& targets, std::set<size_t>& done);
  Status OpenStage();
  Status LoadWeights(const Stage& stage);

  const Checkpoint& checkpoint_;
  Options options_;
  SpillBudget& budget_;
  decoder::DecoderGraph decoder_;
  std::vector<Group> groups_;
  std::vector<Stage> stages_;  // one a group, and the last up to hidden_out
  size_t next_ = 0;            // the stage that is open, or is opened next
  std::map<std::string, SampleTensors> state_, written_;
  std::map<std::string, std::vector<float>> weights_;
  std::unique_ptr<ort::Session> session_;  // of the open stage
  std::vector<ort::Tensor> tensors_;       // of the last run
};

}  // namespace hexport::quant
