// Weight types of GGUF files against values that another reader decoded: tests/golden/weight_blocks.json in the tree,
// and blocks of quantised models in the reference data. Decoding rounds at most once, so every value must be equal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <set>

#include "base/rng.h"
#include "cases/paths.h"
#include "cases/reference_data.h"
#include "cases/safetensors_data.h"
#include "cases/sha256.h"
#include "format/list.h"

namespace ridge {
namespace {

using Json = nlohmann::json;

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) bytes.push_back(std::byte(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<float> decode(const WeightFormat& format, const std::vector<std::byte>& blocks) {
  std::vector<float> values(blocks.size() / size_t(format.block_bytes) * size_t(format.group), NAN);
  format.decode(blocks.data(), int64_t(values.size()), values.data());
  return values;
}

void expect_equal(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << "element " << i;
}

struct Golden {
  Json type;
};
/// Shown by GoogleTest when a case fails.
void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.type["name"]; }

class WeightBlocks : public testing::TestWithParam<Golden> {
 protected:
  const Json& golden_ = GetParam().type;
  const WeightFormat& format_ = **find_weight_format(golden_["name"].get<std::string>());
};
INSTANTIATE_TEST_SUITE_P(Types, WeightBlocks, testing::ValuesIn([] {
                           std::ifstream file(RIDGE_SOURCE_DIR "/tests/golden/weight_blocks.json");
                           const Json golden = Json::parse(file);
                           std::vector<Golden> types;
                           for (const Json& type : golden["types"]) types.push_back({type});
                           return types;
                         }()),
                         [](const testing::TestParamInfo<Golden>& test) {
                           return test.param.type["name"].get<std::string>();
                         });

TEST_P(WeightBlocks, HaveTheIdAndSizesOfGguf) {
  EXPECT_EQ(weight_format_of_gguf(golden_["gguf_type"]), &format_);
  EXPECT_EQ(format_.group, golden_["group"]);
  EXPECT_EQ(format_.block_bytes, golden_["block_bytes"]);
}

TEST_P(WeightBlocks, DecodeToTheValuesOfAnotherReader) {
  expect_equal(decode(format_, from_hex(golden_["blocks"])), values_of<float>(from_hex(golden_["values"])));
}

TEST_P(WeightBlocks, DecodeEveryCodeAsAnotherReaderDoes) {
  // 2048 blocks of random bytes, the bits of their scales replaced.
  Rng rng(1);
  std::vector<std::byte> blocks(size_t(2048 * format_.block_bytes));
  for (std::byte& byte : blocks) byte = std::byte(rng.next());
  for (size_t first = 0; first < blocks.size(); first += size_t(format_.block_bytes))
    for (const Json& scale : golden_["scales"]) {
      std::byte& byte = blocks[first + scale[0].get<size_t>()];
      byte = (byte & std::byte(scale[1].get<int>())) | std::byte(scale[2].get<int>());
    }
  const std::vector<float> values = decode(format_, blocks);
  EXPECT_EQ(sha256({reinterpret_cast<const uint8_t*>(values.data()), 4 * values.size()}), golden_["sha256"]);
}

TEST_P(WeightBlocks, AreReadNotWrittenOrKeepTheValuesOfAnotherWriter) {
  if (format_.encode) {
    // Scales are searched: what comes back is other where the largest weight of a group has no end of the levels.
    const std::vector<float> in = decode(format_, from_hex(golden_["blocks"]));
    std::vector<std::byte> blocks(size_t(format_.row_bytes(ssize(in))));
    ASSERT_TRUE(encode_rows(format_, in, ssize(in), blocks));
    const std::vector<float> out = decode(format_, blocks);
    double error = 0, size = 0;
    for (size_t i = 0; i < in.size(); ++i) error += std::pow(double(out[i]) - in[i], 2), size += double(in[i]) * in[i];
    EXPECT_LT(error, 1e-3 * size);
    return;
  }
  std::vector<float> values(size_t(2 * format_.group), 1.0f);
  std::vector<std::byte> out(size_t(2 * format_.block_bytes));
  const Status status = encode_rows(format_, values, format_.group, out);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::usage);
  EXPECT_THAT(status.error().message, testing::HasSubstr(std::string(format_.name) + " is read, not written"));
}

TEST_P(WeightBlocks, RandomOnesHaveTheSizeThatWasAskedForAndDiffer) {
  for (const double size : {0.02, 1.0}) {
    Rng rng(7);
    const std::vector<std::byte> blocks = random_blocks(format_, rng, size, 64 * format_.group);
    ASSERT_EQ(int64_t(blocks.size()), 64 * format_.block_bytes);
    double squares = 0;
    std::set<float> different;
    for (const float value : decode(format_, blocks)) squares += double(value) * value, different.insert(value);
    const double found = std::sqrt(squares / (64 * format_.group));
    EXPECT_GT(found, 0.5 * size);  // an exponent of two is all that mxfp4 has
    EXPECT_LT(found, 1.01 * size);
    EXPECT_GT(different.size(), 12u);
  }
}

TEST(WeightBlocksOfModels, DecodeToTheValuesOfAnotherReader) {
  const auto data = reference_data();
  if (!data || !std::filesystem::exists(*data / "parity/quants"))
    GTEST_SKIP() << "blocks of quantised models are not here (set RIDGE_DATA)";
  const auto tensors = read_safetensors(*data / "parity/quants/tensors.safetensors");
  std::set<std::string> types;
  for (const auto& [name, raw] : tensors) {
    if (!name.ends_with(".raw")) continue;
    const std::string of = name.substr(0, name.size() - 4);
    std::string type = of.substr(0, of.find('.'));
    if (type.ends_with("_M")) type.resize(type.size() - 2);  // Q3_K_M and Q5_K_M are mixes; the rows are Q3_K and Q5_K
    std::ranges::transform(type, type.begin(), [](char c) { return char(std::tolower(c)); });
    SCOPED_TRACE(of);
    const WeightFormat& format = **find_weight_format(type);
    const std::vector<float> values = values_of<float>(tensors.at(of + ".f32"));
    expect_equal(decode(format, raw), values);
    if (type.starts_with("iq4") && of.ends_with(".real")) {  // rows of llama-quantize: the search finds its scales
      std::vector<std::byte> blocks(raw.size());
      ASSERT_TRUE(encode_rows(format, values, ssize(values), blocks));
      const std::vector<float> again = decode(format, blocks);
      double error = 0, size = 0;
      for (size_t i = 0; i < values.size(); ++i)
        error += std::pow(double(again[i]) - values[i], 2), size += double(values[i]) * values[i];
      EXPECT_LT(error, 1e-3 * size) << type;
    }
    types.insert(type);
  }
  EXPECT_EQ(types.size(), 15u);
}

}  // namespace
}  // namespace ridge
