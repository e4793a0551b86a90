// Five published vocabularies against the ids that llama.cpp gives for 47 texts (tests/golden/vocab).
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "cases/paths.h"
#include "cases/reference_data.h"
#include "io/tokenizer.h"

namespace ridge::io {
namespace {

const std::filesystem::path kVectors = RIDGE_SOURCE_DIR "/tests/golden/vocab";
const std::filesystem::path kShipped = RIDGE_SOURCE_DIR "/models/vocab";

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> split(const std::string& all, std::string_view separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = all.find(separator, begin)) != std::string::npos; begin = end + separator.size())
    parts.push_back(all.substr(begin, end - begin));
  parts.push_back(all.substr(begin));
  return parts;
}

/// The texts stand between separator lines; the line breaks around a separator belong to it, and the last text is the
/// empty one after the last separator.
std::vector<std::string> read_texts() { return split(read_file(kVectors / "texts.inp"), "\n__ggml_vocab_test__\n"); }

/// One line of ids per text; the last is empty and has no line break.
std::vector<std::vector<int32_t>> read_ids(const std::filesystem::path& path) {
  std::vector<std::vector<int32_t>> ids;
  for (const std::string& line : split(read_file(path), "\n")) {
    std::istringstream numbers(line);
    ids.emplace_back(std::istream_iterator<int32_t>(numbers), std::istream_iterator<int32_t>());
  }
  return ids;
}

struct Vocabulary {
  const char* name;
  const char* reference;  ///< file in the reference data when the vocabulary's licence keeps it out of the repository
};

std::optional<std::filesystem::path> path_of(const Vocabulary& vocabulary) {
  if (vocabulary.reference == nullptr) return kShipped / (std::string(vocabulary.name) + ".gguf");
  const auto data = reference_data();
  return data ? std::optional(*data / "vocab" / vocabulary.reference) : std::nullopt;
}

class VocabularyTest : public testing::TestWithParam<Vocabulary> {
 protected:
  void SetUp() override {
    const auto path = path_of(GetParam());
    if (!path || !std::filesystem::exists(*path)) GTEST_SKIP() << "needs the reference data: set RIDGE_DATA";
    file_ = open_gguf(*path).or_throw();
    spec_ = tokenizer_spec_from_gguf(file_.gguf, path->string()).or_throw();
    tokenizer_.emplace(Tokenizer::make(spec_).or_throw());
  }
  GgufFile file_;
  TokenizerSpec spec_;
  std::optional<Tokenizer> tokenizer_;
};

TEST_P(VocabularyTest, EveryTextGivesTheReferenceIds) {
  const auto texts = read_texts();
  const auto expected = read_ids(kVectors / (std::string(GetParam().name) + ".out"));
  ASSERT_EQ(texts.size(), 47u);
  ASSERT_EQ(expected.size(), 47u);
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(tokenizer_->encode(texts[i], false, false), expected[i]) << "text " << i << ": " << texts[i];
}

TEST_P(VocabularyTest, EveryTextComesBackFromItsIds) {
  for (const std::string& text : read_texts())
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, true, false)), text);
}

TEST_P(VocabularyTest, EveryByteComesBackEvenWhenItIsNotUtf8) {
  std::string bytes;
  for (int first = 0; first < 256; ++first)
    for (const int second : {0x00, 0x20, 0x41, 0x80, 0xBF, 0xC3, 0xE2, 0xF0, 0xFF})
      bytes += {char(first), char(second)};
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(bytes, false, false)), bytes);
}

TEST_P(VocabularyTest, ControlTextInInputIsOrdinaryTextUnlessParsed) {
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    if (!tokenizer_->is_control(id)) continue;
    const std::string text = tokenizer_->piece(id, true);
    const auto ordinary = tokenizer_->encode(text, false, false);
    for (const int32_t token : ordinary) EXPECT_FALSE(tokenizer_->is_control(token)) << text;
    EXPECT_EQ(tokenizer_->decode(ordinary), text);
    EXPECT_EQ(tokenizer_->encode(text, false, true), std::vector{id});
    EXPECT_EQ(tokenizer_->piece(id), "");
  }
}

TEST_P(VocabularyTest, SpecSurvivesTheWayThroughGgufMetadata) {
  Gguf copy;
  copy.metadata = tokenizer_metadata(spec_);
  EXPECT_TRUE(tokenizer_spec_from_gguf(copy, "copy").or_throw() == spec_);
}

INSTANTIATE_TEST_SUITE_P(Published, VocabularyTest,
                         testing::Values(Vocabulary{"gpt-2", nullptr}, Vocabulary{"phi-3", nullptr},
                                         Vocabulary{"qwen2", nullptr},
                                         Vocabulary{"llama-spm", "ggml-vocab-llama-spm.gguf"},
                                         Vocabulary{"llama-bpe", "ggml-vocab-llama-bpe.rebuilt.gguf"}),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace ridge::io
