#include "checkpoint/safetensors_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status_matchers.h"

namespace hexport {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(SafetensorsIndexTest, MapsTensorsToShards) {
  const auto shards = ParseSafetensorsIndex(
      R"({"metadata": {"total_size": 8}, "weight_map": {"b": "two.safetensors", "a": "one.safetensors"}})",
      "index");
  ASSERT_THAT(shards, IsOk());
  EXPECT_THAT(*shards, ElementsAre(Pair("a", "one.safetensors"), Pair("b", "two.safetensors")));
}

TEST(SafetensorsIndexTest, RefusesWhatIsNoIndex) {
  EXPECT_THAT(ParseSafetensorsIndex("{", "index"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("index")));
  EXPECT_THAT(ParseSafetensorsIndex("{}", "index"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("weight_map")));
  EXPECT_THAT(ParseSafetensorsIndex(R"({"weight_map": {"a": 1}})", "index"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("file names")));
}

TEST(SafetensorsIndexTest, RefusesFilesOutsideTheFolder) {
  for (const char* shard : {"", ".", "..", "../x", "/etc/passwd", "a\\\\b", "a\\u0000b"}) {
    EXPECT_THAT(
        ParseSafetensorsIndex(std::string(R"({"weight_map": {"a": ")") + shard + "\"}}", "index"),
        StatusIs(StatusCode::kInvalidArgument, HasSubstr("same folder")))
        << shard;
  }
}

}  // namespace
}  // namespace hexport
