#include "diagnose/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "diagnose/weight_check.h"
#include "quant/attention_scores.h"
#include "quant/layer_walker.h"
#include "quant/observer.h"

namespace hexport::diagnose {
namespace {

using quant::ActivationView;
using quant::PartResult;
using quant::PartRunner;

// Values of one tensor that are compared: all of them, or of scores those that queries see.
std::vector<float> Select(const ActivationView& view, const ActivationView& reference,
                          bool float16) {
  std::vector<float> out;
  const auto tokens = static_cast<size_t>(view.columns);
  if (view.scores == ActivationView::Scores::kNone) {
    out.assign(view.values.begin(), view.values.end());
  } else {
    quant::VisitVisible(reference, [&](size_t row, size_t first, size_t count) {
      const auto seen = reference.values.subspan(row * tokens + first, count);
      const float floor = *std::max_element(seen.begin(), seen.end()) - quant::kScoreDepth;
      for (const float value : view.values.subspan(row * tokens + first, count))
        out.push_back(std::isnan(value) ? value : std::max(value, floor));
    });
  }
  if (!float16) return out;
  for (float& value : out) {
    if (std::abs(static_cast<double>(value)) > quant::kLargestFloat16)
      value = std::copysign(std::numeric_limits<float>::infinity(), value);
  }
  return out;
}

// Sums over the samples of one activation.
struct Sums {
  AgreementSum own, inherited, encoded;
  double error = 0.0, clipped = 0.0;  // energies of what the encoding does
  std::vector<float> peaks;           // by channel
  quant::Histogram histogram;
};

void AddPeaks(std::span<const float> values, size_t columns, std::vector<float>& peaks) {
  peaks.resize(columns);
  for (size_t i = 0; i < values.size(); ++i)
    peaks[i % columns] = std::max(peaks[i % columns], std::abs(values[i]));
}

std::vector<float> Encode(std::span<const float> values, const quant::Encoding& encoding,
                          Sums& sums) {
  std::vector<uint16_t> codes(values.size());
  quant::QuantizeValues(values, encoding, codes);
  const int32_t last = (1 << encoding.bits) - 1;
  std::vector<float> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double scale = encoding.scale;
    out[i] = static_cast<float>((codes[i] - encoding.zero_point) * scale);
    const double error = static_cast<double>(values[i]) - static_cast<double>(out[i]);
    sums.error += error * error;
    if ((codes[i] == 0 || codes[i] == last) && std::abs(error) > 0.5 * scale)
      sums.clipped += error * error;
  }
  return out;
}

// The mean cosine and agreement on the best token need whole rows of logits, which come in pieces.
class LogitRows {
 public:
  explicit LogitRows(size_t rows) : rows_(rows) {}

  void Add(std::span<const float> expected, std::span<const float> got, size_t columns,
           int64_t first_column) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      for (size_t c = 0; c < columns; ++c) {
        const double e = expected[r * columns + c], g = got[r * columns + c];
        row.sum.AddOne(e, g);
        const int64_t token = first_column + static_cast<int64_t>(c);
        if (e > row.best_expected) row.best_expected = e, row.expected = token;
        if (g > row.best_got) row.best_got = g, row.got = token;
      }
    }
  }

  void AddTo(Measurement& out) const {
    for (const Row& row : rows_) {
      out.logits_cosine += row.sum.Get().cosine;
      if (row.expected == row.got) out.top1 += 1.0;
    }
  }

 private:
  struct Row {
    AgreementSum sum;
    double best_expected = -std::numeric_limits<double>::infinity();
    double best_got = best_expected;
    int64_t expected = -1, got = -2;
  };
  std::vector<Row> rows_;
};

class Measurer {
 public:
  Measurer(const Subject& subject, const std::vector<quant::TokenIds>& samples,
           std::string_view stage, Progress& progress)
      : subject_(subject),
        config_(subject.weights.config()),
        samples_(samples),
        stage_(stage),
        progress_(progress) {}

  Result<Measurement> Run() {
    HEXPORT_RETURN_IF_ERROR(quant::CheckSamples(samples_, config_.vocab_size));
    for (const quant::TokenIds& sample : samples_) {
      HEXPORT_ASSIGN_OR_RETURN(std::vector<float> hidden,
                               quant::EmbedSample(subject_.weights, sample));
      float_hidden_.push_back(hidden);
      quantized_hidden_.push_back(std::move(hidden));
      logits_.emplace_back(sample.size());
      out_.tokens += static_cast<int64_t>(sample.size());
    }
    out_.samples = static_cast<int64_t>(samples_.size());
    const int64_t layers = config_.num_hidden_layers;
    for (int64_t layer = 0; layer <= layers; ++layer) {
      progress_.Update(stage_, layer, layers + 1);
      HEXPORT_RETURN_IF_ERROR(RunPart(layer).WithContext(
          layer < layers ? "layer " + std::to_string(layer) : "output projection"));
    }
    progress_.Update(stage_, layers + 1, layers + 1);
    for (const LogitRows& rows : logits_) rows.AddTo(out_);
    out_.logits_cosine /= static_cast<double>(out_.tokens);
    out_.top1 /= static_cast<double>(out_.tokens);
    return std::move(out_);
  }

 private:
  Result<std::unique_ptr<PartRunner>> Open(int64_t layer, const quant::QuantizedParts* quantized) {
    quant::PartOptions options;
    options.every_activation = options.copies = true;
    options.context_length = subject_.context_length;
    options.quantized = quantized;
    return layer < config_.num_hidden_layers
               ? PartRunner::OpenLayer(subject_.weights, layer, options)
               : PartRunner::OpenHead(subject_.weights, options);
  }

  Status RunPart(int64_t layer) {
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<PartRunner> in_float, Open(layer, nullptr));
    HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<PartRunner> quantized,
                             Open(layer, &subject_.parts));
    HEXPORT_RETURN_IF_ERROR(AddReports(*in_float, *quantized, layer));
    if (layer == 0) MeasureEmbedding(*quantized);
    for (size_t piece = 0; piece < in_float->pieces(); ++piece) {
      HEXPORT_RETURN_IF_ERROR(in_float->Load(piece));
      HEXPORT_RETURN_IF_ERROR(quantized->Load(piece));
      for (size_t s = 0; s < samples_.size(); ++s)
        HEXPORT_RETURN_IF_ERROR(RunSample(*in_float, *quantized, s));
    }
    Finish();
    return OkStatus();
  }

  // Weights are checked here; the other reports wait for the samples.
  Status AddReports(const PartRunner& in_float, const PartRunner& quantized, int64_t layer) {
    sums_.clear();
    first_report_ = out_.tensors.size();
    std::map<std::string, TensorReport> weights;
    std::map<std::string, std::vector<double>> row_squares;
    for (const decoder::LinearWeight& linear : in_float.decoder().linears) {
      HEXPORT_ASSIGN_OR_RETURN(WeightCheck check,
                               CheckWeight(subject_.weights, linear, subject_.parts.store));
      row_squares[linear.name] = std::move(check.row_squares);
      TensorReport& report = weights[linear.name];
      report.tensor = linear.name;
      report.layer = layer;
      report.own = report.inherited = check.agreement;
      report.dead = std::move(check.dead);
    }
    HEXPORT_ASSIGN_OR_RETURN(auto by_value, ChannelWeights(in_float.decoder(), row_squares));
    channel_weights_.clear();
    std::map<std::string, std::string> in_part;
    for (const decoder::Activation& activation : in_float.decoder().activations)
      in_part[activation.name] = activation.value.name;
    for (auto& [name, squares] : by_value)
      channel_weights_[in_float.FullName(name)] = std::move(squares);
    if (layer == 0) AddEmbedding(in_float, quantized);
    for (PartTensor& tensor : TensorsOf(in_float)) {
      for (const std::string& input : tensor.inputs) {
        const auto weight = weights.find(input);
        if (weight == weights.end()) continue;
        weight->second.readers = {tensor.name};
        out_.tensors.push_back(weight->second);
      }
      TensorReport report;
      report.tensor = tensor.name;
      report.layer = layer;
      report.op_type = std::move(tensor.op_type);
      report.inputs = std::move(tensor.inputs);
      report.readers = std::move(tensor.readers);
      Describe(quantized, in_part.at(tensor.name), report);
      out_.tensors.push_back(std::move(report));
    }
    for (size_t i = first_report_; i < out_.tensors.size(); ++i)
      by_name_[out_.tensors[i].tensor] = i;
    return OkStatus();
  }

  static void Describe(const PartRunner& quantized, const std::string& name, TensorReport& report) {
    report.float16 = quantized.float16().contains(name);
    const auto encoding = quantized.encodings().find(name);
    if (encoding != quantized.encodings().end()) report.encoding = encoding->second;
  }

  void AddEmbedding(const PartRunner& in_float, const PartRunner& quantized) {
    TensorReport report;
    report.tensor = in_float.FullName("hidden_in");
    Describe(quantized, "hidden_in", report);
    out_.tensors.push_back(std::move(report));
  }

  void MeasureEmbedding(const PartRunner& quantized) {
    const std::string& name = quantized.FullName("hidden_in");
    for (size_t s = 0; s < samples_.size(); ++s) {
      const ActivationView view{
          s, name, float_hidden_[s], config_.hidden_size, ActivationView::Scores::kNone, 0, 0};
      const TensorReport& report = out_.tensors[by_name_.at(name)];
      ActivationView got = view;
      std::vector<float> values;
      if (report.encoding.has_value()) {
        Sums scratch;
        values = Encode(view.values, *report.encoding, scratch);
        got.values = values;
      }
      Compare(view, got, got);
    }
  }

  Status RunSample(PartRunner& in_float, PartRunner& quantized, size_t s) {
    HEXPORT_ASSIGN_OR_RETURN(const PartResult expected, in_float.Run(s, float_hidden_[s]));
    HEXPORT_ASSIGN_OR_RETURN(const PartResult own, quantized.Run(s, float_hidden_[s]));
    HEXPORT_ASSIGN_OR_RETURN(const PartResult inherited, quantized.Run(s, quantized_hidden_[s]));
    for (size_t i = 0; i < expected.activations.size(); ++i) {
      const ActivationView& view = expected.activations[i];
      HEXPORT_RETURN_IF_ERROR(quant::CheckFinite(view));
      Compare(view, own.activations[i], inherited.activations[i]);
      if (view.name != "logits") continue;
      logits_[s].Add(view.values, inherited.activations[i].values,
                     static_cast<size_t>(view.columns), view.first_column);
    }
    if (expected.hidden.empty()) return OkStatus();
    float_hidden_[s].assign(expected.hidden.begin(), expected.hidden.end());
    quantized_hidden_[s].assign(inherited.hidden.begin(), inherited.hidden.end());
    return OkStatus();
  }

  void Compare(const ActivationView& view, const ActivationView& own,
               const ActivationView& inherited) {
    const TensorReport& report = out_.tensors[by_name_.at(view.name)];
    Sums& sums = sums_[view.name];
    const std::vector<float> values = Select(view, view, false);
    const bool scores = view.scores != ActivationView::Scores::kNone;
    const size_t columns = scores ? values.size() : static_cast<size_t>(view.columns);
    std::span<const double> weights;
    if (const auto found = channel_weights_.find(view.name); found != channel_weights_.end())
      weights = found->second;
    const bool float16 = report.float16;
    sums.own.Add(values, Select(own, view, float16), columns, weights);
    sums.inherited.Add(values, Select(inherited, view, float16), columns, weights);
    (void)sums.histogram.Add(values).ok();  // all are finite
    if (report.encoding.has_value()) {
      const std::vector<float> encoded = Encode(values, *report.encoding, sums);
      sums.encoded.Add(values, encoded, columns, weights);
    } else if (float16) {
      sums.encoded.Add(values, Select(view, view, true), columns, weights);
    }
    if (!scores && view.first_column == 0 && view.name != "logits")
      AddPeaks(values, columns, sums.peaks);
  }

  void Finish() {
    for (size_t i = first_report_; i < out_.tensors.size(); ++i) {
      TensorReport& report = out_.tensors[i];
      const auto found = sums_.find(report.tensor);
      if (found == sums_.end()) continue;
      Sums& sums = found->second;
      report.own = sums.own.Get();
      report.inherited = sums.inherited.Get();
      report.encoded = sums.encoded.Get();
      report.clipped = sums.error > 0.0 ? sums.clipped / sums.error : 0.0;
      report.seen = {sums.histogram.min(), sums.histogram.max()};
      report.histogram = std::move(sums.histogram);
      if (sums.peaks.empty()) continue;
      const auto peak = std::max_element(sums.peaks.begin(), sums.peaks.end());
      report.peak_channel = peak - sums.peaks.begin();
      report.peak = *peak;
      const auto middle =
          sums.peaks.begin() + static_cast<std::ptrdiff_t>((sums.peaks.size() - 1) / 2);
      std::nth_element(sums.peaks.begin(), middle, sums.peaks.end());
      report.median_peak = *middle;
    }
  }

  const Subject& subject_;
  const ModelConfig& config_;
  const std::vector<quant::TokenIds>& samples_;
  const std::string_view stage_;
  Progress& progress_;
  std::vector<std::vector<float>> float_hidden_, quantized_hidden_;  // [tokens, hidden_size] each
  std::vector<LogitRows> logits_;                                    // by sample
  Measurement out_;
  std::map<std::string, size_t> by_name_;  // index in out_.tensors
  // Of the part that runs.
  size_t first_report_ = 0;
  std::map<std::string, Sums> sums_;
  std::map<std::string, std::vector<double>> channel_weights_;
};

}  // namespace

Subject SubjectOf(const quant::QuantizedModel& model) {
  const quant::QuantizedFacts& facts = model.facts();
  return {model.weights(), {facts.ranges, model.store(), facts.config, {}}, facts.context_length};
}

Result<Measurement> Measure(const Subject& subject, const std::vector<quant::TokenIds>& samples,
                            std::string_view stage, Progress& progress) {
  return Measurer(subject, samples, stage, progress).Run();
}

}  // namespace hexport::diagnose
