// Compiled grammars that a server keeps: bounded by bytes, the last used ones stay.
#include "serve/structure.h"

#include <gtest/gtest.h>

#include "cases/paths.h"

namespace ridge::serve {
namespace {

Json schema(int number) {
  return {{"response_format",
           {{"type", "json_schema"},
            {"json_schema",
             {{"name", "s"},
              {"schema",
               {{"type", "object"},
                {"properties", {{"field" + std::to_string(number), {{"type", "string"}, {"maxLength", 9 + number}}}}},
                {"additionalProperties", false}}}}}}}};
}

TEST(Structures, KeepsGrammarsUpToSoManyBytes) {
  static const Engine* const kEngine = new Engine(RIDGE_SOURCE_DIR "/models/stories260K.gguf", {.n_threads = 1});
  Structures one(*kEngine);
  ASSERT_TRUE(one.read(schema(0), nullptr, AnswerForm{}));
  const size_t each = one.kept_bytes();
  ASSERT_GT(each, 1000u);

  Structures few(*kEngine, 4 * each);
  size_t most = 0;
  for (int i = 0; i < 24; ++i) {
    ASSERT_TRUE(few.read(schema(i), nullptr, AnswerForm{})());
    most = std::max(most, few.kept_bytes());
  }
  EXPECT_LE(most, 4 * each) << "bounded whatever comes";
  EXPECT_GT(most, 2 * each) << "and used";
  // The one of every other request stays: asking for it again adds nothing.
  for (int i = 0; i < 8; ++i) {
    few.read(schema(100), nullptr, AnswerForm{});
    const size_t before = few.kept_bytes();
    few.read(schema(100), nullptr, AnswerForm{});
    EXPECT_EQ(few.kept_bytes(), before);
    few.read(schema(200 + i), nullptr, AnswerForm{});
  }
  Structures tiny(*kEngine, 1);
  const auto maker = tiny.read(schema(1), nullptr, AnswerForm{});
  EXPECT_GT(tiny.kept_bytes(), 1u) << "the newest one stays";
  tiny.read(schema(2), nullptr, AnswerForm{});
  EXPECT_TRUE(maker()) << "who has one keeps it";
}

}  // namespace
}  // namespace ridge::serve
