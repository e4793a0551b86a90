// The GGUF reader on hostile files: each is refused with a reason that names the fault, in bounded time and memory.
#include <gtest/gtest.h>

#include <functional>

#include "cases/bytes.h"
#include "cases/gguf_builder.h"
#include "format/list.h"
#include "fuzz/touch.h"
#include "io/gguf.h"

namespace ridge::io {
namespace {

using Builder = GgufBuilder;

struct HostileCase {
  const char* name;
  std::function<void(Builder&)> mutate;
  const char* message;
};
/// Shown by GoogleTest when a case fails.
void PrintTo(const HostileCase& hostile, std::ostream* out) { *out << hostile.name; }

class HostileGgufTest : public testing::TestWithParam<HostileCase> {};

TEST_P(HostileGgufTest, IsRefusedWithTheReason) {
  Builder builder = small_gguf();
  GetParam().mutate(builder);
  const auto bytes = exact_bytes(builder.build());
  const auto gguf = parse_gguf(bytes, "evil.gguf");
  expect_refused(gguf, GetParam().message);
  expect_refused(gguf, "bad GGUF file: evil.gguf: ");
}

/// A case that adds the key general.alignment.
HostileCase alignment_case(const char* name, std::string value, const char* message) {
  return {name, [value](Builder& b) { b.pairs.push_back({"general.alignment", value}); }, message};
}

const HostileCase kHeaderCases[] = {
    {"WrongMagic", [](Builder& b) { b.magic = "GGML"; }, "starts with 'GGML', expected 'GGUF'"},
    {"MagicOfControlBytes", [](Builder& b) { b.magic = "\x1b[2J"; }, "starts with '\\x1b[2J'"},
    {"MagicBackwards", [](Builder& b) { b.magic = "FUGG"; }, "starts with 'FUGG'"},
    {"Version0", [](Builder& b) { b.version = 0; }, "is GGUF version 0, expected 2 or 3"},
    {"Version1", [](Builder& b) { b.version = 1; }, "is GGUF version 1, expected 2 or 3 (convert"},
    {"Version4", [](Builder& b) { b.version = 4; }, "is GGUF version 4"},
    {"BigEndian", [](Builder& b) { b.version = 0x03000000; }, "big-endian"},
    {"TensorCount2To63", [](Builder& b) { b.tensor_count = uint64_t(1) << 63; }, "tensor count is 9223372036854775808"},
    {"TensorCount2To32", [](Builder& b) { b.tensor_count = uint64_t(1) << 32; }, "tensor count is 4294967296"},
    {"TensorCountMinus1", [](Builder& b) { b.tensor_count = UINT64_MAX; }, "tensor count is 18446744073709551615"},
    {"TensorCountOneMore", [](Builder& b) { b.tensor_count = 3; }, "tensor"},
    {"KeyCount2To63", [](Builder& b) { b.pair_count = uint64_t(1) << 63; }, "key count is 9223372036854775808"},
    {"KeyCount2To32", [](Builder& b) { b.pair_count = uint64_t(1) << 32; }, "key count is 4294967296"},
    {"KeyCountMinus1", [](Builder& b) { b.pair_count = UINT64_MAX; }, "key count is 18446744073709551615"},
    {"KeyCountOneMore", [](Builder& b) { b.pair_count = b.pairs.size() + 1; }, "file ends inside the tensor name"},
};

const HostileCase kMetadataCases[] = {
    {"KeyLengthBeyondFile", [](Builder& b) { b.pairs[0].key_length = 1 << 20; }, "file ends inside the key"},
    {"KeyLengthMinus1", [](Builder& b) { b.pairs[0].key_length = UINT64_MAX; }, "18446744073709551615 bytes needed"},
    {"KeyEmpty", [](Builder& b) { b.u32("", 1); }, "key '' is empty"},
    {"KeyOver64KiB", [](Builder& b) { b.u32(std::string(65536, 'k'), 1); }, "has 65536 bytes, expected at most 65535"},
    {"KeyWithNul", [](Builder& b) { b.u32(std::string("a\0b", 3), 1); }, "key 'a\\x00b' holds a NUL byte"},
    {"KeyBrokenUtf8", [](Builder& b) { b.u32("a\xFFz", 1); }, "key 'a\\xffz' is not valid UTF-8"},
    {"KeySurrogate", [](Builder& b) { b.u32("\xED\xA0\x80", 1); }, "is not valid UTF-8"},
    {"KeyOverlong", [](Builder& b) { b.u32("\xC0\xAF", 1); }, "is not valid UTF-8"},
    {"KeyTwice", [](Builder& b) { b.u32("n.u8", 1); }, "key 'n.u8' appears twice"},
    {"TypeUnknown",
     [](Builder& b) {
       b.pairs.push_back({"k", number_value(Builder::Type(13), 1)});
     },
     "key 'k': value type is 13, expected 0 to 12"},
    {"TypeMinus1",
     [](Builder& b) {
       b.pairs.push_back({"k", number_value(Builder::Type(-1), 1)});
     },
     "value type is 4294967295"},
    {"Bool2", [](Builder& b) { b.number("k", Builder::kBool, uint8_t(2)); }, "key 'k': bool is 2, expected 0 or 1"},
    {"StringBeyondFile",
     [](Builder& b) {
       b.pairs.push_back({"k", number_value(Builder::kString, uint64_t(1) << 40)});
     },
     "key 'k': file ends inside the string: 1099511627776 bytes needed"},
    {"StringMinus1",
     [](Builder& b) {
       b.pairs.push_back({"k", number_value(Builder::kString, UINT64_MAX)});
     },
     "18446744073709551615 bytes needed"},
    {"ArrayOfArrays", [](Builder& b) { b.array("k", Builder::kArray, 1, std::string(32, '\0')); },
     "key 'k': is an array of arrays"},
    {"ArrayTypeUnknown", [](Builder& b) { b.array("k", 99, 1, "x"); }, "array has value type 99"},
    {"ArrayLengthTimesSizeOverflows", [](Builder& b) { b.array("k", Builder::kU64, uint64_t(1) << 61, ""); },
     "array length is 2305843009213693952"},
    {"ArrayLengthMinus1", [](Builder& b) { b.array("k", Builder::kU8, UINT64_MAX, ""); },
     "array length is 18446744073709551615"},
    {"ArrayOf1e9Strings", [](Builder& b) { b.array("tokenizer.ggml.tokens", Builder::kString, 1000000000, ""); },
     "array length is 1000000000, but the"},
    {"ArrayOf1e9Bools", [](Builder& b) { b.array("k", Builder::kBool, 1000000000, ""); }, "array length is 1000000000"},
    {"ArrayBool3", [](Builder& b) { b.array("k", Builder::kBool, 2, "\1\3"); }, "bool is 3"},
    {"ArrayStringBeyondFile",
     [](Builder& b) { b.array("k", Builder::kString, 1, ByteString().number(uint64_t(1) << 50).str()); },
     "file ends inside the string of an array"},
    alignment_case("Alignment0", number_value(Builder::kU32, uint32_t(0)),
                   "'general.alignment' is 0, expected a power"),
    alignment_case("Alignment1", number_value(Builder::kU32, uint32_t(1)), "'general.alignment' is 1,"),
    alignment_case("Alignment3", number_value(Builder::kU32, uint32_t(3)), "'general.alignment' is 3,"),
    alignment_case("Alignment4", number_value(Builder::kU32, uint32_t(4)), "expected a power of two from 8 to 1048576"),
    alignment_case("Alignment24", number_value(Builder::kU32, uint32_t(24)), "'general.alignment' is 24,"),
    alignment_case("Alignment2To21", number_value(Builder::kU32, uint32_t(1) << 21), "'general.alignment' is 2097152"),
    alignment_case("Alignment2To31", number_value(Builder::kU32, uint32_t(1) << 31),
                   "'general.alignment' is 2147483648"),
    alignment_case("Alignment2To63", number_value(Builder::kU64, uint64_t(1) << 63),
                   "'general.alignment' is 9223372036854775808"),
    alignment_case("AlignmentFloat", number_value(Builder::kF32, 32.0f), "is a float, expected an unsigned integer"),
    alignment_case("AlignmentSigned", number_value(Builder::kI32, int32_t(-32)), "expected an unsigned integer"),
};

const HostileCase kTensorCases[] = {
    {"NameEmpty", [](Builder& b) { b.f32("", {4}); }, "tensor name '' is empty"},
    {"NameWithNul", [](Builder& b) { b.f32(std::string("a\0", 2), {4}); }, "holds a NUL byte"},
    {"NameBrokenUtf8", [](Builder& b) { b.f32("\x80", {4}); }, "tensor name '\\x80' is not valid UTF-8"},
    {"NameOver64KiB", [](Builder& b) { b.f32(std::string(70000, 'n'), {4}); }, "has 70000 bytes"},
    {"NameLengthBeyondFile", [](Builder& b) { b.tensors[0].name_length = UINT64_MAX / 2; }, "inside the tensor name"},
    {"NameTwice", [](Builder& b) { b.f32("token_embd.weight", {4}); }, "tensor 'token_embd.weight' appears twice"},
    {"Dims0", [](Builder& b) { b.tensors[0].n_dims = 0; },
     "tensor 'token_embd.weight' has 0 dimensions, expected 1 to 4"},
    {"Dims5",
     [](Builder& b) {
       b.f32("t", {1, 1, 1, 1, 1});
     },
     "tensor 't' has 5 dimensions"},
    {"Dims2To32Minus1", [](Builder& b) { b.tensors[0].n_dims = UINT32_MAX; }, "has 4294967295 dimensions"},
    {"NeZero", [](Builder& b) { b.tensors[0].ne[1] = 0; }, "has dimension 0 of size 0, expected at least 1"},
    {"NeNegative", [](Builder& b) { b.tensors[0].ne[0] = uint64_t(-4); }, "has dimension 1 of size -4"},
    {"NeSmallest", [](Builder& b) { b.tensors[0].ne[0] = uint64_t(1) << 63; }, "of size -9223372036854775808"},
    {"NeProductOverflows",
     [](Builder& b) {
       b.tensors[0].ne = {uint64_t(1) << 32, uint64_t(1) << 32};
     },
     "has more elements than 63 bits can count"},
    {"NeProductWrapsToSmall",
     [](Builder& b) {
       b.tensors[0].ne = {uint64_t(1) << 62, 4, 3};
     },
     "has more elements than 63 bits can count"},
    {"BytesOverflow", [](Builder& b) { b.tensors[0].ne = {uint64_t(1) << 62}; }, "more bytes than 64 bits can count"},
    {"RowNotAMultipleOfTheGroup",
     [](Builder& b) {
       b.tensors.push_back({"q", {33}, 8, std::string(68, 'x')});
     },
     "tensor 'q' has rows of 33 elements, expected a multiple of 32"},
    {"RowsMultipleOnlyAsAWhole",
     [](Builder& b) {
       b.tensors.push_back({"q", {16, 2}, 8, std::string(34, 'x')});
     },
     "tensor 'q' has rows of 16 elements"},
    {"TypeRetired4", [](Builder& b) { b.tensors[0].type = 4; }, "has type id 4 (not supported; supported: 0 = f32"},
    {"TypeI2SRows", [](Builder& b) { b.tensors[0].type = 36; }, "rows of 4 elements, expected a multiple of 128"},
    {"TypeNvfp4Rows", [](Builder& b) { b.tensors[0].type = 40; }, "rows of 4 elements, expected a multiple of 64"},
    {"Type41", [](Builder& b) { b.tensors[0].type = 41; }, "tensor 'token_embd.weight' has type id 41 (not supported"},
    {"TypeMinus1", [](Builder& b) { b.tensors[0].type = UINT32_MAX; }, "has type id 4294967295"},
    {"OffsetNotAligned", [](Builder& b) { b.tensors[1].offset = 36; },
     "tensor 'output_norm.weight' starts at offset 36, expected a multiple of the alignment 32"},
    {"OffsetPastEnd", [](Builder& b) { b.tensors[1].offset = 1 << 20; }, "tensor 'output_norm.weight' needs bytes"},
    {"OffsetOneStepPastEnd", [](Builder& b) { b.tensors[1].offset = 96; }, "but the file has"},
    {"OffsetPlusSizeOverflows", [](Builder& b) { b.tensors[1].offset = UINT64_MAX - 31; }, "needs bytes"},
    {"DataOneByteShort", [](Builder& b) { b.tensors[1].data.pop_back(); }, "needs bytes"},
    {"SizePastEnd", [](Builder& b) { b.tensors[1].ne = {1 << 20}; }, "needs bytes"},
    {"SamePlace", [](Builder& b) { b.tensors[1].offset = 0; },
     "tensors 'token_embd.weight' and 'output_norm.weight' overlap"},
    {"OverlapByABlock", [](Builder& b) { b.tensors[1].offset = 32; }, "overlap: bytes [0, 48) and [32, 48)"},
};

std::string case_name(const testing::TestParamInfo<HostileCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Header, HostileGgufTest, testing::ValuesIn(kHeaderCases), case_name);
INSTANTIATE_TEST_SUITE_P(Metadata, HostileGgufTest, testing::ValuesIn(kMetadataCases), case_name);
INSTANTIATE_TEST_SUITE_P(Tensors, HostileGgufTest, testing::ValuesIn(kTensorCases), case_name);

TEST(HostileGguf, TheUnchangedFileIsValid) {
  const auto bytes = exact_bytes(small_gguf().build());
  const auto gguf = parse_gguf(bytes, "small.gguf");
  EXPECT_TRUE(gguf.has_value()) << gguf.error().message;
}

TEST(HostileGguf, TruncationAtEveryByteIsRefused) {
  const std::string whole = small_gguf().build();
  ASSERT_GT(whole.size(), 500u);
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    expect_refused(parse_gguf(exact_bytes(whole.substr(0, size)), "cut.gguf"), "cut.gguf: ");
  }
}

TEST(HostileGguf, NoChangeOfOneByteReachesOutsideTheFile) {
  const std::string whole = small_gguf().build();
  int n_accepted = 0;
  for (size_t at = 0; at < whole.size(); ++at)
    for (const uint8_t change : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF}) {
      std::string mutated = whole;
      mutated[at] = char(uint8_t(mutated[at]) ^ change);
      const auto bytes = exact_bytes(mutated);
      const auto gguf = parse_gguf(bytes, "flip.gguf");
      if (!gguf) continue;
      ++n_accepted;
      for (const Tensor& tensor : gguf->tensors) touch(tensor);
    }
  EXPECT_GT(n_accepted, 0);  // changes inside values and data are not faults
}

TEST(HostileGguf, RowsThatBlocksDoNotDivideAreRefusedInEveryFormat) {
  for (const WeightFormat& format : weight_formats()) {
    if (format.gguf_type < 0 || format.group == 1) continue;
    for (const int n : {1, format.group - 1, format.group + 1, 3 * format.group / 2}) {
      Builder builder = small_gguf();
      builder.tensors.push_back({"q",
                                 {uint64_t(n), uint64_t(format.group)},
                                 uint32_t(format.gguf_type),
                                 std::string(size_t(format.row_bytes(int64_t(n) * format.group)), 'x')});
      expect_refused(
          parse_gguf(exact_bytes(builder.build()), "rows.gguf"),
          fmt::format("rows of {} elements, expected a multiple of {} ({} packs", n, format.group, format.name));
    }
  }
}

TEST(HostileGguf, LongNamesAreCutInMessages) {
  Builder builder = small_gguf();
  builder.f32(std::string(60000, 'n'), {4}).f32(std::string(60000, 'n'), {4});
  expect_refused(parse_gguf(exact_bytes(builder.build()), "long.gguf"), "...' (60000 bytes) appears twice");
}

}  // namespace
}  // namespace ridge::io
