// open_gguf() on split models: shards are found, checked against each other and merged.
#include <gtest/gtest.h>

#include <functional>

#include "cases/bytes.h"
#include "cases/gguf_builder.h"
#include "cases/temp_dir.h"
#include "io/gguf.h"

namespace ridge::io {
namespace {

namespace fs = std::filesystem;
constexpr int kShards = 3;

/// Three shards of a model with four tensors; the first has the metadata, as splitting tools write it.
std::vector<GgufBuilder> shards() {
  std::vector<GgufBuilder> shards(kShards);
  shards[0].text("general.architecture", "llama").u32("llama.block_count", 2);
  for (int i = 0; i < kShards; ++i) {
    shards[i].number("split.no", GgufBuilder::kU16, uint16_t(i));
    shards[i].number("split.count", GgufBuilder::kU16, uint16_t(kShards));
    shards[i].number("split.tensors.count", GgufBuilder::kI32, int32_t(kShards + 1));
    shards[i].f32("blk." + std::to_string(i), {4}, 10 * float(i));
  }
  shards[2].f32("output", {2}, 99);
  return shards;
}

std::string shard_name(int number) { return "model-0000" + std::to_string(number) + "-of-00003.gguf"; }

void write(const TempDir& dir, const std::vector<GgufBuilder>& shards) {
  for (size_t i = 0; i < shards.size(); ++i) dir.write(shard_name(int(i) + 1), shards[i].build());
}

/// The pair with this key, to be changed.
std::string& value_of(GgufBuilder& shard, std::string_view key) {
  for (auto& pair : shard.pairs)
    if (pair.key == key) return pair.value;
  throw std::runtime_error("no such key");
}

TEST(GgufSplit, AnyShardOpensTheWholeModel) {
  const TempDir dir;
  write(dir, shards());
  for (int named = 1; named <= kShards; ++named) {
    const auto file = open_gguf(dir / shard_name(named));
    ASSERT_TRUE(file.has_value()) << file.error().message;
    EXPECT_EQ(file->files.size(), 3u);
    ASSERT_EQ(file->gguf.tensors.size(), 4u);
    EXPECT_EQ(file->gguf.tensors[3].name, "output");
    EXPECT_EQ(file->gguf.find("blk.1")->data.data(),
              file->files[1].bytes().data() + file->files[1].bytes().size() - 16);
    EXPECT_EQ(file->gguf.text("general.architecture").or_throw(), "llama");
    EXPECT_FALSE(file->gguf.has("split.count"));
  }
}

TEST(GgufSplit, ShardsMayBeLinksIntoACache) {
  const TempDir dir;
  const auto parts = shards();
  for (int i = 0; i < kShards; ++i) {
    dir.write("blob" + std::to_string(i), parts[i].build());
    fs::create_symlink("blob" + std::to_string(i), dir / shard_name(i + 1));
  }
  EXPECT_EQ(open_gguf(dir / shard_name(1)).or_throw().gguf.tensors.size(), 4u);
}

TEST(GgufSplit, OneOfOneIsAnOrdinaryFile) {
  const TempDir dir;
  GgufBuilder single = small_gguf();
  single.number("split.count", GgufBuilder::kU16, uint16_t(1));
  EXPECT_TRUE(open_gguf(dir.write("model-00001-of-00001.gguf", single.build())).has_value());
  EXPECT_TRUE(open_gguf(dir.write("plain.gguf", small_gguf().build())).has_value());
}

struct SplitCase {
  const char* name;
  std::function<void(std::vector<GgufBuilder>&)> mutate;
  const char* message;
};
void PrintTo(const SplitCase& split, std::ostream* out) { *out << split.name; }
class HostileSplitTest : public testing::TestWithParam<SplitCase> {};

TEST_P(HostileSplitTest, IsRefusedWithTheReason) {
  const TempDir dir;
  std::vector<GgufBuilder> parts = shards();
  GetParam().mutate(parts);
  write(dir, parts);
  expect_refused(open_gguf(dir / shard_name(1)), GetParam().message);
}

const SplitCase kSplitCases[] = {
    {"LastMissing", [](auto& parts) { parts.pop_back(); }, "shard 3 of 3: cannot open"},
    {"OneBroken", [](auto& parts) { parts[1].magic = "????"; }, "shard 2 of 3: bad GGUF file"},
    {"OneWithoutAnything", [](auto& parts) { parts[1] = GgufBuilder(); }, "key 'split.count' is missing"},
    {"OneTwice", [](auto& parts) { parts[2] = parts[1]; }, "key 'split.no' is 1, expected 2"},
    {"Swapped", [](auto& parts) { std::swap(parts[1], parts[2]); }, "key 'split.no' is 2, expected 1"},
    {"OtherCount",
     [](auto& parts) { value_of(parts[1], "split.count") = number_value(GgufBuilder::kU16, uint16_t(4)); },
     "00002-of-00003.gguf: key 'split.count' is 4, expected 3"},
    {"CountOfTheWrongType",
     [](auto& parts) { value_of(parts[0], "split.count") = number_value(GgufBuilder::kF32, 3.0f); },
     "key 'split.count' is a float, expected an integer"},
    {"NoSplitKeys", [](auto& parts) { parts[0].pairs.resize(2); }, "key 'split.count' is missing"},
    {"OtherTensorCount",
     [](auto& parts) { value_of(parts[2], "split.tensors.count") = number_value(GgufBuilder::kI32, int32_t(5)); },
     "key 'split.tensors.count' is 5, expected 4"},
    {"TensorMissing", [](auto& parts) { parts[2].tensors.pop_back(); }, "the shards hold 3 tensors, expected 4"},
    {"TensorTooMany", [](auto& parts) { parts[1].f32("extra", {1}); }, "the shards hold 5 tensors, expected 4"},
    {"TensorInTwoShards", [](auto& parts) { parts[2].tensors[1].name = "blk.0"; }, "tensor 'blk.0' is in two shards"},
    {"OfAnotherArchitecture", [](auto& parts) { parts[1].text("general.architecture", "qwen2"); },
     "key 'general.architecture' differs from the first shard's"},
    {"OfAnotherModel", [](auto& parts) { parts[2].u32("llama.block_count", 3); }, "key 'llama.block_count' differs"},
};
INSTANTIATE_TEST_SUITE_P(All, HostileSplitTest, testing::ValuesIn(kSplitCases),
                         [](const testing::TestParamInfo<SplitCase>& test) { return std::string(test.param.name); });

TEST(GgufSplit, AShardUnderAnotherNameIsRefused) {
  const TempDir dir;
  const auto parts = shards();
  for (const char* name : {"renamed.gguf", "model-00001-of-00001.gguf", "model-0001-of-0003.gguf",
                           "model-00000-of-00003.gguf", "model-00004-of-00003.gguf", "model-+0001-of-00003.gguf"})
    expect_refused(open_gguf(dir.write(name, parts[0].build())), "it is one of 3 shards, but its name");
}

TEST(GgufSplit, ADeclaredCountOfManyShardsStopsAtTheFirstMissing) {
  const TempDir dir;
  GgufBuilder first = shards()[0];
  value_of(first, "split.count") = number_value(GgufBuilder::kU32, uint32_t(99999));
  expect_refused(open_gguf(dir.write("m-00001-of-99999.gguf", first.build())), "shard 2 of 99999: cannot open");
}

}  // namespace
}  // namespace ridge::io
