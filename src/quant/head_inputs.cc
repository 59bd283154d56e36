#include "quant/head_inputs.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>

#include "quant/linear_algebra.h"
#include "quant/observer.h"
#include "quant/part_runner.h"

namespace hexport::quant {
namespace {

// The activation that the output projection multiplies, by its name in the whole graph.
Result<std::string> InputOf(const PartRunner& head) {
  const std::string& linear = head.decoder().linears.front().name;
  for (const graph::Node& node : head.decoder().graph.nodes) {
    if (node.inputs.size() > 1 && node.inputs[1] == linear) return head.FullName(node.inputs[0]);
  }
  return Internal("head graph: expected a node that reads " + linear);
}

class Inputs {
 public:
  // The values of one sample, [tokens, hidden_size]; valid until the next call.
  Result<std::span<const float>> Of(PartRunner& head, const std::string& name,
                                    const SampleTensors& states, size_t sample) {
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> hidden, states.Get(sample, scratch_));
    HEXPORT_ASSIGN_OR_RETURN(result_, head.Run(sample, hidden));
    for (const ActivationView& view : result_.activations) {
      if (view.name != name) continue;
      HEXPORT_RETURN_IF_ERROR(CheckFinite(view));
      return view.values;
    }
    return Internal("head graph: expected the activation " + name);
  }

 private:
  std::vector<float> scratch_;
  PartResult result_;
};

}  // namespace

Result<HeadInputs> CollectHeadInputs(const Checkpoint& checkpoint, const SampleTensors& states,
                                     const SampleTensors& float_states) {
  const auto width = static_cast<size_t>(checkpoint.config().hidden_size);
  PartOptions options;
  options.every_activation = true;
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<PartRunner> head,
                           PartRunner::OpenHead(checkpoint, options));
  HEXPORT_RETURN_IF_ERROR(head->Load(0));  // all but the logits come with the first piece
  HEXPORT_ASSIGN_OR_RETURN(const std::string name, InputOf(*head));
  HeadInputs out;
  out.hessian.assign(width * width, 0.0f);
  if (float_states.size() != 0) out.cross.assign(width * width, 0.0f);
  Inputs inputs, float_inputs;
  for (size_t s = 0; s < states.size(); ++s) {
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> rows, inputs.Of(*head, name, states, s));
    AddGram(rows, width, out.hessian);
    if (out.cross.empty()) continue;
    HEXPORT_ASSIGN_OR_RETURN(const std::span<const float> float_rows,
                             float_inputs.Of(*head, name, float_states, s));
    std::vector<float> difference(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) difference[i] = float_rows[i] - rows[i];
    AddCross(rows, width, difference, width, out.cross);
  }
  Symmetrize(out.hessian, width);
  return out;
}

}  // namespace hexport::quant
