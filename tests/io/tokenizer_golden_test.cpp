// Tokenizers against ids that Hugging Face's tokenizers package computed (tests/golden/tokenizers, reference data).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/reference_data.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/tokenizer.h"

namespace ridge::io {
namespace {

using Ids = std::vector<int32_t>;

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_text_file(path, 1 << 24).or_throw(), path.native()).or_throw();
}

TEST(TokenizerGolden, EveryVariantGivesTheIdsOfHuggingFace) {
  const Json golden = read_json(RIDGE_SOURCE_DIR "/tests/golden/tokenizers/ids.json");
  const auto texts = golden["texts"].get<std::vector<std::string>>();
  ASSERT_EQ(golden["variants"].size(), 18u);
  for (const Json& variant : golden["variants"]) {
    Json document = golden[variant["base"].get<std::string>()];
    document.merge_patch(variant["change"]);
    const TokenizerSpec spec = tokenizer_spec_from_hf(document.dump(), "", "golden").or_throw();
    Gguf gguf;
    gguf.metadata = tokenizer_metadata(spec);
    if (spec.model != TokenizerModel::bpe || !spec.unk) {  // what GGUF says back is the same tokenizer
      EXPECT_EQ(tokenizer_spec_from_gguf(gguf, "golden").or_throw(), spec) << variant["base"] << variant["change"];
    }
    const Tokenizer tokenizer = Tokenizer::make(spec).or_throw();
    ASSERT_EQ(variant["ids"].size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i)
      EXPECT_EQ(tokenizer.encode(texts[i], false, true), variant["ids"][i].get<Ids>())
          << variant["base"] << variant["change"] << Json(texts[i]);
  }
}

TEST(TokenizerGolden, ControlTokensWithRulesAreTextUnlessAskedFor) {
  const Json golden = read_json(RIDGE_SOURCE_DIR "/tests/golden/tokenizers/ids.json");
  Json document = golden["byte_level"];
  document.merge_patch(golden["variants"][1]["change"]);
  const Tokenizer tokenizer =
      Tokenizer::make(tokenizer_spec_from_hf(document.dump(), "", "golden").or_throw()).or_throw();
  const std::string text = "a <l> b";
  EXPECT_EQ(tokenizer.encode(text, false, true).size(), 4u);  // a, the token with its space, a space, b
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false, false)), text);
}

/// Broken UTF-8 and texts of one kind of character come back whole from Unigram and Metaspace too.
TEST(TokenizerGolden, BrokenUtf8ComesBackFromUnigram) {
  const Json golden = read_json(RIDGE_SOURCE_DIR "/tests/golden/tokenizers/ids.json");
  Json document = golden["unigram"];
  document.merge_patch(golden["variants"].back()["change"]);
  const Tokenizer tokenizer =
      Tokenizer::make(tokenizer_spec_from_hf(document.dump(), "", "golden").or_throw()).or_throw();
  for (const std::string text : {"\xFF\xFEhello\x80", "\xE4\xB8", "a\xF0\x9F\x98 b", "\xC3\x28 the"})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false, true)), text);
}

TEST(TokenizerGolden, TheTinyModelsOfTheReferenceDataGiveTheirIds) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "needs the reference data: set RIDGE_DATA";
  const std::filesystem::path models = *data / "parity" / "models";
  if (!std::filesystem::exists(models)) GTEST_SKIP() << "the reference data has no parity/models";
  const Json cases = read_json(models / "tokenizer_cases.json");
  ASSERT_GE(cases.size(), 8u);
  const auto check = [&](const TokenizerSpec& spec, const std::string& where) {
    const Tokenizer tokenizer = Tokenizer::make(spec).or_throw();
    for (const Json& one : cases)
      EXPECT_EQ(tokenizer.encode(one["text"].get<std::string>(), false, true), one["ids"].get<Ids>())
          << where << ": " << one["text"];
  };
  int n_read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (!entry.is_directory()) continue;
    const std::string config = read_text_file(entry.path() / "tokenizer_config.json", 1 << 20).or_throw();
    check(tokenizer_spec_from_hf(read_text_file(entry.path() / "tokenizer.json", 1 << 24).or_throw(), config,
                                 entry.path().native())
              .or_throw(),
          entry.path().native());
    ++n_read;
  }
  EXPECT_GE(n_read, 18);
}

}  // namespace
}  // namespace ridge::io
