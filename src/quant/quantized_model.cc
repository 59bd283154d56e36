#include "quant/quantized_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "quant/channel_folds.h"
#include "quant/residual_rotation.h"

namespace hexport::quant {
namespace {

using nlohmann::json;

json LossesToJson(const std::vector<LinearLoss>& losses) {
  json out = json::array();
  for (const LinearLoss& loss : losses) {
    json entry = {{"name", loss.name},
                  {"weights", WeightFormatName(loss.options.format)},
                  {"method", MethodName(loss.method)},
                  {"bits", loss.bits},
                  {"elements", loss.elements}};
    if (loss.options.format == WeightFormat::kLpbq) entry["block_size"] = loss.options.block_size;
    if (loss.relative_error >= 0.0) entry["relative_error"] = loss.relative_error;
    out.push_back(std::move(entry));
  }
  return out;
}

Result<std::vector<LinearLoss>> LossesFromJson(const json& entries) {
  std::vector<LinearLoss> out;
  for (const json& entry : entries) {
    LinearLoss loss;
    loss.name = entry.at("name").get<std::string>();
    HEXPORT_ASSIGN_OR_RETURN(loss.options.format,
                             ParseWeightFormat(entry.at("weights").get<std::string>()));
    HEXPORT_ASSIGN_OR_RETURN(loss.method, ParseMethod(entry.at("method").get<std::string>()));
    loss.options.block_size = entry.value("block_size", 0);
    loss.bits = entry.at("bits").get<int64_t>();
    loss.elements = entry.at("elements").get<int64_t>();
    loss.relative_error = entry.value("relative_error", -1.0);
    out.push_back(std::move(loss));
  }
  return out;
}

json ToJson(const RangeMap& ranges) {
  json out = json::object();
  for (const auto& [name, range] : ranges) {
    json& entry = out[name] = {range.min, range.max};
    if (!range.exact.has_value()) continue;
    entry.push_back(range.exact->scale);
    entry.push_back(range.exact->zero_point);
    entry.push_back(range.exact->bits);
  }
  return out;
}

// A given encoding is used as it stands, so it must be one.
Status CheckEncoding(const std::string& name, const Encoding& encoding) {
  const bool bits = encoding.bits == 8 || encoding.bits == 16;
  if (bits && encoding.scale > 0.0f && encoding.zero_point >= 0 &&
      encoding.zero_point < 1 << encoding.bits)
    return OkStatus();
  return DataLoss("ranges: " + name +
                  ": expected 8 or 16 bits, a positive scale and a zero point among the codes");
}

Result<RangeMap> RangesFromJson(const json& ranges) {
  RangeMap out;
  for (const auto& [name, entry] : ranges.items()) {
    if (entry.size() != 2 && entry.size() != 5) {
      return DataLoss("ranges: " + name + ": expected 2 or 5 numbers, got " +
                      std::to_string(entry.size()));
    }
    Range& range = out[name] = {entry.at(0).get<float>(), entry.at(1).get<float>()};
    if (entry.size() == 2) continue;
    range.exact = {entry.at(2).get<float>(), entry.at(3).get<int32_t>(), entry.at(4).get<int>()};
    HEXPORT_RETURN_IF_ERROR(CheckEncoding(name, *range.exact));
  }
  return out;
}

Result<QuantizedFacts> FactsFromJson(const json& value) {
  QuantizedFacts facts;
  facts.hexport_version = value.at("hexport_version").get<std::string>();
  facts.source_path = value.at("source").at("path").get<std::string>();
  facts.source_sha256 = value.at("source").at("sha256").get<std::string>();
  facts.rotation_seed = value.value("rotation_seed", uint64_t{0});
  facts.folded = value.value("folded", false);
  facts.context_length = value.value("context_length", int64_t{0});
  HEXPORT_ASSIGN_OR_RETURN(facts.config, ParseQuantConfig(value.at("config").dump(), "config"));
  HEXPORT_ASSIGN_OR_RETURN(facts.ranges, RangesFromJson(value.at("ranges")));
  HEXPORT_ASSIGN_OR_RETURN(facts.losses, LossesFromJson(value.at("linears")));
  facts.calibration_source = value.at("calibration").at("source").get<std::string>();
  facts.calibration = value.at("calibration").at("samples").get<std::vector<TokenIds>>();
  return facts;
}

}  // namespace

double BitsPerWeight(const std::vector<LinearLoss>& losses) {
  int64_t bits = 0, elements = 0;
  for (const LinearLoss& loss : losses) {
    bits += loss.bits;
    elements += loss.elements;
  }
  return static_cast<double>(bits) / static_cast<double>(std::max<int64_t>(elements, 1));
}

std::string RangesToJson(const RangeMap& ranges) { return ToJson(ranges).dump(); }

Result<RangeMap> ParseRanges(std::string_view text, const std::string& where) {
  const json value = json::parse(text, nullptr, false);
  if (!value.is_object()) return DataLoss(where + ": expected an object of ranges");
  try {
    Result<RangeMap> ranges = RangesFromJson(value);
    if (!ranges.ok()) return ranges.status().WithContext(where);
    return ranges;
  } catch (const json::exception& error) {
    return DataLoss(where + ": " + error.what());
  }
}

std::string QuantizedFactsToJson(const QuantizedFacts& facts) {
  const bool exact = std::any_of(facts.ranges.begin(), facts.ranges.end(),
                                 [](const auto& entry) { return entry.second.exact.has_value(); });
  const json value = {
      {"schema", exact ? kQuantSchemaVersion : 1},
      {"hexport_version", facts.hexport_version},
      {"source", {{"path", facts.source_path}, {"sha256", facts.source_sha256}}},
      {"rotation_seed", facts.rotation_seed},
      {"folded", facts.folded},
      {"context_length", facts.context_length},
      {"config", json::parse(QuantConfigToJson(facts.config), nullptr, false)},
      {"bits_per_weight", BitsPerWeight(facts.losses)},
      {"linears", LossesToJson(facts.losses)},
      {"ranges", ToJson(facts.ranges)},
      {"calibration", {{"source", facts.calibration_source}, {"samples", facts.calibration}}}};
  return value.dump();
}

Result<QuantizedFacts> ParseQuantizedFacts(std::string_view text, const std::string& where) {
  const json value = json::parse(text, nullptr, false);
  if (!value.is_object()) return DataLoss(where + ": expected a JSON object");
  const auto schema = value.find("schema");
  if (schema == value.end() || !schema->is_number_integer())
    return DataLoss(where + ": schema: expected a whole number");
  const auto version = schema->get<int64_t>();
  if (version < 1 || version > kQuantSchemaVersion) {
    return Unimplemented(where + ": schema: expected 1 to " + std::to_string(kQuantSchemaVersion) +
                         ", got " + schema->dump() + "; use the hexport that wrote it");
  }
  try {
    Result<QuantizedFacts> facts = FactsFromJson(value);
    if (!facts.ok()) return DataLoss(where + ": " + std::string(facts.status().message()));
    return facts;
  } catch (const json::exception& error) {
    return DataLoss(where + ": " + error.what());
  }
}

bool IsQuantizedModel(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path / "quant.json", ignored);
}

Result<QuantizedFacts> ReadQuantizedFacts(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "quant.json";
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ParseQuantizedFacts(text, path.string());
}

Result<std::unique_ptr<QuantizedModel>> QuantizedModel::Open(const std::filesystem::path& folder,
                                                             const std::filesystem::path& source) {
  std::unique_ptr<QuantizedModel> out(new QuantizedModel());
  HEXPORT_ASSIGN_OR_RETURN(out->facts_, ReadQuantizedFacts(folder));
  const std::filesystem::path from = source.empty() ? out->facts_.source_path : source.string();
  Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(from);
  if (!checkpoint.ok())
    return checkpoint.status().WithContext("the float model that " + folder.string() +
                                           " is made from");
  out->source_ = *std::move(checkpoint);
  if (out->facts_.rotation_seed != 0)
    out->rotated_ = RotateResidual(*out->source_, out->facts_.rotation_seed);
  if (out->facts_.folded) {
    HEXPORT_ASSIGN_OR_RETURN(const std::vector<ChannelFold> folds,
                             ReadFolds(out->weights(), folder / kFoldsFile));
    HEXPORT_ASSIGN_OR_RETURN(out->folded_, FoldChannels(out->weights(), folds));
  }
  HEXPORT_ASSIGN_OR_RETURN(out->store_, WeightStore::Open(folder / "weights.safetensors"));
  return out;
}

Status WalkQuantized(const QuantizedModel& model, const std::vector<TokenIds>& samples,
                     const QuantizedWalkOptions& options, const ActivationVisitor& visit,
                     Progress& progress) {
  const FakeQuantOptions fake{options.weights, options.activations, options.float_activations};
  const QuantizedParts parts{model.facts().ranges, model.store(), model.facts().config, fake};
  WalkOptions walk;
  walk.every_activation = options.every_activation;
  walk.context_length = model.facts().context_length;
  walk.stage = options.stage;
  walk.quantized = &parts;
  return WalkDecoder(model.weights(), samples, walk, visit, progress);
}

}  // namespace hexport::quant
