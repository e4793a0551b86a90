// Where models keep their chat templates: every place of both containers, and what cannot be read.
#include "io/chat_templates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/temp_dir.h"

namespace ridge::io {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string listed(const ChatTemplates& templates) {
  std::string text;
  for (const NamedTemplate& one : templates.named) text += one.name + "=" + one.source + ";";
  return text;
}

void write_model(const fs::path& path) {
  std::map<std::string, GgufValue, std::less<>> metadata =
      chat_template_metadata({{"default", "d"}, {"tool_use", "t"}});
  metadata["general.architecture"] = std::string("llama");
  write_gguf(path, metadata, {}, {}).or_throw();
}

TEST(ChatTemplates, AGgufFileOfAnyNameHasThem) {
  const TempDir dir;
  for (const char* name : {"model.gguf", "MODEL.GGUF", "sha256-0123abcd", "model.bin", "noname"}) {
    write_model(dir / name);
    const ChatTemplates read = read_chat_templates(dir / name);
    EXPECT_EQ(listed(read), "default=d;tool_use=t;") << name;
    EXPECT_EQ(read.problem, "");
  }
}

TEST(ChatTemplates, GgufKeys) {
  Gguf gguf{.where = "m.gguf"};
  EXPECT_EQ(listed(chat_templates_of_gguf(gguf)), "");
  gguf.metadata = chat_template_metadata({{"default", "a"}, {"rag", "b"}, {"tool.x", "c"}});
  EXPECT_EQ(gguf.texts("tokenizer.chat_templates").or_throw(), (std::vector<std::string>{"rag", "tool.x"}));
  EXPECT_EQ(listed(chat_templates_of_gguf(gguf)), "default=a;rag=b;tool.x=c;");
  EXPECT_FALSE(chat_template_metadata({{"default", "a"}}).contains("tokenizer.chat_templates"));
  gguf.metadata = {{"tokenizer.chat_template", int64_t(1)}, {"tokenizer.chat_template.tool_use", std::string("t")}};
  const ChatTemplates read = chat_templates_of_gguf(gguf);
  EXPECT_EQ(listed(read), "tool_use=t;");
  EXPECT_THAT(read.problem, HasSubstr("tokenizer.chat_template"));
}

TEST(ChatTemplates, FilesOfADirectory) {
  const TempDir dir;
  dir.write("config.json", "{}");
  const auto read = [&] { return listed(read_chat_templates(dir.path())); };
  EXPECT_EQ(read(), "");
  dir.write("chat_template.json", R"({"chat_template": "old"})");
  EXPECT_EQ(read(), "default=old;");
  dir.write("tokenizer_config.json",
            R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]})");
  EXPECT_EQ(read(), "default=d;rag=r;");
  dir.write("chat_template.jinja", "file");
  EXPECT_EQ(read(), "default=file;rag=r;");
  fs::create_directories(dir / "additional_chat_templates");
  dir.write("additional_chat_templates/tool_use.jinja", "t");
  dir.write("additional_chat_templates/notes.txt", "no template");
  EXPECT_EQ(read(), "default=file;tool_use=t;rag=r;");
  dir.write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(read(), "default=file;tool_use=t;");
  dir.write("tokenizer_config.json", R"({"chat_template": {"default": "o", "thinks": "p"}})");
  EXPECT_EQ(read(), "default=file;tool_use=t;thinks=p;");
  dir.write("processor_config.json", R"({"chat_template": {"default": "q", "sees": "r"}})");
  EXPECT_EQ(read(), "default=file;tool_use=t;thinks=p;sees=r;");
}

TEST(ChatTemplates, WhatCannotBeReadIsSaidAndTheRestIsRead) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("chat_template.json", R"({"chat_template": "good"})");
  for (const auto& [text, why] : {std::pair("{", "tokenizer_config.json"),
                                  {R"({"chat_template": 1})", "neither a text nor named templates"},
                                  {R"({"chat_template": {"a": 1}})", "chat_template.a is not a text"},
                                  {R"({"chat_template": [1]})", "entry 0"},
                                  {R"({"chat_template": [{"name": "a"}]})", "entry 0"},
                                  {R"({"chat_template": [{"name": 1, "template": 2}]})", "entry 0"}}) {
    dir.write("tokenizer_config.json", text);
    const ChatTemplates read = read_chat_templates(dir.path());
    EXPECT_EQ(listed(read), "default=good;") << text;
    EXPECT_THAT(read.problem, HasSubstr(why)) << text;
  }
  EXPECT_EQ(listed(read_chat_templates(dir / "absent")), "");
  EXPECT_EQ(read_chat_templates("synth:7b").problem, "");
}

TEST(ChatTemplates, CopiesGoToTheNewDirectory) {
  const TempDir from, to;
  from.write("config.json", "{}");
  from.write("chat_template.jinja", "a");
  from.write("chat_template.json", R"({"chat_template": "b"})");
  from.write("processor_config.json", R"({"chat_template": {"sees": "d"}})");
  fs::create_directories(from / "additional_chat_templates");
  from.write("additional_chat_templates/rag.jinja", "c");
  ASSERT_TRUE(copy_chat_templates(from.path(), to.path()));
  EXPECT_EQ(listed(chat_templates_of_directory(to.path())), "default=a;rag=c;sees=d;");
}

TEST(FindModel, TheOnlyGgufFileOfAFolder) {
  const TempDir dir;
  dir.write("README.md", "GGUF is the name of a format");
  dir.write("notes.gguf", "no model");
  EXPECT_EQ(find_model(dir.path()).or_throw(), dir.path());
  write_model(dir / "sha256-1");
  EXPECT_EQ(find_model(dir.path()).or_throw(), dir / "sha256-1");
  EXPECT_EQ(listed(read_chat_templates(dir.path())), "default=d;tool_use=t;");
  write_model(dir / "b.gguf");
  const auto several = find_model(dir.path());
  ASSERT_FALSE(several);
  EXPECT_EQ(several.error().kind, ErrorKind::usage);
  EXPECT_THAT(several.error().message, HasSubstr("b.gguf, sha256-1"));
  dir.write("config.json", "{}");
  EXPECT_FALSE(find_model(dir.path())) << "a config.json beside GGUF files is of the model they were made from";
  std::filesystem::remove(dir / "b.gguf");
  EXPECT_EQ(find_model(dir.path()).or_throw(), dir / "sha256-1");
  dir.write("model.safetensors", "x");
  EXPECT_EQ(find_model(dir.path()).or_throw(), dir.path());
}

TEST(FindModel, ShardsOfOneModelAreOneModel) {
  const TempDir dir;
  for (const char* name : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}) write_model(dir / name);
  EXPECT_EQ(find_model(dir.path()).or_throw(), dir / "m-00001-of-00002.gguf");
}

TEST(FindModel, WeightsOfAFolderAreTheFolder) {
  const TempDir dir;
  dir.write("model.safetensors", std::string_view("\x02\0\0\0\0\0\0\0{}", 10));
  EXPECT_EQ(find_model(dir / "model.safetensors").or_throw(), dir / "model.safetensors");
  dir.write("config.json", "{}");
  EXPECT_EQ(find_model(dir / "model.safetensors").or_throw(), dir.path());
  EXPECT_EQ(find_model(dir / "config.json").or_throw(), dir / "config.json");
}

TEST(FindModel, NamesOfModelsOnServers) {
  for (const char* given :
       {"HuggingFaceTB/SmolLM2-135M", "https://huggingface.co/a/b", "hf.co/a/b", "hf.co/a/b:Q4_0"}) {
    const auto found = find_model(given);
    ASSERT_FALSE(found) << given;
    EXPECT_EQ(found.error().kind, ErrorKind::usage);
    EXPECT_THAT(found.error().message, HasSubstr("downloads nothing")) << given;
  }
  for (const char* given : {"absent.gguf", "./absent", "/absent/model", "absent/model.gguf", "../a/b", "a/b/c"})
    EXPECT_TRUE(find_model(given)) << given;
}

}  // namespace
}  // namespace ridge::io
