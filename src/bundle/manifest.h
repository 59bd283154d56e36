// manifest.json: what a bundle holds. The only contract between building and running.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace hexport::bundle {

// 2: RoPE's frequencies, a second RoPE, sliding windows, tokenizer_fingerprint. Version 1 is still
// read.
inline constexpr int kSchemaVersion = 2;

struct IoEncoding {
  std::string name;
  std::string dtype;  // "int32", "uint16", "uint8", "float32"
  std::vector<int64_t> shape;
  double scale = 0;        // 0 when not quantized
  int64_t zero_point = 0;  // real = (code - zero_point) * scale
};

struct GraphEntry {
  std::string name;  // "prompt_ar128_cl512_1_of_1"
  int64_t ar = 0, cl = 0;
  std::string qdq_model;        // "qdq/prompt_ar128_cl512_1_of_1.onnx", relative to the bundle
  std::string emulator_model;   // EPContext model around the plain binary; empty when not built
  std::string emulator_binary;  // plain binary, for the PC's emulator and Genie
  std::vector<IoEncoding> inputs, outputs;
};

struct ModelFacts {  // Hugging Face names
  std::string architecture, name;
  int64_t hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0, num_attention_heads = 0,
          num_key_value_heads = 0, head_dim = 0, vocab_size = 0, max_position_embeddings = 0;
  double rms_norm_eps = 0, rope_theta = 0;
  std::string rope_scaling = "none";  // "none", "linear", "llama3", "yarn", "longrope"
  double rope_factor = 1, rope_low_freq_factor = 1, rope_high_freq_factor = 4;
  int64_t rope_original_max_position_embeddings = 0;
  // What the scaling comes to for this bundle's context length: radians a token of each pair of
  // elements that turns, and the factor of cosines and sines. A bundle of schema 1 gets them from
  // the fields above when it is read.
  std::vector<double> rope_frequencies;
  double rope_attention_factor = 1;
  std::vector<double> local_rope_frequencies;  // of sliding layers; empty: they have no other
  double local_rope_attention_factor = 1;
  int64_t sliding_window = 0;  // tokens a sliding layer sees, its own included; 0: none
  int64_t bos_token_id = -1;
  std::vector<int64_t> eos_token_ids;
  std::string bos_token, eos_token;  // texts for the chat template; may be empty
};

struct FileEntry {
  std::string path;  // relative, with '/'
  int64_t bytes = 0;
  std::string sha256;
};

struct Manifest {
  int schema_version = kSchemaVersion;  // of the file read; written is always kSchemaVersion
  std::string hexport_version, ort_version, qnn_version;
  std::string build_key;  // hash of inputs and options
  ModelFacts model;
  std::string source_path, source_sha256;  // the checkpoint
  std::string soc;                         // "sm8650"
  int soc_model = 0, htp_arch = 0;
  std::string weights;  // "int8", "int4", "lpbq"
  int block_size = 0;   // lpbq only
  int activation_bits = 16, kv_bits = 8;
  double mask_floor = -1000.0;
  int64_t context_length = 0;
  std::string cpu_model;                      // "cpu/model.onnx"
  std::vector<std::string> context_binaries;  // weight-shared, for the phone
  std::string tokenizer, chat_template, genie_config, backend_config;
  // SHA-256 over what the probes of text/fingerprint.h become; empty in bundles of version 1
  std::string tokenizer_fingerprint;
  std::string calibration;         // "calibration.json": {"samples": [[ids]...]}
  std::vector<std::string> notes;  // what a user should know: "no Genie files: ..."
  std::vector<GraphEntry> graphs;
  std::vector<FileEntry> files;  // every other file of the bundle
};

// Errors: kDataLoss (broken JSON), kInvalidArgument (field: expected, got), kUnimplemented (newer
// schema: both versions). Every field is required and unknown ones are refused: a new field is a
// new schema version. Paths must be relative and stay inside the bundle.
Result<Manifest> ParseManifest(const std::string& json, const std::string& where);
std::string ManifestToJson(const Manifest& manifest);  // indented, stable order

// Reads <bundle>/manifest.json and checks that every listed file is there with its size; with
// `hash` also its SHA-256. Errors: kNotFound, kDataLoss (file, expected, got), ParseManifest's.
Result<Manifest> OpenBundle(const std::filesystem::path& bundle, bool hash);

// Lists every file below `folder` (except manifest.json) with size and SHA-256, sorted by path.
Result<std::vector<FileEntry>> HashFiles(const std::filesystem::path& folder);

}  // namespace hexport::bundle
