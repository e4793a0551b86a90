// --json-schema and --grammar: answers of ridge run and ridge chat that have a structure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cases/temp_dir.h"
#include "cli/run_program.h"

namespace ridge {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::MatchesRegex;

constexpr const char* kSchema =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer"}},)"
    R"("required":["name","age"],"additionalProperties":false})";
constexpr const char* kGrammar = R"(root ::= ("yes" | "no") ", " [a-z]{3} ".")";

Outcome run_structured_with(std::vector<std::string> more, const RunOptions& options = {}) {
  std::vector<std::string> args{"run", "-m", kTinyModel, "--quiet", "-p", "Once upon a time", "--seed", "4"};
  args.insert(args.end(), more.begin(), more.end());
  return run_ridge(args, options);
}

void expect_person(const std::string& text) {
  const json person = json::parse(text, nullptr, false);
  ASSERT_TRUE(person.is_object()) << text;
  EXPECT_EQ(person.size(), 2u);
  EXPECT_TRUE(person["name"].is_string() && person["age"].is_number_integer()) << text;
}

TEST(Structure, AnswersHaveTheSchemaOfATextOrAFile) {
  const TempDir dir;
  const std::string file = dir.write("schema.json", std::string_view(kSchema)).native();
  for (const char* temperature : {"0", "1.5"}) {
    const Outcome text = run_structured_with({"--temp", temperature, "-n", "80", "--json-schema", kSchema});
    EXPECT_EQ(text.code, 0) << text.err;
    expect_person(text.out);
    EXPECT_EQ(run_structured_with({"--temp", temperature, "-n", "80", "-j", file}).out, text.out);
    EXPECT_EQ(run_structured_with({"--temp", temperature, "-n", "80", "-j", file, "--spec-type", "lookup"}).out,
              text.out);
  }
  expect_person(
      run_structured_with({"-n", "24", "--json-schema", kSchema}).out);  // the limit brings the text to its end
}

TEST(Structure, AnswersAreTextsOfTheGrammar) {
  const TempDir dir;
  const std::string file = dir.write("answer.gbnf", std::string_view(kGrammar)).native();
  const Outcome text = run_structured_with({"--grammar", kGrammar, "--json"});
  ASSERT_EQ(text.code, 0) << text.err;
  const json row = json::parse(text.out);
  EXPECT_THAT(row["text"].get<std::string>(), MatchesRegex("(yes|no), [a-z][a-z][a-z]\\."));
  EXPECT_EQ(row["stopped"], "end token");
  EXPECT_EQ(json::parse(run_structured_with({"--grammar-file", file, "--json"}).out)["text"], row["text"]);
}

/// The structure is the answer's; the reasoning in front is as free as without, also where it takes all tokens.
TEST(Structure, BeginsBehindTheReasoning) {
  const TempDir dir;
  const auto answer_behind = [&](const std::string& mark, std::vector<std::string> more) {
    const std::string file = dir.write("form.jinja", "{{ messages[0].content }}" + mark + "\n").native();
    more.insert(more.end(), {"--chat", "--chat-template", file, "-n", "40", "--temp", "0.9", "--json"});
    const Outcome outcome = run_structured_with(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  const json thinking = answer_behind("<think>", {"--json-schema", kSchema});
  EXPECT_EQ(thinking["text"], "");
  EXPECT_EQ(thinking["reasoning_content"], answer_behind("<think>", {})["reasoning_content"]);
  expect_person(answer_behind("<think>\n\n</think>", {"--json-schema", kSchema})["text"].get<std::string>());
}

TEST(Structure, EveryAnswerOfAChatHasIt) {
  const Outcome outcome =
      run_ridge({"chat", "-m", kTinyModel, "--quiet", "--json", "--no-history", "--seed", "2", "--grammar", kGrammar},
                {.input = "Hello\nAgain\n"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  int n_answers = 0;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line); ++n_answers)
    EXPECT_THAT(json::parse(line)["content"].get<std::string>(), MatchesRegex("(yes|no), [a-z][a-z][a-z]\\.")) << line;
  EXPECT_EQ(n_answers, 2);
}

TEST(Structure, WhatCannotBeOneIsRefused) {
  const auto expect_refused = [](std::vector<std::string> flags, const std::string& why) {
    const Outcome outcome = run_structured_with(std::move(flags));
    EXPECT_EQ(outcome.code, 2) << why;
    EXPECT_THAT(outcome.err, HasSubstr(why));
    EXPECT_EQ(outcome.out, "");
  };
  expect_refused({"--json-schema", kSchema, "--grammar", kGrammar}, "--grammar: --json-schema already says");
  expect_refused({"--grammar", "root ::= other"}, "--grammar: ");
  expect_refused({"--json-schema", R"({"type": "animal"})"}, "--json-schema: ");
  expect_refused({"--json-schema", "{"}, "--json-schema: ");
  expect_refused({"--json-schema", "/nowhere/schema.json"}, "neither a text with { nor a file");
  const Outcome debate = run_ridge({"chat", "-m", kTinyModel, "--debate", "A", "B", "--grammar", kGrammar});
  EXPECT_EQ(debate.code, 2);
  EXPECT_THAT(debate.err, HasSubstr("--debate: its sides talk freely"));
}

}  // namespace
}  // namespace ridge
