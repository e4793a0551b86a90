// From the text of a template to its tree.
#pragma once

#include "text/jinja_natives.h"

namespace ridge::text::jinja {

enum class TokenKind : uint8_t {
  text,        ///< outside of tags
  open_block,  ///< {%
  open_value,  ///< {{
  close,       ///< %} or }}
  name,
  string,
  integer,
  real,
  sign,  ///< an operator or a bracket
  end,
};

struct Token {
  TokenKind kind;
  std::string text;
  int line = 1, column = 1;  ///< 1 based; columns count bytes
};

/// Tokens of a template as jinja2 reads it with trim_blocks and lstrip_blocks; the last one is `end`. Throws Trouble.
std::vector<Token> tokens_of(std::string_view source);

enum class NodeKind : uint8_t {
  // Expressions. "?" marks a child that may be null.
  constant,       ///< value
  name,           ///< name
  list,           ///< elements
  tuple,          ///< elements
  dict,           ///< key, value, key, value, ...
  attribute,      ///< object; name
  subscript,      ///< object, key
  slice,          ///< object, start?, stop?, step?
  call,           ///< callee, arguments
  keyword,        ///< value; name: an argument given by name
  filter,         ///< operand, arguments; name
  test,           ///< operand, arguments; name
  piped,          ///< the text that a filter block or set block filters
  negative,       ///< operand
  positive,       ///< operand
  logical_not,    ///< operand
  logical_and,    ///< left, right
  logical_or,     ///< left, right
  arithmetic,     ///< left, right; op
  concatenation,  ///< operands
  comparison,     ///< operands; name: one of "=!<l>gin" between each two
  choice,         ///< then, condition, else?
  // Statements.
  text,          ///< value
  output,        ///< expression
  body,          ///< statements
  if_block,      ///< condition, body, condition, body, ..., else
  for_block,     ///< target, iterable, filter?, body, else?
  set,           ///< target, expression
  set_block,     ///< target, body, filter
  macro,         ///< body, parameters; name
  parameter,     ///< default, if it has one; name
  call_block,    ///< call, macro
  filter_block,  ///< body, filter
  with_block,    ///< body, target, expression, target, expression, ...
  break_loop,
  continue_loop,
};

struct Node {
  NodeKind kind;
  int line = 0, column = 0;
  std::string name = {};
  std::vector<std::unique_ptr<Node>> kids = {};
  Value value = {};
  Operator op = {};
  Native native = nullptr;  ///< of a filter or test; null if there is none of the name
  int depth = 1;
};

/// Nodes above each other in a tree, and brackets in each other.
inline constexpr int kMaxTreeDepth = 400;
inline constexpr int kMaxNesting = 150;
inline constexpr size_t kMaxSource = size_t(1) << 20;
/// Bytes of a name: comparing two of them is one step.
inline constexpr size_t kMaxName = 256;

/// The tree of a template: a body. Throws Trouble.
std::unique_ptr<Node> parse(std::string_view source);

}  // namespace ridge::text::jinja
