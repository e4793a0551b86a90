#include "cli/structure_flags.h"

#include <filesystem>

#include "io/mapped_file.h"

namespace ridge::cli {
namespace {

constexpr uint64_t kMaxStructureBytes = uint64_t(16) << 20;

/// The value itself where it has `sign`, which stands in every such text and in no file's name; else what the file has.
std::string text_or_file(std::string_view flag, const std::string& value, std::string_view sign) {
  if (value.find(sign) != value.npos) return value;
  const auto text = io::read_text_file(value, kMaxStructureBytes);
  if (!text) bad_flag(flag, fmt::format("neither a text with {} nor a file: {}", sign, text.error().message));
  return *text;
}

serve::Json schema_of(std::string_view flag, const std::string& value) {
  const std::string text = text_or_file(flag, value, "{");
  try {
    return serve::parse_body(text);
  } catch (const serve::ApiError& error) {
    bad_flag(flag, error.message);
  }
}

}  // namespace

void add_structure_flags(CLI::App& app, StructureFlags& flags) {
  in_group(app, "Structure");
  add_text(app, "--json-schema", flags.json_schema, "FILE|TEXT",
           "the answer is JSON of this schema; a reasoning model reasons first (-j)");
  add_text(app, "--grammar", flags.grammar, "FILE|TEXT", "the answer is a text of this GBNF grammar");
}

AnswerStructure::AnswerStructure(const StructureFlags& flags, const Model& model) : structures_(model.engine()) {
  if (!flags.on()) return;
  if (!flags.json_schema.empty() && !flags.grammar.empty())
    bad_flag("--grammar", "--json-schema already says what answers are", "leave out one of them");
  flag_ = flags.grammar.empty() ? "--json-schema" : "--grammar";
  if (!model.info().has_tokenizer) bad_flag(flag_, "a model without a tokenizer writes no texts", "leave it out");
  if (flags.grammar.empty())
    body_["response_format"] = {{"type", "json_schema"},
                                {"json_schema", {{"name", "answer"}, {"schema", schema_of(flag_, flags.json_schema)}}}};
  else body_["grammar"] = text_or_file(flag_, flags.grammar, "::=");
  rule({});  // refuses nonsense before a prompt is read
}

std::unique_ptr<TokenRule> AnswerStructure::rule(const serve::AnswerForm& form) {
  try {
    const serve::Structures::Maker make = structures_.read(body_, nullptr, form);
    return make ? make() : nullptr;
  } catch (const serve::ApiError& error) {
    bad_flag(flag_, error.message);
  }
}

}  // namespace ridge::cli
