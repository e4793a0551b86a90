// The safetensors reader on valid and hostile images.
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include "cases/bytes.h"
#include "cases/safetensors_builder.h"
#include "fuzz/touch.h"

namespace ridge::io {
namespace {

std::string text_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
}

TEST(Safetensors, GivesTensorsInTheOrderOfTheirData) {
  const auto bytes = exact_bytes(small_safetensors());
  const auto tensors = parse_safetensors(bytes, "small");
  ASSERT_TRUE(tensors.has_value()) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 2u);
  const Tensor &a = (*tensors)[0], &b = (*tensors)[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.format->name, "f32");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(text_of(a), "AAAABBBBCCCCDDDDEEEEFFFF");
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.format->name, "bf16");
  EXPECT_EQ(text_of(b), "bbbbbbbb");
}

TEST(Safetensors, AFileMayHaveNoTensors) {
  for (const char* header : {"{}", R"({"__metadata__":{}})"}) {
    const auto tensors = parse_safetensors(exact_bytes(safetensors_image(header, "")), "empty");
    ASSERT_TRUE(tensors.has_value()) << tensors.error().message;
    EXPECT_TRUE(tensors->empty());
  }
}

TEST(Safetensors, UnknownFieldsOfATensorAreNotItsMeaning) {
  const auto bytes = exact_bytes(
      safetensors_image(padded_header(R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2],"note":[1]}})"), "xy"));
  EXPECT_TRUE(parse_safetensors(bytes, "extra").has_value());
}

struct HostileImage {
  const char* name;
  std::string image;
  const char* message;
};
void PrintTo(const HostileImage& hostile, std::ostream* out) { *out << hostile.name; }
class HostileSafetensorsTest : public testing::TestWithParam<HostileImage> {};

TEST_P(HostileSafetensorsTest, IsRefusedWithTheReason) {
  const auto bytes = exact_bytes(GetParam().image);
  const auto tensors = parse_safetensors(bytes, "evil.safetensors");
  expect_refused(tensors, GetParam().message);
  expect_refused(tensors, "bad safetensors file: evil.safetensors: ");
}

/// A case with 8 bytes of data and this JSON as the value of the only tensor, "t".
HostileImage tensor_case(const char* name, std::string_view json, const char* message) {
  return {name, safetensors_image(padded_header("{\"t\":" + std::string(json) + "}"), "12345678"), message};
}
/// A case with 8 bytes of data and this header.
HostileImage header_case(const char* name, std::string_view header, const char* message) {
  return {name, safetensors_image(header, "12345678"), message};
}
HostileImage length_case(const char* name, uint64_t length, const char* message) {
  return {name, safetensors_image("{}", "", length), message};
}

const HostileImage kLengthCases[] = {
    {"EmptyFile", "", "has 0 bytes, expected at least 8"},
    {"SevenBytes", "1234567", "has 7 bytes, expected at least 8"},
    length_case("Length0", 0, "header length is 0"),
    length_case("LengthPastFile", 3, "header length is 3, but only 2 bytes follow it"),
    length_case("LengthOver100MB", 100'000'001, "header length is 100000001, expected at most 100000000"),
    length_case("Length2To63", uint64_t(1) << 63, "header length is 9223372036854775808"),
    length_case("LengthMinus1", UINT64_MAX, "header length is 18446744073709551615"),
    {"LengthOnly", safetensors_image("", "", 2), "header length is 2, but only 0 bytes follow"},
};

const HostileImage kHeaderImages[] = {
    header_case("NotJson", "{\"a\":", "bad JSON: header"),
    header_case("Deep", std::string(100000, '[') + std::string(100000, ']'), "nested deeper than 128"),
    header_case(
        "DeepObjects",
        [] {
          std::string text;
          for (int i = 0; i < 100000; ++i) text += "{\"a\":";
          return text;
        }(),
        "nested deeper than 128"),
    header_case("Array", "[]", "header is array, expected an object"),
    header_case("Number", "1", "header is number, expected an object"),
    header_case("BrokenUtf8", "{\"\xFF\":1}", "bad JSON"),
    header_case("NulPadding", std::string("{}\0\0", 4), "NUL byte"),
    header_case("MetadataNotAnObject", R"({"__metadata__":[]})", "'__metadata__' is array, expected an object"),
    header_case("MetadataNotStrings", R"({"__metadata__":{"a":1}})", "'__metadata__' has number under 'a'"),
    header_case("NoTensorButData", "{}", "8 bytes follow the last tensor, expected none"),
    header_case("NameEmpty", R"({"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "a tensor name has 0 bytes"),
    header_case("NameTwice",
                R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                "key 't' appears twice"),
    header_case("Gap",
                R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},)"
                R"("b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})",
                "tensor 'b' starts at byte 4 of the data, expected 2 (there is a gap)"),
    header_case("GapAtTheStart", R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})",
                "tensor 'a' starts at byte 4 of the data, expected 0"),
    header_case("Overlap",
                R"({"a":{"dtype":"F16","shape":[3],"data_offsets":[0,6]},)"
                R"("b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})",
                "tensor 'b' starts at byte 4 of the data, expected 6 (it overlaps the one before)"),
    header_case("SamePlace",
                R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                "it overlaps the one before"),
    header_case("TrailingBytes", R"({"a":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}})",
                "2 bytes follow the last tensor"),
    header_case("NotAligned", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} )",
                "tensor 'a' is not aligned to its elements of 4 bytes"),
    header_case("TerminalEscapeInName", R"({"\u001b[2J":{}})", "tensor '\\x1b[2J' has no 'dtype'"),
};

const HostileImage kTensorImages[] = {
    tensor_case("NotAnObject", "[]", "tensor 't' is array, expected an object"),
    tensor_case("NoDtype", R"({"shape":[2],"data_offsets":[0,8]})", "tensor 't' has no 'dtype'"),
    tensor_case("NoShape", R"({"dtype":"F32","data_offsets":[0,8]})", "tensor 't' has no 'shape'"),
    tensor_case("NoOffsets", R"({"dtype":"F32","shape":[2]})", "tensor 't' has no 'data_offsets'"),
    tensor_case("DtypeUnknown", R"({"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]})",
                "tensor 't' has dtype 'F8_E5M2' (not supported; supported: F32, F16, BF16, I32, I64, U8, F8_E4M3)"),
    tensor_case("DtypeEmpty", R"({"dtype":"","shape":[8],"data_offsets":[0,8]})", "has dtype ''"),
    tensor_case("DtypeNumber", R"({"dtype":1,"shape":[8],"data_offsets":[0,8]})", "'dtype' that is number"),
    tensor_case("ScalarOfTwo", R"({"dtype":"F32","shape":[],"data_offsets":[0,8]})",
                "has data_offsets [0, 8), 8 bytes, expected 4 for f32 [1]"),
    tensor_case("NoElements", R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})", "has dimension 0 of size 0"),
    tensor_case("ShapeNotAnArray", R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "'shape' that is number"),
    tensor_case("ShapeNegative", R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "has -2 in 'shape'"),
    tensor_case("ShapeFloat", R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "has 2.0 in 'shape'"),
    tensor_case("ShapeString", R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})", "has string in 'shape'"),
    tensor_case("ShapePast63Bits", R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})",
                "has 9223372036854775808 in 'shape'"),
    tensor_case("ShapeProductOverflows", R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})",
                "more elements than 63 bits can count"),
    tensor_case("BytesOverflow", R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,8]})",
                "more bytes than 64 bits can count"),
    tensor_case("TooManyDims", R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})",
                "has 9 dimensions, expected at most 8"),
    tensor_case("OffsetsReversed", R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})",
                "has data_offsets [8, 0) in reverse"),
    tensor_case("OffsetsNegative", R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", "has -8 in 'data_offsets'"),
    tensor_case("OffsetsPastData", R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})",
                "has data_offsets [0, 12), but the data has 8 bytes"),
    tensor_case("OffsetsHuge",
                R"({"dtype":"F32","shape":[2],"data_offsets":[9223372036854775800,9223372036854775807]})",
                "but the data has 8 bytes"),
    tensor_case("OneOffset", R"({"dtype":"F32","shape":[2],"data_offsets":[8]})", "has 1 data_offsets, expected 2"),
    tensor_case("ThreeOffsets", R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})", "has 3 data_offsets"),
    tensor_case("SpanIsNotTheShape", R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})",
                "has data_offsets [0, 8), 8 bytes, expected 4 for f32 [1]"),
};

std::string image_name(const testing::TestParamInfo<HostileImage>& test) { return test.param.name; }
INSTANTIATE_TEST_SUITE_P(Length, HostileSafetensorsTest, testing::ValuesIn(kLengthCases), image_name);
INSTANTIATE_TEST_SUITE_P(Header, HostileSafetensorsTest, testing::ValuesIn(kHeaderImages), image_name);
INSTANTIATE_TEST_SUITE_P(Tensors, HostileSafetensorsTest, testing::ValuesIn(kTensorImages), image_name);

TEST(HostileSafetensors, TruncationAtEveryByteIsRefused) {
  const std::string whole = small_safetensors();
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    expect_refused(parse_safetensors(exact_bytes(whole.substr(0, size)), "cut"), "cut: ");
  }
}

TEST(HostileSafetensors, NoChangeOfOneByteReachesOutsideTheFile) {
  const std::string whole = small_safetensors();
  int n_accepted = 0;
  for (size_t at = 0; at < whole.size(); ++at)
    for (const uint8_t change : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF}) {
      std::string mutated = whole;
      mutated[at] = char(uint8_t(mutated[at]) ^ change);
      const auto bytes = exact_bytes(mutated);
      const auto tensors = parse_safetensors(bytes, "flip");
      if (!tensors) continue;
      ++n_accepted;
      for (const Tensor& tensor : *tensors) touch(tensor);
    }
  EXPECT_GT(n_accepted, 0);
}

}  // namespace
}  // namespace ridge::io
