// Changes a JSON text into another JSON text: for fuzzers whose parser is not instrumented (Rust),
// or refuses nearly everything that is no JSON before it looks closer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace hexport::fuzz {

using Json = nlohmann::ordered_json;

inline void CollectNodes(Json& node, std::vector<Json*>& nodes) {
  nodes.push_back(&node);
  if (!node.is_structured()) return;
  for (auto& child : node) CollectNodes(child, nodes);
}

inline Json OddValue(std::minstd_rand& random) {
  static const std::vector<Json> values = {nullptr,
                                           true,
                                           false,
                                           0,
                                           1,
                                           -1,
                                           2147483648.0,
                                           std::numeric_limits<int64_t>::min(),
                                           std::numeric_limits<uint64_t>::max(),
                                           0.5,
                                           1e308,
                                           -1e-308,
                                           "",
                                           "a",
                                           "\xe2\x96\x81",
                                           "(a+)+$",
                                           ".*",
                                           "[",
                                           "all-linear",
                                           "\\p{N}",
                                           std::string(300, 'a'),
                                           Json::array(),
                                           Json::object()};
  return values[random() % values.size()];
}

// libFuzzer's own mutation of one string's bytes, kept to what is UTF-8.
inline std::string MutateText(const std::string& text) {
  std::vector<uint8_t> bytes(text.begin(), text.end());
  bytes.resize(text.size() + 16);
  bytes.resize(LLVMFuzzerMutate(bytes.data(), text.size(), bytes.size()));
  return {bytes.begin(), bytes.end()};
}

inline void MutateNode(Json& node, const std::vector<Json*>& nodes, std::minstd_rand& random) {
  const auto child = [&random](Json& parent) {
    return std::next(parent.begin(), static_cast<std::ptrdiff_t>(random() % parent.size()));
  };
  switch (random() % 6) {
    case 0:
      node = OddValue(random);
      return;
    case 1: {
      Json copy =
          *nodes[random() % nodes.size()];  // the copy first: it may hold `node`, or lie in it
      node = std::move(copy);
      return;
    }
    case 2:
      if (node.is_structured() && !node.empty()) node.erase(child(node));
      return;
    case 3: {
      Json copy = *nodes[random() % nodes.size()];
      if (node.is_array()) node.push_back(std::move(copy));
      if (node.is_object())
        node[MutateText(node.empty() ? "key" : child(node).key())] = std::move(copy);
      return;
    }
    default:
      if (node.is_string()) node = MutateText(node.get<std::string>());
      if (node.is_number_integer()) {
        node = static_cast<int64_t>(uint64_t{random()} << (random() % 40)) - 1;
      }
      if (node.is_number_float()) node = node.get<double>() * static_cast<double>(random() % 1000);
      if (node.is_boolean()) node = !node.get<bool>();
  }
}

// The body of a LLVMFuzzerCustomMutator: now and then, or where there is no JSON, bytes.
inline size_t MutateJson(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  Json root = Json::parse(data, data + size, nullptr, false);
  if (root.is_discarded() || random() % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  for (unsigned left = 1 + random() % 3; left > 0; --left) {
    std::vector<Json*> nodes;
    CollectNodes(root, nodes);
    MutateNode(*nodes[random() % nodes.size()], nodes, random);
  }
  const std::string text = root.dump(-1, ' ', false, Json::error_handler_t::ignore);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace hexport::fuzz
