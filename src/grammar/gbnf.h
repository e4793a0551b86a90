// GBNF, the notation of grammars that llama.cpp takes.
#pragma once

#include <string_view>

#include "grammar/grammar.h"

namespace ridge::grammar {

/// Rules `name ::= ...`; the text is what `root` matches. Alternatives with |, groups, "text", [characters] with ranges
/// and ^, . for any character, * + ? {m} {m,} {m,n} {,n}, comments from # to the line's end. An alternative goes on in
/// the next line after |, in a group, or where the next line does not begin a rule. Escapes: \n \r \t \\ \" \[ \] \- \^
/// \xHH \uHHHH \UHHHHHHHH; all are characters, and text is matched in UTF-8. Refuses with line and column what it
/// cannot read, names without a rule, two rules of one name, a missing root, and what Builder::finish() refuses.
Result<Grammar> parse_gbnf(std::string_view text);

}  // namespace ridge::grammar
