#include "text/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace ridge::text::jinja {
namespace {

using NodeRef = std::unique_ptr<Node>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  NodeRef run() { return read_body({}); }

 private:
  const Token& now() const { return tokens_[at_]; }
  Token take() { return tokens_[now().kind == TokenKind::end ? at_ : at_++]; }
  bool at(TokenKind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool at_sign(std::string_view text) const { return at(TokenKind::sign, text); }
  bool at_name(std::string_view text) const { return at(TokenKind::name, text); }
  bool skip(TokenKind kind, std::string_view text) { return at(kind, text) && (++at_, true); }
  bool skip_sign(std::string_view text) { return skip(TokenKind::sign, text); }
  bool skip_name(std::string_view text) { return skip(TokenKind::name, text); }

  template <class... A>
  [[noreturn]] void wrong(const Token& token, fmt::format_string<A...> why, A&&... args) {
    throw Trouble{fmt::format(why, std::forward<A>(args)...), token.line, token.column};
  }
  void expect_sign(std::string_view text) {
    if (!skip_sign(text)) wrong(now(), "expected '{}', found '{}'", text, now().text);
  }
  void expect_name(std::string_view text) {
    if (!skip_name(text)) wrong(now(), "expected '{}', found '{}'", text, now().text);
  }
  void expect_close() {
    if (take().kind != TokenKind::close)
      wrong(tokens_[at_ - 1], "unexpected '{}' at the end of a tag", tokens_[at_ - 1].text);
  }
  std::string name() {
    if (now().kind != TokenKind::name) wrong(now(), "expected a name, found '{}'", now().text);
    return take().text;
  }

  NodeRef node(NodeKind kind, const Token& token, std::vector<NodeRef> kids = {}, std::string text = {}) {
    auto made = std::make_unique<Node>(Node{kind, token.line, token.column, std::move(text), std::move(kids)});
    for (const NodeRef& kid : made->kids)
      if (kid) made->depth = std::max(made->depth, kid->depth + 1);
    if (made->depth > kMaxTreeDepth) wrong(token, "the template nests deeper than {} levels", kMaxTreeDepth);
    return made;
  }
  template <class... Kids>
  NodeRef node_of(NodeKind kind, const Token& token, std::string text, Kids... kids) {
    std::vector<NodeRef> list;
    (list.push_back(std::move(kids)), ...);
    return node(kind, token, std::move(list), std::move(text));
  }
  NodeRef constant(const Token& token, Value value) {
    NodeRef made = node(NodeKind::constant, token);
    made->value = std::move(value);
    return made;
  }
  static Value text_value(std::string text) { return {Text{std::make_shared<const std::string>(std::move(text))}}; }

  /// Brackets, operators and statements in each other: what this parser calls itself for.
  struct Nest {
    explicit Nest(Parser& it) : parser(it) {
      if (++parser.nesting_ > kMaxNesting) parser.wrong(parser.now(), "nested deeper than {} levels", kMaxNesting);
    }
    ~Nest() { --parser.nesting_; }
    Parser& parser;
  };

  // Statements.

  /// Statements up to a tag whose name is one of `ends`; that name is the next token then.
  NodeRef read_body(std::initializer_list<std::string_view> ends) {
    const Nest nest(*this);
    const Token begin = now();
    std::vector<NodeRef> statements;
    for (;;) {
      const Token token = take();
      if (token.kind == TokenKind::end) {
        if (ends.size() > 0) wrong(token, "the template ends before '{}'", *(ends.end() - 1));
        return node(NodeKind::body, begin, std::move(statements));
      }
      if (token.kind == TokenKind::text) {
        statements.push_back(node(NodeKind::text, token));
        statements.back()->value = text_value(token.text);
      } else if (token.kind == TokenKind::open_value) {
        statements.push_back(node_of(NodeKind::output, token, "", tuple(true)));
        expect_close();
      } else if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) {
        return node(NodeKind::body, begin, std::move(statements));
      } else {
        statements.push_back(statement());
      }
    }
  }
  NodeRef read_block(std::initializer_list<std::string_view> ends) { return expect_close(), read_body(ends); }

  NodeRef statement() {
    const Token token = now();
    const std::string tag = name();
    if (tag == "if") return if_block(token);
    if (tag == "for") return for_block(token);
    if (tag == "set") return set(token);
    if (tag == "macro") {
      std::string called = name();
      return macro(token, std::move(called), "endmacro", parameters());
    }
    if (tag == "call") return call_block(token);
    if (tag == "filter") return filter_block(token);
    if (tag == "with") return with_block(token);
    if (tag == "generation")
      return finish("endgeneration", node_of(NodeKind::with_block, token, "", read_block({"endgeneration"})));
    if (tag != "break" && tag != "continue") wrong(token, "tag '{}' is not supported here", tag);
    if (loops_ == 0) wrong(token, "'{}' outside of a loop", tag);
    expect_close();
    return node(tag == "break" ? NodeKind::break_loop : NodeKind::continue_loop, token);
  }

  NodeRef finish(std::string_view end, NodeRef made) {
    expect_name(end);
    expect_close();
    return made;
  }

  NodeRef if_block(const Token& token) {
    std::vector<NodeRef> kids;
    do {
      kids.push_back(tuple(false));
      kids.push_back(read_block({"elif", "else", "endif"}));
    } while (skip_name("elif"));
    if (skip_name("else")) kids.push_back(read_block({"endif"}));
    return finish("endif", node(NodeKind::if_block, token, std::move(kids)));
  }

  NodeRef for_block(const Token& token) {
    NodeRef to = target(), items, filter, otherwise;
    expect_name("in");
    items = tuple(false);
    if (skip_name("if")) filter = expression();
    if (at_name("recursive")) wrong(now(), "recursive loops are not supported");
    ++loops_;
    NodeRef body = read_block({"else", "endfor"});
    --loops_;
    if (skip_name("else")) otherwise = read_block({"endfor"});
    return finish("endfor", node_of(NodeKind::for_block, token, "", std::move(to), std::move(items), std::move(filter),
                                    std::move(body), std::move(otherwise)));
  }

  NodeRef set(const Token& token) {
    NodeRef to = target();
    if (skip_sign("=")) {
      NodeRef made = node_of(NodeKind::set, token, "", std::move(to), tuple(true));
      return expect_close(), std::move(made);
    }
    NodeRef filter = postfix(node(NodeKind::piped, token), true);
    NodeRef body = read_block({"endset"});
    return finish("endset", node_of(NodeKind::set_block, token, "", std::move(to), std::move(body), std::move(filter)));
  }

  /// Parses the target of an assignment: a name, a namespace's attribute, or several of them.
  NodeRef target() {
    const Token token = now();
    std::vector<NodeRef> parts;
    do {
      if (!parts.empty() && now().kind != TokenKind::name && !at_sign("(")) break;
      parts.push_back(target_part());
    } while (skip_sign(","));
    const bool one = parts.size() == 1 && !(at_ > 0 && tokens_[at_ - 1].text == ",");
    return one ? std::move(parts[0]) : node(NodeKind::tuple, token, std::move(parts));
  }
  NodeRef target_part() {
    const Nest nest(*this);
    const Token token = now();
    if (skip_sign("(")) {
      NodeRef inner = target();
      return expect_sign(")"), std::move(inner);
    }
    NodeRef made = node(NodeKind::name, token, {}, name());
    for (const std::string_view constant : {"true", "True", "false", "False", "none", "None"})
      if (made->name == constant) wrong(token, "'{}' cannot be set", constant);
    return skip_sign(".") ? node_of(NodeKind::attribute, token, name(), std::move(made)) : std::move(made);
  }

  /// Parameters of a macro, behind the place of its body.
  std::vector<NodeRef> parameters() {
    std::vector<NodeRef> kids(1);
    expect_sign("(");
    while (!skip_sign(")")) {
      if (kids.size() > 1) expect_sign(",");
      const Token token = now();
      std::string called = name();
      if (skip_sign("=")) kids.push_back(node_of(NodeKind::parameter, token, std::move(called), expression()));
      else kids.push_back(node(NodeKind::parameter, token, {}, std::move(called)));
    }
    return kids;
  }

  /// The rest of a macro; loops around it are not its own.
  NodeRef macro(const Token& token, std::string called, std::string_view end, std::vector<NodeRef> kids) {
    const int loops = std::exchange(loops_, 0);
    kids[0] = read_block({end});
    loops_ = loops;
    return finish(end, node(NodeKind::macro, token, std::move(kids), std::move(called)));
  }

  NodeRef call_block(const Token& token) {
    std::vector<NodeRef> kids = at_sign("(") ? parameters() : std::vector<NodeRef>(1);
    NodeRef call = expression();
    if (call->kind != NodeKind::call) wrong(token, "'call' needs the call of a macro");
    return node_of(NodeKind::call_block, token, "", std::move(call),
                   macro(token, "caller", "endcall", std::move(kids)));
  }

  NodeRef filter_block(const Token& token) {
    NodeRef filter = postfix(filter_of(node(NodeKind::piped, token)), true);
    NodeRef body = read_block({"endfilter"});
    return finish("endfilter", node_of(NodeKind::filter_block, token, "", std::move(body), std::move(filter)));
  }

  NodeRef with_block(const Token& token) {
    std::vector<NodeRef> kids(1);
    while (now().kind == TokenKind::name) {
      kids.push_back(target_part());
      expect_sign("=");
      kids.push_back(expression());
      if (!skip_sign(",")) break;
    }
    kids[0] = read_block({"endwith"});
    return finish("endwith", node(NodeKind::with_block, token, std::move(kids)));
  }

  // Expressions, from the weakest operator to the strongest.

  bool at_tuple_end() const { return now().kind == TokenKind::close || at_sign(")"); }

  /// One expression, or several with commas. `choices`: x if y else z is allowed.
  NodeRef tuple(bool choices, bool may_be_empty = false) {
    const Token token = now();
    std::vector<NodeRef> parts;
    bool comma = false;
    while (!at_tuple_end()) {
      parts.push_back(choices ? expression() : logical_or());
      if (!skip_sign(",")) break;
      comma = true;
    }
    if (parts.empty() && !may_be_empty) wrong(token, "expected an expression, found '{}'", token.text);
    return parts.size() == 1 && !comma ? std::move(parts[0]) : node(NodeKind::tuple, token, std::move(parts));
  }

  NodeRef expression() {
    const Nest nest(*this);
    NodeRef made = logical_or();
    while (at_name("if")) {
      const Token token = take();
      NodeRef condition = logical_or(), otherwise;
      if (skip_name("else")) otherwise = expression();
      made = node_of(NodeKind::choice, token, "", std::move(made), std::move(condition), std::move(otherwise));
    }
    return made;
  }

  NodeRef logical_or() {
    NodeRef left = logical_and();
    while (at_name("or")) {
      const Token token = take();
      left = node_of(NodeKind::logical_or, token, "", std::move(left), logical_and());
    }
    return left;
  }
  NodeRef logical_and() {
    NodeRef left = logical_not();
    while (at_name("and")) {
      const Token token = take();
      left = node_of(NodeKind::logical_and, token, "", std::move(left), logical_not());
    }
    return left;
  }
  NodeRef logical_not() {
    if (!at_name("not")) return comparison();
    const Nest nest(*this);
    const Token token = take();
    return node_of(NodeKind::logical_not, token, "", logical_not());
  }

  /// The letter of the comparison that comes next, which is read; 0 if there is none.
  char comparison_sign() {
    constexpr std::pair<std::string_view, char> kSigns[] = {{"==", '='}, {"!=", '!'}, {"<", '<'},
                                                            {"<=", 'l'}, {">", '>'},  {">=", 'g'}};
    for (const auto& [sign, letter] : kSigns)
      if (skip_sign(sign)) return letter;
    if (skip_name("in")) return 'i';
    const bool not_in = at_name("not") && tokens_[at_ + 1].kind == TokenKind::name && tokens_[at_ + 1].text == "in";
    return not_in ? at_ += 2, 'n' : 0;
  }
  NodeRef comparison() {
    const Token token = now();
    std::vector<NodeRef> kids;
    std::string signs;
    kids.push_back(binary(0));
    while (const char sign = comparison_sign()) {
      signs += sign;
      kids.push_back(binary(0));
    }
    return signs.empty() ? std::move(kids[0]) : node(NodeKind::comparison, token, std::move(kids), signs);
  }

  /// Levels: 0 + and -, 1 ~, 2 products, 3 powers.
  NodeRef binary(int level) {
    struct Sign {
      std::string_view text;
      int level;
      Operator op;
    };
    constexpr Sign kSigns[] = {{"+", 0, Operator::add},           {"-", 0, Operator::subtract},
                               {"*", 2, Operator::multiply},      {"/", 2, Operator::divide},
                               {"%", 2, Operator::modulo},        {"~", 1, {}},
                               {"//", 2, Operator::floor_divide}, {"**", 3, Operator::power}};
    const auto next = [&] { return level == 3 ? unary(true) : binary(level + 1); };
    NodeRef left = next();
    for (;;) {
      const auto sign = std::find_if(std::begin(kSigns), std::end(kSigns),
                                     [&](const Sign& s) { return s.level == level && at_sign(s.text); });
      if (sign == std::end(kSigns)) return left;
      const Token token = take();
      left = node_of(level == 1 ? NodeKind::concatenation : NodeKind::arithmetic, token, "", std::move(left), next());
      left->op = sign->op;
    }
  }

  NodeRef unary(bool with_filters) {
    const Token token = now();
    if (!at_sign("-") && !at_sign("+")) return postfix(primary(), with_filters);
    const Nest nest(*this);
    take();
    const NodeKind kind = token.text == "-" ? NodeKind::negative : NodeKind::positive;
    return postfix(node_of(kind, token, "", unary(false)), with_filters);
  }

  NodeRef primary() {
    const Nest nest(*this);
    const Token token = take();
    if (token.kind == TokenKind::name) {
      if (token.text == "true" || token.text == "True") return constant(token, {true});
      if (token.text == "false" || token.text == "False") return constant(token, {false});
      if (token.text == "none" || token.text == "None") return constant(token, {None{}});
      return node(NodeKind::name, token, {}, token.text);
    }
    if (token.kind == TokenKind::string) {
      std::string text = token.text;
      while (now().kind == TokenKind::string) text += take().text;
      return constant(token, text_value(std::move(text)));
    }
    if (token.kind == TokenKind::integer) return constant(token, number<int64_t>(token));
    if (token.kind == TokenKind::real) return constant(token, number<double>(token));
    if (token.kind != TokenKind::sign) wrong(token, "unexpected '{}'", token.text);
    if (token.text == "(") {
      NodeRef inner = tuple(true, true);
      return expect_sign(")"), std::move(inner);
    }
    if (token.text != "[" && token.text != "{") wrong(token, "unexpected '{}'", token.text);
    const bool dict = token.text == "{";
    std::vector<NodeRef> parts;
    while (!skip_sign(dict ? "}" : "]")) {
      if (!parts.empty()) expect_sign(",");
      if (skip_sign(dict ? "}" : "]")) break;
      parts.push_back(expression());
      if (!dict) continue;
      expect_sign(":");
      parts.push_back(expression());
    }
    return node(dict ? NodeKind::dict : NodeKind::list, token, std::move(parts));
  }

  template <class Number>
  Value number(const Token& token) {
    Number n{};
    const auto [stop, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), n);
    if (error != std::errc()) wrong(token, "the number {} leaves 64 bits", token.text);
    return {n};
  }

  /// Attributes, subscripts and calls; then filters, tests and calls.
  NodeRef postfix(NodeRef made, bool with_filters) {
    for (;;) {
      const Token token = now();
      if (skip_sign(".")) made = dotted(token, std::move(made));
      else if (skip_sign("[")) made = subscript(token, std::move(made));
      else if (at_sign("(")) made = call(token, std::move(made));
      else break;
    }
    while (with_filters) {
      const Token token = now();
      if (skip_sign("|")) made = filter_of(std::move(made));
      else if (skip_name("is")) made = test(std::move(made));
      else if (at_sign("(")) made = call(token, std::move(made));
      else break;
    }
    return made;
  }

  NodeRef dotted(const Token& token, NodeRef object) {
    if (now().kind != TokenKind::integer) return node_of(NodeKind::attribute, token, name(), std::move(object));
    NodeRef index = constant(now(), number<int64_t>(now()));
    ++at_;
    return node_of(NodeKind::subscript, token, "", std::move(object), std::move(index));
  }

  NodeRef subscript(const Token& token, NodeRef object) {
    std::vector<NodeRef> parts(1);
    if (!at_sign(":")) parts[0] = expression();
    if (!at_sign(":"))
      return expect_sign("]"), node_of(NodeKind::subscript, token, "", std::move(object), std::move(parts[0]));
    while (parts.size() < 3 && skip_sign(":")) parts.push_back(at_sign(":") || at_sign("]") ? nullptr : expression());
    parts.resize(3);
    expect_sign("]");
    return node_of(NodeKind::slice, token, "", std::move(object), std::move(parts[0]), std::move(parts[1]),
                   std::move(parts[2]));
  }
  NodeRef call(const Token& token, NodeRef callee) { return node(NodeKind::call, token, arguments(std::move(callee))); }

  /// `first` and the arguments in brackets.
  std::vector<NodeRef> arguments(NodeRef first) {
    std::vector<NodeRef> kids;
    kids.push_back(std::move(first));
    expect_sign("(");
    bool named = false;
    while (!skip_sign(")")) {
      if (kids.size() > 1) expect_sign(",");
      if (skip_sign(")")) break;
      const Token token = now();
      if (at_sign("*") || at_sign("**")) wrong(token, "arguments unpacked with '{}' are not supported", token.text);
      const Token& next = tokens_[std::min(at_ + 1, tokens_.size() - 1)];
      if (token.kind == TokenKind::name && next.kind == TokenKind::sign && next.text == "=") {
        at_ += 2, named = true;
        kids.push_back(node_of(NodeKind::keyword, token, token.text, expression()));
      } else if (named) {
        wrong(token, "an argument without a name follows one with a name");
      } else {
        kids.push_back(expression());
      }
    }
    return kids;
  }

  NodeRef filter_of(NodeRef operand) {
    const Token token = now();
    std::string called = name();
    std::vector<NodeRef> kids(1);
    if (at_sign("(")) kids = arguments(std::move(operand));
    else kids[0] = std::move(operand);
    NodeRef made = node(NodeKind::filter, token, std::move(kids), std::move(called));
    made->native = find_filter(made->name);
    return made;
  }

  NodeRef test(NodeRef operand) {
    const Token begin = now();
    const bool negated = skip_name("not");
    const Token token = now();
    std::string called = name();
    std::vector<NodeRef> kids(1);
    const bool literal =
        now().kind == TokenKind::string || now().kind == TokenKind::integer || now().kind == TokenKind::real;
    const bool word = now().kind == TokenKind::name && !at_name("else") && !at_name("or") && !at_name("and");
    if (word && at_name("is")) wrong(now(), "tests cannot be chained with 'is'");
    if (at_sign("(")) {
      kids = arguments(std::move(operand));
    } else {
      kids[0] = std::move(operand);
      if (literal || at_sign("[") || at_sign("{") || word) kids.push_back(postfix(primary(), false));
    }
    NodeRef made = node(NodeKind::test, token, std::move(kids), std::move(called));
    made->native = find_test(made->name);
    return negated ? node_of(NodeKind::logical_not, begin, "", std::move(made)) : std::move(made);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
};

}  // namespace

std::unique_ptr<Node> parse(std::string_view source) { return Parser(tokens_of(source)).run(); }

}  // namespace ridge::text::jinja
