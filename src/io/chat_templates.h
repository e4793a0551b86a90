// Chat templates that come with a model, in every place where the two containers keep them. Their sources are not
// parsed here.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/gguf.h"

namespace ridge::io {

/// A Jinja template and what it is for: "default" is that of chats, "tool_use" that of chats with tools.
struct NamedTemplate {
  std::string name, source;
};

/// The templates of a model. What cannot be read does not stop a model from being used: `problem` says what and where.
struct ChatTemplates {
  std::vector<NamedTemplate> named;
  std::string problem = {};

  const NamedTemplate* find(std::string_view name) const;
};

/// tokenizer.chat_template ("default") and every tokenizer.chat_template.NAME.
ChatTemplates chat_templates_of_gguf(const Gguf& gguf);
/// chat_template.jinja and additional_chat_templates/NAME.jinja, then what `chat_template` of tokenizer_config.json,
/// chat_template.json and processor_config.json adds under other names: a text, an object of texts by their names, or a
/// list of objects with name and template.
ChatTemplates chat_templates_of_directory(const std::filesystem::path& directory);
/// Those of a directory or of a GGUF file, whatever its name. None for what is neither: models of numbers have no file.
ChatTemplates read_chat_templates(const std::filesystem::path& model);
/// The GGUF keys of these templates (inverse of chat_templates_of_gguf).
std::map<std::string, GgufValue, std::less<>> chat_template_metadata(const std::vector<NamedTemplate>& named);
/// Copies the files of chat templates that one model directory has to another.
Status copy_chat_templates(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace ridge::io
