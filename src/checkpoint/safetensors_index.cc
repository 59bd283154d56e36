#include "checkpoint/safetensors_index.h"

#include "checkpoint/json_fields.h"

namespace hexport {

using checkpoint::JsonFields;

Result<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text,
                                                                 const std::string& where) {
  HEXPORT_ASSIGN_OR_RETURN(const nlohmann::json index, checkpoint::ParseJsonObject(text, where));
  const JsonFields fields(index, where);
  const nlohmann::json* weight_map = fields.Find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) {
    return fields.Mismatch("weight_map", "an object");
  }
  std::map<std::string, std::string> shards;
  for (const auto& item : weight_map->items()) {
    if (!item.value().is_string()) return fields.Mismatch("weight_map", "file names");
    auto shard = item.value().get<std::string>();
    // A file name only, and one that the system's calls do not cut short.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return InvalidArgument(where + ": weight_map: expected a file name in the same folder, got " +
                             checkpoint::Excerpt(item.value()));
    }
    shards.emplace(item.key(), std::move(shard));
  }
  return shards;
}

}  // namespace hexport
