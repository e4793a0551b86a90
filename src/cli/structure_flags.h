// Flags that give answers a structure: `ridge run` and `ridge chat`.
#pragma once

#include "cli/options.h"
#include "serve/structure.h"

namespace ridge::cli {

struct StructureFlags {
  std::string json_schema, grammar;  ///< text, or the file that has it

  bool on() const { return !json_schema.empty() || !grammar.empty(); }
};
void add_structure_flags(CLI::App& app, StructureFlags& flags);

/// Structure of answers by the flags, as a server's requests ask for it. Reads files: throws usage.
class AnswerStructure {
 public:
  /// `model` must outlive it.
  AnswerStructure(const StructureFlags& flags, const Model& model);

  /// The rule of one answer of such a form, behind its reasoning; null where the flags ask for nothing. Throws usage
  /// that names the flag for what cannot be compiled.
  std::unique_ptr<TokenRule> rule(const serve::AnswerForm& form);

 private:
  std::string flag_;
  serve::Json body_ = serve::Json::object();
  serve::Structures structures_;
};

}  // namespace ridge::cli
