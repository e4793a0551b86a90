// --chat-template, templates that cannot be read, and what -m takes beside files with the usual names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cases/temp_dir.h"
#include "cli/run_program.h"
#include "io/gguf.h"

namespace ridge {
namespace {

using testing::HasSubstr;

/// The tiny model with a chat template.
void write_model(const std::filesystem::path& path, const std::string& chat_template) {
  const io::GgufFile file = io::open_gguf(kTinyModel).or_throw();
  auto metadata = file.gguf.metadata;
  metadata["tokenizer.chat_template"] = chat_template;
  metadata["tokenizer.chat_template.other"] = std::string("Once {{ messages[0].content }}");
  std::vector<io::GgufTensorSpec> specs;
  for (const io::Tensor& tensor : file.gguf.tensors) specs.push_back({tensor.name, tensor.format, tensor.shape});
  io::write_gguf(path, metadata, specs, [&](size_t i, std::vector<std::byte>& out) -> Status {
    out.assign(file.gguf.tensors[i].data.begin(), file.gguf.tensors[i].data.end());
    return {};
  }).or_throw();
}

Outcome run_chat(const std::string& model, std::vector<std::string> more = {}) {
  std::vector<std::string> args{"run", "-m", model, "--chat", "-p", "upon a time", "-n", "4", "--temp", "0"};
  args.insert(args.end(), more.begin(), more.end());
  return run_ridge(args);
}

TEST(ChatTemplateFlag, TakesAFileANameOfTheModelOrAStandardForm) {
  const TempDir dir;
  write_model(dir / "blob", "Never, ever, {{ messages[0].content }}");
  const std::string model = (dir / "blob").native();
  dir.write("file", "Once {{ messages[0].content }}");
  const auto n_prompt = [&](std::vector<std::string> more) {
    more.push_back("--json");
    const Outcome outcome = run_chat(model, more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).value("n_prompt", 0);
  };
  const int own = n_prompt({}), named = n_prompt({"--chat-template", "other"});
  EXPECT_GT(own, named);
  EXPECT_GT(named, 1);
  EXPECT_EQ(n_prompt({"--chat-template", (dir / "file").native()}), named);
  EXPECT_EQ(run_chat(kTinyModel, {"--chat-template", "chatml"}).code, 0);
}

TEST(ChatTemplateFlag, WhatIsNoTemplateIsRefused) {
  const TempDir dir;
  dir.write("broken", "{% for %}");
  Outcome outcome = run_chat(kTinyModel, {"--chat-template", "absent"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("chatml"));
  outcome = run_chat(kTinyModel, {"--chat-template", (dir / "broken").native()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("line 1, column 8"));
}

TEST(ChatTemplateFlag, AModelWithABrokenTemplateTakesPlainTextAndAnotherTemplate) {
  const TempDir dir;
  write_model(dir / "broken.gguf", "{% for %}");
  const std::string model = (dir / "broken.gguf").native();
  const Outcome plain = run_ridge({"run", "-m", model, "-p", "Once upon a time", "-n", "4", "--temp", "0"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_NE(plain.out, "");
  EXPECT_THAT(plain.err, HasSubstr("warning: plain text: ")) << "a template is never dropped without a word";
  const Outcome refused = run_chat(model);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("chat template: line 1, column 8"));
  EXPECT_THAT(refused.err, HasSubstr("--chat-template"));
  EXPECT_EQ(run_chat(model, {"--chat-template", "other"}).code, 0);
  EXPECT_EQ(run_ridge({"chat", "-m", model}, {.input = "Hi\n"}).code, 2);
}

TEST(ModelFlag, FoldersAndNamesOfDownloads) {
  const TempDir dir;
  write_model(dir / "sha256-0123", "{{ messages[0].content }}");
  Outcome outcome = run_chat(dir.path().native());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  write_model(dir / "second.gguf", "{{ messages[0].content }}");
  outcome = run_chat(dir.path().native());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("second.gguf, sha256-0123"));
  for (const char* given : {"HuggingFaceTB/SmolLM2-135M", "https://huggingface.co/a/b"}) {
    outcome = run_chat(given);
    EXPECT_EQ(outcome.code, 2) << given;
    EXPECT_THAT(outcome.err, HasSubstr("downloads nothing"));
  }
}

}  // namespace
}  // namespace ridge
