// config.json and the record beside a merged model.
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "adapter/merge_plan.h"
#include "base/file.h"
#include "checkpoint/json_fields.h"

namespace hexport::adapter {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kRecord = "hexport_merge.json";

// bos_token_id and the like that have no row any more.
void CheckTokenIds(const ordered_json& config, int64_t rows, std::vector<std::string>& failures) {
  for (const char* field : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const auto found = config.find(field);
    if (found == config.end()) continue;
    const ordered_json ids = found->is_array() ? *found : ordered_json::array({*found});
    for (const ordered_json& id : ids) {
      if (!id.is_number_integer() || id.get<int64_t>() < rows) continue;
      failures.push_back("config.json: " + std::string(field) + " is " + id.dump() +
                         ", but the merged embedding has only " + std::to_string(rows) + " rows");
    }
  }
}

void SetDType(ordered_json& config, std::string_view name) {
  // transformers 5 writes dtype, 4 torch_dtype; both read both.
  bool found = false;
  for (const char* field : {"dtype", "torch_dtype"}) {
    if (!config.contains(field)) continue;
    config[field] = name;
    found = true;
  }
  if (!found) config["torch_dtype"] = name;
}

int64_t BaseRows(const BaseTensors& base) {
  for (const BaseTensor& tensor : base.tensors()) {
    if (tensor.name.ends_with("embed_tokens.weight") && !tensor.shape.empty()) {
      return tensor.shape[0];
    }
  }
  return -1;
}

}  // namespace

Result<std::string> MergedConfig(const BaseTensors& base, const MatchedAdapters& adapters,
                                 const MergeOptions& options, std::vector<std::string>& warnings,
                                 std::vector<std::string>& failures) {
  ordered_json config =
      ordered_json::parse(base.config_json(), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return DataLoss(base.path().string() + ": config.json: expected a JSON object");
  }
  const int64_t before = BaseRows(base), rows = adapters.vocab_size();
  if (rows >= 0 && rows != before) {
    config["vocab_size"] = rows;
    warnings.push_back("the vocabulary has " + std::to_string(rows) + " rows instead of " +
                       std::to_string(before) +
                       ": the tokenizer must be the adapter's, and its ids must be below " +
                       std::to_string(rows));
  }
  if (rows >= 0) CheckTokenIds(config, rows, failures);
  const auto tied = config.find("tie_word_embeddings");
  const bool says_tied = tied != config.end() && tied->is_boolean() && tied->get<bool>();
  if (!adapters.tie_word_embeddings() && base.Find("lm_head.weight") == nullptr) {
    config["tie_word_embeddings"] = false;
  } else if (says_tied != adapters.tie_word_embeddings() && tied != config.end()) {
    config["tie_word_embeddings"] = adapters.tie_word_embeddings();
  }
  for (const std::string& field : adapters.bias_fields()) config[field] = true;
  if (options.dtype.has_value()) {
    SetDType(config, DTypeName(*options.dtype));
  }
  return config.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Status CheckNotMergedBefore(const BaseTensors& base, const MatchedAdapters& adapters) {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(base.path(), error);
  const std::filesystem::path folder = is_folder ? base.path() : base.path().parent_path();
  if (!std::filesystem::exists(folder / kRecord, error)) return OkStatus();
  const std::string where = (folder / kRecord).string();
  HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(folder / kRecord));
  HEXPORT_ASSIGN_OR_RETURN(const json record, checkpoint::ParseJsonObject(text, where));
  const auto list = record.find("adapter_sha256");
  if (list == record.end() || !list->is_array()) {
    return DataLoss(where + ": adapter_sha256: expected a list");
  }
  std::set<std::string> merged;
  for (const json& hash : *list) {
    if (hash.is_string()) merged.insert(hash.get<std::string>());
  }
  for (const MatchedAdapters::Source& source : adapters.sources()) {
    if (merged.count(source.adapter->sha256()) == 0) continue;
    return FailedPrecondition(source.adapter->path().string() + ": " + where +
                              " says that this adapter is in the base already; merge it into the "
                              "model that it was trained on");
  }
  return OkStatus();
}

Status WriteRecord(const std::filesystem::path& folder, const BaseTensors& base,
                   const MatchedAdapters& adapters, const std::string& base_sha256) {
  ordered_json record = {{"version", 1}, {"base_sha256", base_sha256}};
  record["base_dequantized"] = base.dequantized();
  record["adapter_sha256"] = ordered_json::array();
  record["weights"] = ordered_json::array();
  for (const MatchedAdapters::Source& source : adapters.sources()) {
    record["adapter_sha256"].push_back(source.adapter->sha256());
    record["weights"].push_back(source.weight);
  }
  // What was merged into the base before is in this model too.
  std::error_code error;
  const std::filesystem::path old = base.path() / kRecord;
  if (std::filesystem::exists(old, error)) {
    HEXPORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(old));
    HEXPORT_ASSIGN_OR_RETURN(const json before, checkpoint::ParseJsonObject(text, old.string()));
    for (const json& hash : before.value("adapter_sha256", json::array())) {
      if (hash.is_string()) record["adapter_sha256"].push_back(hash.get<std::string>());
    }
  }
  return WriteFileAtomically(
      folder / kRecord, record.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace hexport::adapter
