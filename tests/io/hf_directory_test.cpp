// open_hf_directory(): which files are read, shards against their index, and the reference models.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "cases/bytes.h"
#include "cases/reference_data.h"
#include "cases/safetensors_builder.h"
#include "cases/temp_dir.h"
#include "io/safetensors.h"

namespace ridge::io {
namespace {

namespace fs = std::filesystem;

TEST(HfDirectory, ReadsConfigTokenizerAndTheSingleFile) {
  const TempDir dir;
  dir.write("config.json", "{\"a\":1}");
  dir.write("tokenizer.json", "tok");
  dir.write("tokenizer_config.json", "tokcfg");
  dir.write("model.safetensors", small_safetensors());
  dir.write("mtp.safetensors", "not read");
  const auto model = open_hf_directory(dir.path());
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(model->path, dir.path());
  EXPECT_EQ(model->config_json, "{\"a\":1}");
  EXPECT_EQ(model->tokenizer_json, "tok");
  EXPECT_EQ(model->tokenizer_config_json, "tokcfg");
  EXPECT_EQ(model->files.size(), 1u);
  ASSERT_NE(model->find("a"), nullptr);
  EXPECT_EQ(model->find("a")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(model->find("c"), nullptr);
}

TEST(HfDirectory, TheTokenizerIsOptionalAndTheOnlySafetensorsFileWillDo) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("tiny.safetensors", small_safetensors());
  const auto model = open_hf_directory(dir.path());
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(model->tokenizer_json, "");
  EXPECT_EQ(model->tokenizer_config_json, "");
  EXPECT_EQ(model->tensors.size(), 2u);
}

TEST(HfDirectory, EntriesMayBeLinksIntoACache) {
  const TempDir dir;
  fs::create_directories(dir / "snapshot");
  for (const auto& [name, text] :
       {std::pair<std::string, std::string>{"config.json", "{}"}, {"model.safetensors", small_safetensors()}}) {
    dir.write("blob-" + name, text);
    fs::create_symlink("../blob-" + name, dir.path() / "snapshot" / name);
  }
  EXPECT_TRUE(open_hf_directory(dir / "snapshot").has_value());
}

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kFirst = "model-00001-of-00002.safetensors", kSecond = "model-00002-of-00002.safetensors";

std::string index_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text = R"({"metadata":{"total_size":12},"weight_map":{)";
  for (const auto& [tensor, shard] : entries)
    text += (text.back() == '{' ? "\"" : ",\"") + tensor + "\":\"" + shard + "\"";
  return text + "}}";
}

/// A directory with tensors a and b in the first shard and c in the second.
void write_shards(const TempDir& dir) {
  dir.write("config.json", "{}");
  dir.write(kFirst, safetensors_of({"a", "b"}));
  dir.write(kSecond, safetensors_of({"c"}));
  const std::string first(kFirst), second(kSecond);
  dir.write(kIndexName, index_of({{"a", first}, {"b", first}, {"c", second}}));
}

TEST(HfDirectory, ShardsAreFoundThroughTheIndex) {
  const TempDir dir;
  write_shards(dir);
  dir.write("consolidated.safetensors", "not read");
  const auto model = open_hf_directory(dir.path());
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(model->files.size(), 2u);
  EXPECT_EQ(model->tensors.size(), 3u);
  EXPECT_EQ(model->find("c")->data.data() + 4, model->files[1].bytes().data() + model->files[1].bytes().size());
}

struct DirectoryCase {
  const char* name;
  std::function<void(const TempDir&)> mutate;  ///< of write_shards()
  const char* message;
};
void PrintTo(const DirectoryCase& hostile, std::ostream* out) { *out << hostile.name; }
class HostileDirectoryTest : public testing::TestWithParam<DirectoryCase> {};

TEST_P(HostileDirectoryTest, IsRefusedWithTheReason) {
  const TempDir dir;
  write_shards(dir);
  GetParam().mutate(dir);
  expect_refused(open_hf_directory(dir.path()), GetParam().message);
}

/// A case whose index says that tensor a is in a file of this name.
DirectoryCase shard_name_case(const char* name, const std::string& shard) {
  return {name,
          [shard](const TempDir& dir) {
            dir.write(kIndexName, index_of({{"a", shard}}));
          },
          "expected a plain *.safetensors file name"};
}
/// A case with this index text.
DirectoryCase index_case(const char* name, const std::string& text, const char* message) {
  return {name, [text](const TempDir& dir) { dir.write(kIndexName, text); }, message};
}

const std::string kFirstText(kFirst), kSecondText(kSecond);
const DirectoryCase kDirectoryCases[] = {
    {"NoConfig", [](auto& dir) { fs::remove(dir / "config.json"); }, "there is no config.json"},
    {"ConfigIsADirectory",
     [](auto& dir) {
       fs::remove(dir / "config.json");
       fs::create_directory(dir / "config.json");
     },
     "it is a directory"},
    {"ConfigHuge", [](auto& dir) { fs::resize_file(dir / "config.json", uint64_t(1) << 35); },
     "it has 34359738368 bytes, expected at most 16777216"},
    {"TokenizerHuge", [](auto& dir) { fs::resize_file(dir.write("tokenizer.json", "x"), uint64_t(1) << 35); },
     "it has 34359738368 bytes"},
    {"TokenizerIsALinkLoop", [](auto& dir) { fs::create_symlink("tokenizer.json", dir / "tokenizer.json"); },
     "loop of symbolic links"},
    {"SingleFileIsADirectory", [](auto& dir) { fs::create_directory(dir / "model.safetensors"); }, "it is a directory"},
    {"SingleFileIsBroken", [](auto& dir) { dir.write("model.safetensors", "broken"); }, "bad safetensors file"},
    {"ShardsWithoutIndex", [](auto& dir) { fs::remove(dir / kIndexName); }, "and 2 other *.safetensors files"},
    {"NoWeights",
     [](auto& dir) {
       for (const auto name : {kIndexName, kFirst, kSecond}) fs::remove(dir / name);
       dir.write("pytorch_model.bin", "x");
     },
     "and 0 other *.safetensors files, expected one (only safetensors weights are read here"},
    {"ShardMissing", [](auto& dir) { fs::remove(dir / kSecond); }, "No such file"},
    {"ShardBroken", [](auto& dir) { dir.write(kSecond, "broken"); }, "bad safetensors file"},
    {"ShardOfAnotherModel", [](auto& dir) { dir.write(kSecond, safetensors_of({"z"})); },
     "shard 'model-00002-of-00002.safetensors' has tensor 'z', which the index does not list"},
    {"ShardCopied",
     [](auto& dir) {
       dir.write(kSecond, safetensors_of({"a", "b"}));
     },
     "shard 'model-00002-of-00002.safetensors' has tensor 'a'"},
    {"TensorInAnotherShard",
     [](auto& dir) {
       dir.write(kFirst, safetensors_of({"a", "c"}));
       dir.write(kSecond, safetensors_of({"b"}));
     },
     "tensor 'c' is in shard 'model-00001-of-00002.safetensors', but the index says"},
    {"TensorMissing", [](auto& dir) { dir.write(kFirst, safetensors_of({"a"})); },
     "tensor 'b' is not in shard 'model-00001-of-00002.safetensors'"},
    {"TensorExtra",
     [](auto& dir) {
       dir.write(kFirst, safetensors_of({"a", "b", "x"}));
     },
     "has tensor 'x', which the index does not list"},
    index_case("IndexNotJson", "{", "bad JSON"),
    index_case("IndexNotAnObject", "[]", "it has no object 'weight_map'"),
    index_case("IndexWithoutMap", "{}", "it has no object 'weight_map'"),
    index_case("IndexMapEmpty", R"({"weight_map":{}})", "'weight_map' is empty"),
    index_case("IndexMapNotAnObject", R"({"weight_map":["a"]})", "it has no object 'weight_map'"),
    index_case("IndexEntryNotAString", R"({"weight_map":{"a":1}})", "tensor 'a' is said to be in number"),
    index_case("IndexTensorTwice", R"({"weight_map":{"a":")" + kFirstText + R"(","a":")" + kSecondText + R"("}})",
               "appears twice"),
    shard_name_case("ShardNameParent", "../model.safetensors"),
    shard_name_case("ShardNameAbsolute", "/etc/model.safetensors"),
    shard_name_case("ShardNameInside", "sub/model.safetensors"),
    shard_name_case("ShardNameBackslash", "..\\\\model.safetensors"),
    shard_name_case("ShardNameDots", ".."),
    shard_name_case("ShardNameHidden", ".safetensors"),
    shard_name_case("ShardNameEmpty", ""),
    shard_name_case("ShardNameNul", "a\\u0000.safetensors"),
    shard_name_case("ShardNameNewline", "a\\n.safetensors"),
    shard_name_case("ShardNameOtherKind", "pytorch_model.bin"),
    shard_name_case("ShardNameLong", std::string(300, 'a') + ".safetensors"),
};
INSTANTIATE_TEST_SUITE_P(All, HostileDirectoryTest, testing::ValuesIn(kDirectoryCases),
                         [](const testing::TestParamInfo<DirectoryCase>& test) {
                           return std::string(test.param.name);
                         });

TEST(HfDirectory, OnlyADirectoryIsOne) {
  const TempDir dir;
  expect_refused(open_hf_directory(dir / "none"), "No such file");
  expect_refused(open_hf_directory(dir.write("file", "x")), "it is not a directory");
}

TEST(HfDirectory, AFifoAmongTheFilesDoesNotHang) {
  const TempDir dir;
  write_shards(dir);
  fs::remove(dir / kSecond);
  ASSERT_EQ(::mkfifo((dir / kSecond).c_str(), 0600), 0);
  expect_refused(open_hf_directory(dir.path()), "it is a pipe");
}

/// Every element of an f32 tensor is finite.
void expect_finite(const Tensor& tensor) {
  for (size_t at = 0; at + sizeof(float) <= tensor.data.size(); at += sizeof(float)) {
    float element = 0;
    std::memcpy(&element, tensor.data.data() + at, sizeof(float));
    ASSERT_TRUE(std::isfinite(element)) << tensor.name << " byte " << at;
  }
}

TEST(HfRealModels, RidgeRefIsReadWithoutItsMtpHead) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "no reference data (set RIDGE_DATA)";
  const auto model = open_hf_directory(*data / "models/ridge-ref");
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(model->files.size(), 1u);
  EXPECT_EQ(model->tensors.size(), 74u);
  EXPECT_FALSE(model->config_json.empty());
  EXPECT_FALSE(model->tokenizer_json.empty());
  ASSERT_NE(model->find("model.embed_tokens.weight"), nullptr);
  EXPECT_EQ(model->find("model.embed_tokens.weight")->shape.size(), 2u);
}

TEST(HfRealModels, Tiny1mIsReadFromItsOwnFileName) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "no reference data (set RIDGE_DATA)";
  const auto model = open_hf_directory(*data / "models/tiny1m");
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ(model->tensors.size(), 39u);
  EXPECT_EQ(model->tokenizer_json, "");
  ASSERT_NE(model->find("lm_head.weight"), nullptr);
  EXPECT_EQ(model->find("lm_head.weight")->shape, (std::vector<int64_t>{512, 128}));
  for (const Tensor& tensor : model->tensors) expect_finite(tensor);
}

}  // namespace
}  // namespace ridge::io
