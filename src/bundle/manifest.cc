#include "bundle/manifest.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/rope.h"
#include "base/sha256.h"
#include "bundle/json_reader.h"

namespace hexport::bundle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMaxDim = int64_t{1} << 31;
constexpr int64_t kMaxContext = int64_t{1} << 22;
constexpr size_t kMaxManifestBytes = size_t{64} << 20;

void ReadIo(JsonReader reader, IoEncoding& io) {
  reader.String("name", io.name);
  reader.Word("dtype", io.dtype, {"int32", "uint16", "uint8", "float32"});
  reader.Integers("shape", io.shape, 1, kMaxDim);
  reader.Real("scale", io.scale, 0, 1e30);
  reader.Integer("zero_point", io.zero_point, 0, 65535);
  reader.Finish();
}

void ReadGraph(JsonReader reader, GraphEntry& graph) {
  reader.String("name", graph.name);
  reader.Integer("ar", graph.ar, 1, kMaxContext);
  reader.Integer("cl", graph.cl, 2, kMaxContext);
  reader.Path("qdq_model", graph.qdq_model);
  reader.Path("emulator_model", graph.emulator_model);
  reader.Path("emulator_binary", graph.emulator_binary);
  reader.Objects("inputs", graph.inputs, ReadIo);
  reader.Objects("outputs", graph.outputs, ReadIo);
  if (graph.ar >= graph.cl) {
    reader.Fail("cl", "expected more than ar = " + std::to_string(graph.ar) + ", got " +
                          std::to_string(graph.cl));
  }
  reader.Finish();
}

void CheckHeads(JsonReader& reader, const ModelFacts& model) {
  if (model.head_dim % 2 != 0) {
    reader.Fail("head_dim", "expected an even number, got " + std::to_string(model.head_dim));
  }
  if (model.num_attention_heads % std::max<int64_t>(model.num_key_value_heads, 1) != 0) {
    reader.Fail("num_key_value_heads", "expected a divisor of num_attention_heads = " +
                                           std::to_string(model.num_attention_heads) + ", got " +
                                           std::to_string(model.num_key_value_heads));
  }
}

// What schema 1 leaves to its reader; it knew no scaling but these.
void FillFrequencies(JsonReader& reader, ModelFacts& model) {
  RopeParameters rope;
  rope.rope_theta = model.rope_theta;
  rope.rotary_dim = model.head_dim;
  rope.scaling.factor = model.rope_factor;
  rope.scaling.low_freq_factor = model.rope_low_freq_factor;
  rope.scaling.high_freq_factor = model.rope_high_freq_factor;
  rope.scaling.original_max_position_embeddings = model.rope_original_max_position_embeddings;
  if (model.rope_scaling == "linear") rope.scaling.type = RopeScaling::Type::kLinear;
  if (model.rope_scaling == "llama3") rope.scaling.type = RopeScaling::Type::kLlama3;
  if (model.rope_scaling == "yarn" || model.rope_scaling == "longrope") {
    reader.Fail("rope_scaling",
                "expected none, linear or llama3 in schema 1, got " + model.rope_scaling);
    return;
  }
  model.rope_frequencies = InverseFrequencies(rope, 0);
}

void ReadRope(JsonReader& reader, ModelFacts& model) {
  reader.Reals("rope_frequencies", model.rope_frequencies, 0, 1e6);
  reader.Real("rope_attention_factor", model.rope_attention_factor, 1e-6, 1e6);
  reader.Reals("local_rope_frequencies", model.local_rope_frequencies, 0, 1e6);
  reader.Real("local_rope_attention_factor", model.local_rope_attention_factor, 1e-6, 1e6);
  reader.Integer("sliding_window", model.sliding_window, 0, kMaxDim);
  for (const auto* list : {&model.rope_frequencies, &model.local_rope_frequencies}) {
    if (static_cast<int64_t>(list->size()) <= model.head_dim / 2) continue;
    reader.Fail(list == &model.rope_frequencies ? "rope_frequencies" : "local_rope_frequencies",
                "expected at most head_dim / 2 = " + std::to_string(model.head_dim / 2) +
                    " numbers, got " + std::to_string(list->size()));
  }
}

void ReadModel(JsonReader reader, ModelFacts& model, bool schema1) {
  constexpr int64_t kMaxWidth = int64_t{1} << 24;
  reader.String("architecture", model.architecture);
  reader.String("name", model.name);
  reader.Integer("hidden_size", model.hidden_size, 1, kMaxWidth);
  reader.Integer("intermediate_size", model.intermediate_size, 1, kMaxWidth);
  reader.Integer("num_hidden_layers", model.num_hidden_layers, 1, 4096);
  reader.Integer("num_attention_heads", model.num_attention_heads, 1, 4096);
  reader.Integer("num_key_value_heads", model.num_key_value_heads, 1, 4096);
  reader.Integer("head_dim", model.head_dim, 2, 4096);
  reader.Integer("vocab_size", model.vocab_size, 1, kMaxWidth);
  reader.Integer("max_position_embeddings", model.max_position_embeddings, 0, kMaxDim);
  reader.Real("rms_norm_eps", model.rms_norm_eps, 0, 1);
  reader.Real("rope_theta", model.rope_theta, 1e-6, 1e15);
  reader.Word("rope_scaling", model.rope_scaling, {"none", "linear", "llama3", "yarn", "longrope"});
  reader.Real("rope_factor", model.rope_factor, 1e-6, 1e6);
  reader.Real("rope_low_freq_factor", model.rope_low_freq_factor, 1e-6, 1e6);
  reader.Real("rope_high_freq_factor", model.rope_high_freq_factor, 1e-6, 1e6);
  reader.Integer("rope_original_max_position_embeddings",
                 model.rope_original_max_position_embeddings, 0, kMaxDim);
  reader.Integer("bos_token_id", model.bos_token_id, -1, kMaxDim);
  reader.Integers("eos_token_ids", model.eos_token_ids, 0, kMaxDim);
  reader.String("bos_token", model.bos_token);
  reader.String("eos_token", model.eos_token);
  CheckHeads(reader, model);
  if (schema1) {
    FillFrequencies(reader, model);
  } else {
    ReadRope(reader, model);
  }
  reader.Finish();
}

void ReadModel1(JsonReader reader, ModelFacts& model) { ReadModel(reader, model, true); }
void ReadModel2(JsonReader reader, ModelFacts& model) { ReadModel(reader, model, false); }

bool IsSha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

void ReadFile(JsonReader reader, FileEntry& file) {
  reader.Path("path", file.path, /*may_be_empty=*/false);
  reader.Integer("bytes", file.bytes, 0, int64_t{1} << 50);
  reader.String("sha256", file.sha256);
  if (!IsSha256(file.sha256)) reader.Fail("sha256", "expected 64 lower-case hex digits");
  reader.Finish();
}

void ReadManifest(JsonReader reader, Manifest& manifest) {
  reader.Integer("schema_version", manifest.schema_version, 1, kSchemaVersion);
  reader.String("hexport_version", manifest.hexport_version);
  reader.String("ort_version", manifest.ort_version);
  reader.String("qnn_version", manifest.qnn_version);
  reader.String("build_key", manifest.build_key);
  reader.Object("model", manifest.model, manifest.schema_version == 1 ? ReadModel1 : ReadModel2);
  reader.String("source_path", manifest.source_path);
  reader.String("source_sha256", manifest.source_sha256);
  reader.String("soc", manifest.soc);
  reader.Integer("soc_model", manifest.soc_model, 0, 1000000);
  reader.Integer("htp_arch", manifest.htp_arch, 0, 1000);
  reader.String("weights", manifest.weights);
  reader.Integer("block_size", manifest.block_size, 0, 1 << 20);
  reader.Integer("activation_bits", manifest.activation_bits, 8, 32);
  reader.Integer("kv_bits", manifest.kv_bits, 8, 32);
  reader.Real("mask_floor", manifest.mask_floor, -1e30, -1e-6);
  reader.Integer("context_length", manifest.context_length, 2, kMaxContext);
  reader.Path("cpu_model", manifest.cpu_model);
  reader.Paths("context_binaries", manifest.context_binaries);
  reader.Path("tokenizer", manifest.tokenizer);
  reader.Path("chat_template", manifest.chat_template);
  if (manifest.schema_version >= 2) {
    reader.String("tokenizer_fingerprint", manifest.tokenizer_fingerprint);
    const std::string& print = manifest.tokenizer_fingerprint;
    if (!print.empty() && !IsSha256(print)) {
      reader.Fail("tokenizer_fingerprint", "expected 64 lower-case hex digits or nothing");
    }
  }
  reader.Path("genie_config", manifest.genie_config);
  reader.Path("backend_config", manifest.backend_config);
  reader.Path("calibration", manifest.calibration);
  if (manifest.schema_version > 1) reader.Strings("notes", manifest.notes);
  reader.Objects("graphs", manifest.graphs, ReadGraph);
  reader.Objects("files", manifest.files, ReadFile);
  std::set<std::string_view> seen;
  for (const FileEntry& file : manifest.files) {
    if (!seen.insert(file.path).second)
      reader.Fail("files", "\"" + file.path + "\" is listed twice");
  }
  reader.Finish();
}

ordered_json IoJson(const std::vector<IoEncoding>& values) {
  ordered_json out = ordered_json::array();
  for (const IoEncoding& io : values) {
    out.push_back({{"name", io.name},
                   {"dtype", io.dtype},
                   {"shape", io.shape},
                   {"scale", io.scale},
                   {"zero_point", io.zero_point}});
  }
  return out;
}

ordered_json ModelJson(const ModelFacts& model) {
  ordered_json out;
  out["architecture"] = model.architecture;
  out["name"] = model.name;
  out["hidden_size"] = model.hidden_size;
  out["intermediate_size"] = model.intermediate_size;
  out["num_hidden_layers"] = model.num_hidden_layers;
  out["num_attention_heads"] = model.num_attention_heads;
  out["num_key_value_heads"] = model.num_key_value_heads;
  out["head_dim"] = model.head_dim;
  out["vocab_size"] = model.vocab_size;
  out["max_position_embeddings"] = model.max_position_embeddings;
  out["rms_norm_eps"] = model.rms_norm_eps;
  out["rope_theta"] = model.rope_theta;
  out["rope_scaling"] = model.rope_scaling;
  out["rope_factor"] = model.rope_factor;
  out["rope_low_freq_factor"] = model.rope_low_freq_factor;
  out["rope_high_freq_factor"] = model.rope_high_freq_factor;
  out["rope_original_max_position_embeddings"] = model.rope_original_max_position_embeddings;
  out["rope_frequencies"] = model.rope_frequencies;
  out["rope_attention_factor"] = model.rope_attention_factor;
  out["local_rope_frequencies"] = model.local_rope_frequencies;
  out["local_rope_attention_factor"] = model.local_rope_attention_factor;
  out["sliding_window"] = model.sliding_window;
  out["bos_token_id"] = model.bos_token_id;
  out["eos_token_ids"] = model.eos_token_ids;
  out["bos_token"] = model.bos_token;
  out["eos_token"] = model.eos_token;
  return out;
}

}  // namespace

Result<Manifest> ParseManifest(const std::string& text, const std::string& where) {
  try {
    json root;
    try {
      root = json::parse(text);
    } catch (const json::exception& error) {
      return DataLoss(where + ": expected JSON: " + error.what());
    }
    if (!root.is_object()) {
      return InvalidArgument(where + ": expected a JSON object, got " + Shown(root));
    }
    const auto version = root.find("schema_version");
    if (version != root.end() && version->is_number_integer() && *version > kSchemaVersion) {
      return Unimplemented(where + ": schema_version " + version->dump() +
                           " is newer than this hexport reads (" + std::to_string(kSchemaVersion) +
                           "); use a newer hexport or build the bundle again");
    }
    Status status;
    Manifest manifest;
    ReadManifest(JsonReader(root, where, "", status), manifest);
    if (!status.ok()) return status;
    return manifest;
  } catch (const std::exception& error) {  // json's own, or out of memory
    return Internal(where + ": " + error.what());
  }
}

std::string ManifestToJson(const Manifest& manifest) {
  ordered_json out;
  out["schema_version"] = kSchemaVersion;
  out["hexport_version"] = manifest.hexport_version;
  out["ort_version"] = manifest.ort_version;
  out["qnn_version"] = manifest.qnn_version;
  out["build_key"] = manifest.build_key;
  out["model"] = ModelJson(manifest.model);
  out["source_path"] = manifest.source_path;
  out["source_sha256"] = manifest.source_sha256;
  out["soc"] = manifest.soc;
  out["soc_model"] = manifest.soc_model;
  out["htp_arch"] = manifest.htp_arch;
  out["weights"] = manifest.weights;
  out["block_size"] = manifest.block_size;
  out["activation_bits"] = manifest.activation_bits;
  out["kv_bits"] = manifest.kv_bits;
  out["mask_floor"] = manifest.mask_floor;
  out["context_length"] = manifest.context_length;
  out["cpu_model"] = manifest.cpu_model;
  out["context_binaries"] = manifest.context_binaries;
  out["tokenizer"] = manifest.tokenizer;
  out["chat_template"] = manifest.chat_template;
  out["tokenizer_fingerprint"] = manifest.tokenizer_fingerprint;
  out["genie_config"] = manifest.genie_config;
  out["backend_config"] = manifest.backend_config;
  out["calibration"] = manifest.calibration;
  out["notes"] = manifest.notes;
  out["graphs"] = ordered_json::array();
  for (const GraphEntry& graph : manifest.graphs) {
    out["graphs"].push_back({{"name", graph.name},
                             {"ar", graph.ar},
                             {"cl", graph.cl},
                             {"qdq_model", graph.qdq_model},
                             {"emulator_model", graph.emulator_model},
                             {"emulator_binary", graph.emulator_binary},
                             {"inputs", IoJson(graph.inputs)},
                             {"outputs", IoJson(graph.outputs)}});
  }
  out["files"] = ordered_json::array();
  for (const FileEntry& file : manifest.files) {
    out["files"].push_back({{"path", file.path}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<Manifest> OpenBundle(const fs::path& bundle, bool hash) {
  const fs::path path = bundle / "manifest.json";
  std::error_code error;
  if (!fs::exists(path, error)) {
    return NotFound(path.string() +
                    ": not found; expected a bundle folder written by hexport build");
  }
  HEXPORT_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, kMaxManifestBytes));
  HEXPORT_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(text, path.string()));
  for (const FileEntry& file : manifest.files) {
    const fs::path at = bundle / file.path;
    const auto bytes = fs::file_size(at, error);
    if (error == std::errc::no_such_file_or_directory) {
      return NotFound(at.string() +
                      ": listed in manifest.json but not there; build the bundle again");
    }
    if (error) return ErrnoStatus(error.value(), at.string());
    if (bytes != static_cast<uintmax_t>(file.bytes)) {
      return DataLoss(at.string() + ": expected " + std::to_string(file.bytes) + " bytes, got " +
                      std::to_string(bytes) + "; copy or build the bundle again");
    }
    if (!hash) continue;
    HEXPORT_ASSIGN_OR_RETURN(const std::string digest, Sha256File(at));
    if (digest != file.sha256) {
      return DataLoss(at.string() + ": expected SHA-256 " + file.sha256 + ", got " + digest +
                      "; copy or build the bundle again");
    }
  }
  return manifest;
}

Result<std::vector<FileEntry>> HashFiles(const fs::path& folder) {
  std::vector<FileEntry> files;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (!at->is_regular_file(error) || error) continue;
    FileEntry file;
    file.path = at->path().lexically_relative(folder).generic_string();
    if (file.path == "manifest.json") continue;
    if (const std::string fault = PathFault(file.path); !fault.empty()) {
      return InvalidArgument(at->path().string() +
                             ": a bundle cannot hold this file name: " + fault);
    }
    const auto bytes = at->file_size(error);
    if (error) break;
    file.bytes = static_cast<int64_t>(bytes);
    HEXPORT_ASSIGN_OR_RETURN(file.sha256, Sha256File(at->path()));
    files.push_back(std::move(file));
  }
  if (error) return ErrnoStatus(error.value(), folder.string());
  std::sort(files.begin(), files.end(),
            [](const FileEntry& a, const FileEntry& b) { return a.path < b.path; });
  return files;
}

}  // namespace hexport::bundle
