#include "quant/encodings_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/status_matchers.h"

namespace hexport::quant {
namespace {

using ::hexport::testing::IsOk;
using ::hexport::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kLegacy = R"({"version": "0.6.1",
  "activation_encodings": {
    "gate": [{"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "max": 1.28, "min": -1.27,
              "offset": -127, "scale": 0.01}],
    "norm": [{"bitwidth": 16, "dtype": "float"}]},
  "param_encodings": {
    "w": [{"bitwidth": 4, "dtype": "int", "is_symmetric": "True", "max": 0.875, "min": -1.0,
           "offset": -8, "scale": 0.125},
          {"bitwidth": 4, "dtype": "int", "is_symmetric": "True", "max": 1.75, "min": -2.0,
           "offset": -8, "scale": 0.25}]},
  "quantizer_args": {"param_bitwidth": 4}, "excluded_layers": []})";

constexpr const char* kCurrent = R"({"version": "1.0.0",
  "activation_encodings": [
    {"name": "gate", "enc_type": "PER_TENSOR", "dtype": "INT", "bw": 8, "is_sym": false,
     "offset": [-127.0], "scale": [0.01]},
    {"name": "norm", "enc_type": "PER_TENSOR", "dtype": "FLOAT", "bw": 16}],
  "param_encodings": [
    {"name": "w", "enc_type": "PER_CHANNEL", "dtype": "INT", "bw": 4, "is_sym": true,
     "offset": [-8, -8], "scale": [0.125, 0.25]}]})";

constexpr const char* kLpbq = R"({"version": "1.0.0", "activation_encodings": [],
  "param_encodings": [
    {"name": "w", "enc_type": "LPBQ", "dtype": "INT", "bw": 8, "compressed_bw": 4,
     "block_size": 16, "is_sym": true, "offset": [-128, -128], "scale": [0.5, 0.25],
     "per_block_int_scale": [1, 16, 3, 4]}]})";

std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(EncodingsFileTest, Q11BothSchemasGiveTheSameRecords) {
  const auto legacy = ParseEncodingsFile(kLegacy, "a");
  const auto current = ParseEncodingsFile(kCurrent, "b");
  ASSERT_THAT(legacy, IsOk());
  ASSERT_THAT(current, IsOk());
  EXPECT_EQ(legacy->schema, EncodingsSchema::k061);
  EXPECT_EQ(current->schema, EncodingsSchema::k100);
  EXPECT_EQ(legacy->activations, current->activations);
  EXPECT_EQ(legacy->params, current->params);
  EXPECT_THAT(legacy->warnings, IsEmpty());
  const TensorEncoding& gate = legacy->activations[0];
  EXPECT_EQ(gate.bits, 8);
  EXPECT_FALSE(gate.symmetric);
  EXPECT_THAT(gate.offsets, ElementsAre(-127));
  EXPECT_THAT(gate.scales, ElementsAre(0.01f));
  EXPECT_TRUE(legacy->activations[1].is_float);
  EXPECT_TRUE(legacy->params[0].symmetric);
}

TEST(EncodingsFileTest, Q11Schema2IsRefusedWithTheSdkThatReadsIt) {
  const auto file = ParseEncodingsFile(R"({"version": "2.0.0", "encodings": []})", "enc.json");
  EXPECT_THAT(file, StatusIs(StatusCode::kUnimplemented,
                             AllOf(HasSubstr("enc.json: version"), HasSubstr("2.37"))));
}

TEST(EncodingsFileTest, Q11OneObjectOfParamsIsNotSchema1) {
  const std::string text =
      R"({"version": "1.0.0", "activation_encodings": [], "param_encodings": {"w": []}})";
  EXPECT_THAT(ParseEncodingsFile(text, "enc.json"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("enc.json: param_encodings"), HasSubstr("1.0.0"),
                             HasSubstr("got one object"))));
  EXPECT_THAT(ParseEncodingsFile(With(text, "1.0.0", "0.6.1"), "enc.json"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got a list")));
}

TEST(EncodingsFileTest, WrittenFilesReadBackTheSame) {
  for (const char* text : {kLegacy, kCurrent, kLpbq}) {
    const auto file = ParseEncodingsFile(text, "a");
    ASSERT_THAT(file, IsOk());
    const auto written = EncodingsFileToJson(*file);
    ASSERT_THAT(written, IsOk());
    const auto again = ParseEncodingsFile(*written, "written");
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(again->schema, file->schema);
    EXPECT_EQ(again->activations, file->activations);
    EXPECT_EQ(again->params, file->params);
    EXPECT_THAT(again->warnings, IsEmpty());
  }
}

TEST(EncodingsFileTest, AFloatTensorIsItsBitsAlone) {
  const std::string legacy_float = R"("norm": [{"bitwidth": 16, "dtype": "float"}])";
  const std::string legacy_channels =
      R"("norm": [{"bitwidth": 16, "dtype": "float", "is_symmetric": "True"},
                  {"bitwidth": 16, "dtype": "float", "is_symmetric": "True"}])";
  const std::string current_float = R"("enc_type": "PER_TENSOR", "dtype": "FLOAT", "bw": 16)";
  const std::string current_blocks =
      R"("enc_type": "PER_BLOCK", "dtype": "FLOAT", "bw": 16, "is_sym": true)";
  for (const std::string& text : {With(kLegacy, legacy_float, legacy_channels),
                                  With(kCurrent, current_float, current_blocks)}) {
    const auto file = ParseEncodingsFile(text, "a");
    ASSERT_THAT(file, IsOk());
    EXPECT_EQ(file->activations[1],
              (TensorEncoding{"norm", EncodingType::kPerTensor, /*is_float=*/true, 16}));
    const auto written = EncodingsFileToJson(*file);
    ASSERT_THAT(written, IsOk());
    const auto again = ParseEncodingsFile(*written, "b");
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(again->activations, file->activations);
  }
}

TEST(EncodingsFileTest, ScalesKeepTheirBits) {
  EncodingsFile file;
  file.params.resize(1);
  file.params[0] = {"w",
                    EncodingType::kPerChannel,
                    false,
                    8,
                    true,
                    {0x1.fffffep-3f, 0x1p-149f, 0x1.fffffep127f, 0x1.99999ap-4f},
                    {-128, -127, 0, -255}};
  for (const EncodingsSchema schema : {EncodingsSchema::k061, EncodingsSchema::k100}) {
    file.schema = schema;
    const auto written = EncodingsFileToJson(file);
    ASSERT_THAT(written, IsOk());
    const auto again = ParseEncodingsFile(*written, "written");
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(again->params, file.params);
  }
}

TEST(EncodingsFileTest, BlocksNeedSchema1) {
  auto file = ParseEncodingsFile(kLpbq, "a");
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->params[0].block_scales, ElementsAre(1, 16, 3, 4));
  const auto nested =
      ParseEncodingsFile(With(kLpbq, "[1, 16, 3, 4]", "[[1, 16], [3, 4]]"), "nested");
  ASSERT_THAT(nested, IsOk());
  EXPECT_EQ(nested->params, file->params);
  file->schema = EncodingsSchema::k061;
  EXPECT_THAT(EncodingsFileToJson(*file),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("w: schema 0.6.1 has no LPBQ")));
}

TEST(EncodingsFileTest, MinAndMaxAloneGiveScaleAndOffset) {
  const auto file = ParseEncodingsFile(
      With(With(kLegacy, "\"offset\": -127, \"scale\": 0.01", "\"offset\": null"), "-1.27",
           "-1.27"),
      "a");
  ASSERT_THAT(file, IsOk());
  EXPECT_FLOAT_EQ(file->activations[0].scales[0], 0.01f);
  EXPECT_EQ(file->activations[0].offsets[0], -127);
}

TEST(EncodingsFileTest, MinAndMaxThatContradictAreToldOf) {
  const auto file = ParseEncodingsFile(With(kLegacy, "\"max\": 1.28", "\"max\": 12.8"), "a.json");
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->warnings, ElementsAre(HasSubstr("a.json: activation_encodings: gate: min")));
}

struct Fault {
  const char* from;
  const char* to;
  StatusCode code;
  const char* message;
};

TEST(EncodingsFileTest, FaultsNameListTensorAndField) {
  const StatusCode bad = StatusCode::kInvalidArgument;
  const Fault faults[] = {
      {"\"1.0.0\"", "\"0.4.0\"", bad, "version: expected schema 0.6.1 or 1.0.0, got \"0.4.0\""},
      {"\"version\": \"1.0.0\",", "", bad, "version: expected schema"},
      {"\"gate\"", "\"\"", bad, "activation_encodings[0]: name"},
      {"\"norm\"", "\"gate\"", bad, "activation_encodings[1]: expected each name once"},
      {"PER_CHANNEL", "PER_AXIS", bad, "param_encodings: w: enc_type"},
      {"\"INT\"", "\"int\"", bad, "gate: dtype: expected \"INT\" or \"FLOAT\""},
      {"\"bw\": 8", "\"bw\": 64", bad, "gate: bw: expected a whole number from 2 to 32, got 64"},
      {"[0.01]", "[0.01, 0.02]", bad, "gate: scale: expected one number"},
      {"[0.01]", "[0]", bad, "gate: scale[0]: expected a float32 above 0, got 0"},
      {"[0.01]", "[1e39]", bad, "gate: scale[0]"},
      {"[0.01]", "[1e-60]", bad, "gate: scale[0]"},
      {"[0.01]", "[\"0.01\"]", bad, "gate: scale[0]"},
      {"[-127.0]", "[1]", bad, "gate: offset[0]: expected a whole number from -255 to 0, got 1"},
      {"[-127.0]", "[-0.5]", bad, "gate: offset[0]"},
      {"[-8, -8]", "[-8]", bad, "w: offset: expected a list of as many numbers as scale"},
      {"\"is_sym\": false", "\"is_sym\": \"False\"", bad, "gate: is_sym"},
      {"\"is_sym\": false", "\"is_sym\": false, \"zero_point_shift\": [0.5]",
       StatusCode::kUnimplemented, "gate: zero_point_shift"},
  };
  for (const Fault& fault : faults) {
    EXPECT_THAT(ParseEncodingsFile(With(kCurrent, fault.from, fault.to), "a.json"),
                StatusIs(fault.code, AllOf(HasSubstr("a.json: "), HasSubstr(fault.message))))
        << fault.from << " -> " << fault.to;
  }
  const Fault blocks[] = {
      {"16,", "0,", bad, "w: block_size"},
      {"\"compressed_bw\": 4", "\"compressed_bw\": 8", bad, "w: compressed_bw"},
      {"[1, 16", "[1, 17", bad, "w: per_block_int_scale: expected whole numbers from 1 to 16"},
      {"[1, 16", "[0, 16", bad, "w: per_block_int_scale"},
      {"3, 4]", "3]", bad, "w: per_block_int_scale: expected as many numbers for each channel"},
  };
  for (const Fault& fault : blocks) {
    EXPECT_THAT(ParseEncodingsFile(With(kLpbq, fault.from, fault.to), "a.json"),
                StatusIs(fault.code, HasSubstr(fault.message)))
        << fault.from << " -> " << fault.to;
  }
  const Fault legacy[] = {
      {"\"False\"", "\"no\"", bad, "gate: is_symmetric: expected \"True\" or \"False\""},
      {"\"offset\": -127, ", "", bad, "gate: offset"},
      {"\"bitwidth\": 4", "\"bitwidth\": 8", bad, "w[1]: bitwidth: expected the bits and dtype"},
      {"\"scale\": 0.25", "\"scale\": -1", bad, "param_encodings: w[1]: scale"},
  };
  for (const Fault& fault : legacy) {
    EXPECT_THAT(ParseEncodingsFile(With(kLegacy, fault.from, fault.to), "a.json"),
                StatusIs(fault.code, HasSubstr(fault.message)))
        << fault.from << " -> " << fault.to;
  }
  EXPECT_THAT(ParseEncodingsFile("[1", "a.json"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("a.json")));
}

}  // namespace
}  // namespace hexport::quant
