#include "runtime/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/status_matchers.h"

namespace hexport::runtime {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLayers = 2, kHeads = 3, kDim = 2, kContext = 9;

// The value of one element; the same for uint8 and float.
uint8_t Element(int64_t layer, int64_t head, int64_t dim, int64_t token, bool value) {
  return static_cast<uint8_t>(1 + layer + 2 * (head + kHeads * (dim + kDim * token)) +
                              (value ? 11 : 0));
}

void Put(std::vector<std::byte>& out, size_t index, uint8_t element, DType dtype) {
  if (dtype == DType::kUInt8) {
    out[index] = std::byte{element};
  } else {
    const float real = element;
    std::memcpy(out.data() + index * sizeof(real), &real, sizeof(real));
  }
}

// [H, D, columns] or [H, columns, D] of tokens first .. first + count - 1; other columns are zero
// (code 128).
std::vector<std::byte> Block(DType dtype, int64_t layer, bool value, int64_t first, int64_t count,
                             int64_t columns) {
  const size_t elements = static_cast<size_t>(kHeads * kDim * columns);
  std::vector<std::byte> out(elements * (dtype == DType::kUInt8 ? 1 : 4),
                             dtype == DType::kUInt8 ? std::byte{128} : std::byte{0});
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t dim = 0; dim < kDim; ++dim) {
      for (int64_t column = 0; column < count; ++column) {
        const int64_t index =
            value ? (head * columns + column) * kDim + dim : (head * kDim + dim) * columns + column;
        Put(out, static_cast<size_t>(index), Element(layer, head, dim, first + column, value),
            dtype);
      }
    }
  }
  return out;
}

KvCache Make(DType dtype) {
  Result<KvCache> cache = KvCache::Create({kLayers, kHeads, kDim, kContext, dtype});
  EXPECT_THAT(cache, IsOk());
  return *std::move(cache);
}

void Add(KvCache& cache, DType dtype, int64_t count, int64_t ar) {
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    // what a graph returns: `count` valid tokens, then rubbish that must not be taken over
    const auto key = Block(dtype, layer, false, cache.length(), ar, ar);
    const auto value = Block(dtype, layer, true, cache.length(), ar, ar);
    ASSERT_THAT(cache.Append(layer, key, value, ar, count), IsOk());
  }
  cache.Advance(count);
}

void ExpectHolds(const KvCache& cache, DType dtype, int64_t length, int64_t stride) {
  ASSERT_EQ(cache.length(), length);
  ASSERT_EQ(cache.stride(), stride);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const auto key = cache.Key(layer), value = cache.Value(layer);
    EXPECT_EQ(std::vector<std::byte>(key.begin(), key.end()),
              Block(dtype, layer, false, 0, length, stride));
    EXPECT_EQ(std::vector<std::byte>(value.begin(), value.end()),
              Block(dtype, layer, true, 0, length, stride));
  }
}

class KvCacheTest : public ::testing::TestWithParam<DType> {};

TEST_P(KvCacheTest, StartsEmptyWithZeros) {
  ExpectHolds(Make(GetParam()), GetParam(), 0, kContext - 1);
}

TEST_P(KvCacheTest, AppendsTheValidTokensOnly) {
  KvCache cache = Make(GetParam());
  Add(cache, GetParam(), 3, 5);
  ExpectHolds(cache, GetParam(), 3, kContext - 1);
  Add(cache, GetParam(), 1, 1);
  Add(cache, GetParam(), 4, 4);
  ExpectHolds(cache, GetParam(), 8, kContext - 1);
}

TEST_P(KvCacheTest, EveryPairOfStridesKeepsTheTokens) {
  for (int64_t from = 0; from < kContext; ++from) {
    for (int64_t to = 0; to < kContext; ++to) {
      for (int64_t length = 0; length <= std::min(from, to); ++length) {
        SCOPED_TRACE(::testing::Message() << from << " -> " << to << " with " << length);
        KvCache cache = Make(GetParam());
        ASSERT_THAT(cache.Restride(from), IsOk());
        if (length > 0) Add(cache, GetParam(), length, length);
        ExpectHolds(cache, GetParam(), length, from);
        ASSERT_THAT(cache.Restride(to), IsOk());
        ExpectHolds(cache, GetParam(), length, to);
      }
    }
  }
}

TEST_P(KvCacheTest, AppendsAfterRestriding) {
  KvCache cache = Make(GetParam());
  ASSERT_THAT(cache.Restride(4), IsOk());
  Add(cache, GetParam(), 4, 4);
  ASSERT_THAT(cache.Restride(8), IsOk());
  Add(cache, GetParam(), 2, 3);
  ExpectHolds(cache, GetParam(), 6, 8);
}

TEST_P(KvCacheTest, TooShortAStrideChangesNothing) {
  KvCache cache = Make(GetParam());
  Add(cache, GetParam(), 5, 5);
  EXPECT_THAT(cache.Restride(4),
              StatusIs(StatusCode::kResourceExhausted, AllOf(HasSubstr("5"), HasSubstr("4"))));
  ExpectHolds(cache, GetParam(), 5, kContext - 1);
}

TEST_P(KvCacheTest, FullCacheRefusesMore) {
  KvCache cache = Make(GetParam());
  ASSERT_THAT(cache.Restride(3), IsOk());
  Add(cache, GetParam(), 2, 2);
  const auto key = Block(GetParam(), 0, false, 2, 2, 2),
             value = Block(GetParam(), 0, true, 2, 2, 2);
  EXPECT_THAT(cache.Append(0, key, value, 2, 2),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("2 + 2")));
  ExpectHolds(cache, GetParam(), 2, 3);
}

TEST_P(KvCacheTest, RefusesWrongSizes) {
  KvCache cache = Make(GetParam());
  const auto key = Block(GetParam(), 0, false, 0, 2, 2),
             value = Block(GetParam(), 0, true, 0, 2, 2);
  EXPECT_THAT(cache.Append(0, key, value, 3, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("layer 0")));
  EXPECT_THAT(cache.Append(kLayers, key, value, 2, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("layer")));
  EXPECT_THAT(cache.Append(0, key, value, 2, 3),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("3 of them")));
}

TEST_P(KvCacheTest, TruncateGoesBack) {
  KvCache cache = Make(GetParam());
  Add(cache, GetParam(), 5, 5);
  ASSERT_THAT(cache.Truncate(2), IsOk());
  EXPECT_EQ(cache.length(), 2);
  ASSERT_THAT(cache.Restride(3), IsOk());  // drops what lies behind the new end
  ExpectHolds(cache, GetParam(), 2, 3);
  EXPECT_THAT(cache.Truncate(3), StatusIs(StatusCode::kInvalidArgument, HasSubstr("got 3")));
  EXPECT_THAT(cache.Truncate(-1), StatusIs(StatusCode::kInvalidArgument, HasSubstr("got -1")));
}

INSTANTIATE_TEST_SUITE_P(Types, KvCacheTest, ::testing::Values(DType::kUInt8, DType::kFloat32),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(KvCacheCreateTest, RefusesBadGeometry) {
  EXPECT_THAT(KvCache::Create({0, 1, 1, 4, DType::kUInt8}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("[0,")));
  EXPECT_THAT(KvCache::Create({1, 1, 1, 4, DType::kInt32}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("int32")));
}

TEST(KvCacheCreateTest, ReportsSizesThatOverflow) {
  const int64_t huge = int64_t{1} << 21;
  EXPECT_THAT(KvCache::Create({1, huge, huge, huge, DType::kFloat32}),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("KV cache")));
}

}  // namespace
}  // namespace hexport::runtime
