// The seed corpora of the container readers' fuzz targets are made here, so that they can be made again: the committed
// files must be these bytes. RIDGE_BLESS=1 writes them. Files that a fuzzer found (crash-*) stay beside them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "cases/gguf_builder.h"
#include "cases/paths.h"
#include "cases/safetensors_builder.h"
#include "io/mapped_file.h"

namespace ridge::io {
namespace {

using Seeds = std::map<std::string, std::string>;  // file name to bytes

Seeds gguf_seeds() {
  GgufBuilder blocks;
  blocks.text("general.architecture", "qwen2").u32("general.alignment", 64);
  blocks.alignment = 64;
  blocks.tensors.push_back({"q8", {32, 2}, 8, std::string(68, '\1')});
  blocks.tensors.push_back({"q4", {32}, 2, std::string(18, '\2')});
  blocks.tensors.push_back({"half", {2, 2, 2, 2}, 1, std::string(32, '\3')});
  blocks.tensors.push_back({"brain", {5}, 30, std::string(10, '\4')});

  GgufBuilder vocab;
  vocab.version = 2;
  vocab.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "\xE2\x96\x81"});
  vocab.numbers<float>("tokenizer.ggml.scores", GgufBuilder::kF32, {0, 0, 0, -1});
  vocab.numbers<int32_t>("tokenizer.ggml.token_type", GgufBuilder::kI32, {2, 3, 3, 1});
  vocab.u32("tokenizer.ggml.bos_token_id", 1).number("tokenizer.ggml.add_bos_token", GgufBuilder::kBool, uint8_t(1));

  GgufBuilder shard;
  shard.number("split.no", GgufBuilder::kU16, uint16_t(1)).number("split.count", GgufBuilder::kU16, uint16_t(2));
  shard.number("split.tensors.count", GgufBuilder::kI32, int32_t(1)).f32("output.weight", {2, 2});

  GgufBuilder hostile = small_gguf();
  hostile.array("deep", GgufBuilder::kArray, 1, std::string(32, '\t')).tensors[1].offset = 0;

  return {{"small", small_gguf().build()}, {"blocks", blocks.build()},   {"vocab", vocab.build()},
          {"shard", shard.build()},        {"hostile", hostile.build()}, {"bare", GgufBuilder().build()}};
}

Seeds safetensors_seeds() {
  return {{"small", small_safetensors()},
          {"three", safetensors_of({"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"})},
          {"none", safetensors_image("{}", "")},
          {"metadata", safetensors_image(R"({"__metadata__":{"format":"pt","a":"\u00e9"}})", "")},
          {"overlap", safetensors_image(R"({"a":{"dtype":"F16","shape":[3],"data_offsets":[0,6]},)"
                                        R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[4,8]}})",
                                        "12345678")}};
}

Seeds json_seeds() {
  return {{"config", R"({"architectures":["Qwen3ForCausalLM"],"rms_norm_eps":1e-06,"rope_scaling":null,)"
                     R"("tie_word_embeddings":true,"rope_theta":1000000,"hidden_size":-1})"},
          {"tokenizer", R"({"version":"1.0","added_tokens":[{"id":0,"content":"<|endoftext|>","special":true}],)"
                        R"("model":{"type":"BPE","vocab":{"a":0,"\u0120b":1},"merges":["a b",["c","d"]]}})"},
          {"strings", R"(["\"\\\/\b\f\n\r\t","\u00e9\ud83d\ude00","é😀",""])"},
          {"numbers", "[0,-0,1.5,-2e-3,1E+30,18446744073709551615,18446744073709551616,-9223372036854775809]"},
          {"deep", std::string(128, '[') + std::string(128, ']')},
          {"twice", R"({"a":{"b":1,"b":2}})"}};
}

/// The committed files are these bytes, or are made so.
void check_corpus(const std::string& target, const Seeds& seeds) {
  const std::filesystem::path folder = std::filesystem::path(RIDGE_SOURCE_DIR "/tests/fuzz/corpus") / target;
  for (const auto& [name, bytes] : seeds) {
    EXPECT_LT(bytes.size(), 4096u) << name;
    if (std::getenv("RIDGE_BLESS") != nullptr) {
      std::filesystem::create_directories(folder);
      std::ofstream(folder / name, std::ios::binary) << bytes;
    }
    const auto committed = read_text_file(folder / name, 4096);
    ASSERT_TRUE(committed.has_value()) << committed.error().message << " (run with RIDGE_BLESS=1 to write it)";
    EXPECT_TRUE(*committed == bytes) << folder / name << " differs (run with RIDGE_BLESS=1 to write it again)";
  }
}

TEST(FuzzCorpus, SeedsAreWhatTheBuildersMake) {
  check_corpus("gguf", gguf_seeds());
  check_corpus("safetensors", safetensors_seeds());
  check_corpus("json", json_seeds());
}

}  // namespace
}  // namespace ridge::io
