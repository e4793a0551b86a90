// The GGUF reader on valid files: what every kind of value becomes, shapes, spans, typed access, real models.
#include "io/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cases/bytes.h"
#include "cases/gguf_builder.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"

namespace ridge::io {
namespace {

template <class T>
T value(const Gguf& gguf, std::string_view key) {
  const auto found = gguf.metadata.find(key);
  if (found == gguf.metadata.end()) throw std::runtime_error("no key " + std::string(key));
  return std::get<T>(found->second);
}

float element(const Tensor& tensor, size_t index) {
  float result = 0;
  std::memcpy(&result, tensor.data.subspan(index * sizeof(float), sizeof(float)).data(), sizeof(float));
  return result;
}

TEST(Gguf, KeepsEveryKindOfValue) {
  const auto bytes = exact_bytes(small_gguf().build());
  const Gguf gguf = parse_gguf(bytes, "small").or_throw();
  EXPECT_EQ(gguf.version, 3u);
  EXPECT_EQ(gguf.metadata.size(), 17u);
  EXPECT_EQ(value<std::string>(gguf, "general.architecture"), "llama");
  EXPECT_EQ(value<uint64_t>(gguf, "n.u8"), 200u);
  EXPECT_EQ(value<int64_t>(gguf, "n.i8"), -100);
  EXPECT_EQ(value<uint64_t>(gguf, "n.u16"), 60000u);
  EXPECT_EQ(value<int64_t>(gguf, "n.i16"), -30000);
  EXPECT_EQ(value<uint64_t>(gguf, "n.u32"), 4000000000u);
  EXPECT_EQ(value<int64_t>(gguf, "n.i32"), -5);
  EXPECT_EQ(value<uint64_t>(gguf, "n.u64"), uint64_t(1) << 63);
  EXPECT_EQ(value<int64_t>(gguf, "n.i64"), INT64_MIN);
  EXPECT_EQ(value<double>(gguf, "n.f32"), 0.5);
  EXPECT_EQ(value<double>(gguf, "n.f64"), 1e300);
  EXPECT_EQ(value<bool>(gguf, "b"), true);
  EXPECT_EQ(value<std::vector<int64_t>>(gguf, "a.i32"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(value<std::vector<double>>(gguf, "a.f32"), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(value<std::vector<uint64_t>>(gguf, "a.u64"), (std::vector<uint64_t>{7, uint64_t(1) << 63}));
  EXPECT_EQ(value<std::vector<bool>>(gguf, "a.bool"), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(value<std::vector<std::string>>(gguf, "a.text"), (std::vector<std::string>{"x", "", "\xE2\x96\x81y"}));
}

TEST(Gguf, ArraysOfEveryNumberTypeKeepTheirValues) {
  GgufBuilder builder;
  builder.numbers<uint8_t>("u8", GgufBuilder::kU8, {0, 255}).numbers<int8_t>("i8", GgufBuilder::kI8, {-128, 127});
  builder.numbers<uint16_t>("u16", GgufBuilder::kU16, {65535}).numbers<int16_t>("i16", GgufBuilder::kI16, {-32768});
  builder.numbers<uint32_t>("u32", GgufBuilder::kU32, {4294967295u}).numbers<int64_t>("i64", GgufBuilder::kI64, {-1});
  builder.numbers<double>("f64", GgufBuilder::kF64, {1e-300}).numbers<uint8_t>("none", GgufBuilder::kU8, {});
  const auto bytes = exact_bytes(builder.build());
  const Gguf gguf = parse_gguf(bytes, "arrays").or_throw();
  EXPECT_EQ(value<std::vector<uint64_t>>(gguf, "u8"), (std::vector<uint64_t>{0, 255}));
  EXPECT_EQ(value<std::vector<int64_t>>(gguf, "i8"), (std::vector<int64_t>{-128, 127}));
  EXPECT_EQ(value<std::vector<uint64_t>>(gguf, "u16"), (std::vector<uint64_t>{65535}));
  EXPECT_EQ(value<std::vector<int64_t>>(gguf, "i16"), (std::vector<int64_t>{-32768}));
  EXPECT_EQ(value<std::vector<uint64_t>>(gguf, "u32"), (std::vector<uint64_t>{4294967295u}));
  EXPECT_EQ(value<std::vector<int64_t>>(gguf, "i64"), (std::vector<int64_t>{-1}));
  EXPECT_EQ(value<std::vector<double>>(gguf, "f64"), (std::vector<double>{1e-300}));
  EXPECT_TRUE(value<std::vector<uint64_t>>(gguf, "none").empty());
  EXPECT_EQ(gguf.integers("u32").or_throw(), (std::vector<int64_t>{4294967295}));
}

TEST(Gguf, TensorShapesAreRowMajorAndSpansAreTheTensorsBytes) {
  const auto bytes = exact_bytes(small_gguf().build());
  const Gguf gguf = parse_gguf(bytes, "small").or_throw();
  ASSERT_EQ(gguf.tensors.size(), 2u);
  const Tensor* const embedding = gguf.find("token_embd.weight");
  const Tensor* const norm = gguf.find("output_norm.weight");
  ASSERT_NE(embedding, nullptr);
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(gguf.find("output.weight"), nullptr);
  EXPECT_EQ(embedding->format->name, "f32");
  EXPECT_EQ(embedding->shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(embedding->data.size(), 48u);
  EXPECT_EQ(element(*embedding, 11), 11.0f);
  EXPECT_EQ(norm->shape, (std::vector<int64_t>{4}));
  EXPECT_EQ(element(*norm, 0), 100.0f);
  EXPECT_EQ(norm->data.data() + norm->data.size(), bytes.data() + bytes.size());
}

TEST(Gguf, BlockFormatsTakeTheirBlocksBytes) {
  GgufBuilder builder;
  builder.tensors.push_back({"q8", {64, 2}, 8, std::string(4 * 34, '\1')});
  builder.tensors.push_back({"q4", {32}, 2, std::string(18, '\2')});
  const auto bytes = exact_bytes(builder.build());
  const Gguf gguf = parse_gguf(bytes, "blocks").or_throw();
  EXPECT_EQ(gguf.find("q8")->data.size(), 136u);
  EXPECT_EQ(gguf.find("q4")->data.size(), 18u);
  EXPECT_EQ(gguf.find("q4")->data[0], std::byte{2});
}

TEST(Gguf, TensorsMayLieInAnyOrderWithGapsAndBytesAfterThem) {
  GgufBuilder builder;
  builder.f32("first", {8}, 1).f32("second", {8}, 50);
  builder.tensors[0].offset = 64;
  builder.tensors[0].data = std::string(32, '\0') + std::string(32, '\0') + builder.tensors[0].data;
  builder.tensors[1].offset = 0;
  builder.tensors[1].data = "";
  builder.tail = "tail";
  const auto bytes = exact_bytes(builder.build());
  const auto gguf = parse_gguf(bytes, "gaps");
  ASSERT_TRUE(gguf.has_value()) << gguf.error().message;
  EXPECT_EQ(element(*gguf->find("first"), 0), 1.0f);
}

TEST(Gguf, AlignmentIsTheFilesOwn) {
  for (const uint32_t alignment : {8u, 16u, 32u, 64u, 4096u, 1u << 20}) {
    GgufBuilder builder;
    builder.alignment = alignment;
    builder.u32("general.alignment", alignment).f32("a", {3}, 1).f32("b", {3}, 7);
    const auto bytes = exact_bytes(builder.build());
    const auto gguf = parse_gguf(bytes, "aligned");
    ASSERT_TRUE(gguf.has_value()) << gguf.error().message;
    EXPECT_EQ(size_t(gguf->find("b")->data.data() - bytes.data()) % alignment, 0u);
    EXPECT_EQ(element(*gguf->find("b"), 2), 9.0f);
  }
}

TEST(Gguf, Version2IsReadAndAFileMayHaveNoTensors) {
  GgufBuilder builder;
  builder.version = 2;
  builder.text("tokenizer.ggml.model", "gpt2");
  const auto bytes = exact_bytes(builder.build());
  const auto gguf = parse_gguf(bytes, "vocab");
  ASSERT_TRUE(gguf.has_value()) << gguf.error().message;
  EXPECT_EQ(gguf->version, 2u);
  EXPECT_TRUE(gguf->tensors.empty());
}

TEST(Gguf, KeysAreNamesAndNeverPaths) {
  GgufBuilder builder;
  builder.u32("../../etc/passwd", 1).u32("\x1b[31mred", 2).u32(std::string(65535, 'k'), 3);
  const auto bytes = exact_bytes(builder.build());
  const auto gguf = parse_gguf(bytes, "keys");
  ASSERT_TRUE(gguf.has_value()) << gguf.error().message;
  EXPECT_EQ(gguf->integer("../../etc/passwd").or_throw(), 1);
  EXPECT_EQ(gguf->integer(std::string(65535, 'k')).or_throw(), 3);
  expect_refused(gguf->text("\x1b[31mred"), "key '\\x1b[31mred' is an integer, expected a string");
}

TEST(GgufTypedAccess, IntegersConvertWhenInRange) {
  const auto bytes = exact_bytes(small_gguf().build());
  const Gguf gguf = parse_gguf(bytes, "small.gguf").or_throw();
  EXPECT_EQ(gguf.integer("n.u32").or_throw(), 4000000000);
  EXPECT_EQ(gguf.integer("n.i64").or_throw(), INT64_MIN);
  EXPECT_EQ(gguf.number("n.i8").or_throw(), -100.0);
  EXPECT_EQ(gguf.number("n.u64").or_throw(), 0x1p63);
  EXPECT_EQ(gguf.number("n.f64").or_throw(), 1e300);
  EXPECT_TRUE(gguf.flag("b").or_throw());
  EXPECT_EQ(gguf.text("general.architecture").or_throw(), "llama");
  EXPECT_EQ(gguf.integers("a.i32").or_throw(), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(gguf.numbers("a.i32").or_throw(), (std::vector<double>{1, -2, 3}));
  EXPECT_EQ(gguf.numbers("a.f32").or_throw(), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(gguf.numbers("a.u64").or_throw(), (std::vector<double>{7, 0x1p63}));
  EXPECT_EQ(gguf.texts("a.text").or_throw().size(), 3u);
  EXPECT_TRUE(gguf.has("b"));
  EXPECT_FALSE(gguf.has("c"));
}

TEST(GgufTypedAccess, FailuresNameTheFileTheKeyAndBothTypes) {
  const auto bytes = exact_bytes(small_gguf().build());
  const Gguf gguf = parse_gguf(bytes, "small.gguf").or_throw();
  expect_refused(gguf.integer("llama.block_count"), "small.gguf: key 'llama.block_count' is missing");
  expect_refused(gguf.integer("general.architecture"), "key 'general.architecture' is a string, expected an integer");
  expect_refused(gguf.integer("n.f64"), "is a float, expected an integer");
  expect_refused(gguf.integer("n.u64"), "is 9223372036854775808, which is past 63 bits");
  expect_refused(gguf.integer("b"), "is a bool, expected an integer");
  expect_refused(gguf.number("general.architecture"), "is a string, expected a number");
  expect_refused(gguf.text("n.u8"), "is an integer, expected a string");
  expect_refused(gguf.flag("n.u8"), "is an integer, expected a bool");
  expect_refused(gguf.integers("n.u8"), "is an integer, expected an array of integers");
  expect_refused(gguf.integers("a.u64"), "past 63 bits");
  expect_refused(gguf.integers("a.f32"), "is an array of floats, expected an array of integers");
  expect_refused(gguf.numbers("a.text"), "is an array of strings, expected an array of numbers");
  expect_refused(gguf.texts("a.bool"), "is an array of bools, expected an array of strings");
}

TEST(GgufOnDisk, OpensAFileAndKeepsItMapped) {
  const TempDir dir;
  const GgufFile file = open_gguf(dir.write("m.gguf", small_gguf().build())).or_throw();
  EXPECT_EQ(file.files.size(), 1u);
  EXPECT_EQ(element(*file.gguf.find("output_norm.weight"), 3), 103.0f);
  expect_refused(open_gguf(dir / "none.gguf"), "No such file");
  expect_refused(open_gguf(dir.path()), "it is a directory");
}

TEST(GgufOnDisk, AHugeSparseFileCostsNoMemory) {
  GgufBuilder builder;
  builder.array("a", GgufBuilder::kU8, uint64_t(1) << 38, "");
  const TempDir dir;
  const auto path = dir.write("sparse.gguf", builder.build());
  std::filesystem::resize_file(path, uint64_t(1) << 39);
  expect_refused(open_gguf(path), "array length is 274877906944");
}

TEST(GgufRealFiles, Stories260KIsAWholeModel) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "no reference data (set RIDGE_DATA)";
  const auto file = open_gguf(*data / "models/stories260K/stories260Ktok512.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const Gguf& gguf = file->gguf;
  EXPECT_EQ(gguf.text("general.architecture").or_throw(), "llama");
  EXPECT_EQ(gguf.integer("llama.embedding_length").or_throw(), 64);
  EXPECT_EQ(gguf.integer("llama.block_count").or_throw(), 5);
  EXPECT_EQ(gguf.texts("tokenizer.ggml.tokens").or_throw().size(), 512u);
  EXPECT_EQ(gguf.numbers("tokenizer.ggml.scores").or_throw().size(), 512u);
  ASSERT_EQ(gguf.tensors.size(), 48u);
  ASSERT_NE(gguf.find("token_embd.weight"), nullptr);
  EXPECT_EQ(gguf.find("token_embd.weight")->shape, (std::vector<int64_t>{512, 64}));
  ASSERT_NE(gguf.find("blk.4.attn_k.weight"), nullptr);
  EXPECT_EQ(gguf.find("blk.4.attn_k.weight")->shape, (std::vector<int64_t>{32, 64}));
  for (const Tensor& tensor : gguf.tensors)
    for (size_t i = 0; i < tensor.data.size() / sizeof(float); ++i)
      ASSERT_TRUE(std::isfinite(element(tensor, i))) << tensor.name << " " << i;
}

TEST(GgufRealFiles, VocabulariesHaveNoTensors) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "no reference data (set RIDGE_DATA)";
  int n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*data / "vocab")) {
    if (entry.path().extension() != ".gguf") continue;
    ++n_files;
    const auto file = open_gguf(entry.path());
    ASSERT_TRUE(file.has_value()) << file.error().message;
    EXPECT_TRUE(file->gguf.tensors.empty());
    EXPECT_GT(file->gguf.texts("tokenizer.ggml.tokens").or_throw().size(), 30000u) << entry.path();
  }
  EXPECT_GE(n_files, 5);
}

}  // namespace
}  // namespace ridge::io
