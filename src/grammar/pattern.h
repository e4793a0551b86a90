// Regular expressions of JSON Schema as parts of a grammar of JSON strings.
#pragma once

#include <string_view>

#include "grammar/json_text.h"

namespace ridge::grammar {

/// The contents of the JSON strings that match `pattern`, in ECMA-262's notation. Like JSON Schema it may match
/// anywhere in the string unless ^ and $ say otherwise; these stand at the ends of the pattern or of its alternatives.
/// Known: characters, . [sets] \d \w \s and their opposites, \t \n \r \f \v \xHH \uHHHH, groups ( ) and (?: ), |, * + ?
/// {m} {m,} {m,n}, lazy forms too. Refused with their place: look-around, references, \b, \p, named groups.
Result<Expr> pattern_contents(std::string_view pattern, Builder& builder, JsonText& json);

}  // namespace ridge::grammar
