#include "serve/structure.h"

#include <limits>

#include "grammar/gbnf.h"
#include "grammar/json_schema.h"

namespace ridge::serve {
namespace {

constexpr size_t kRecentGrammars = 32;

class GrammarConstraint final : public Constraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<const grammar::CompiledGrammar> compiled) : place_(std::move(compiled)) {}

  void mask(std::span<float> logits, int tokens_left) override {
    // The shortest way to the end takes one token a byte at most, and an end token.
    const bool hurry = uint32_t(std::max(tokens_left, 0)) <= place_.bytes_to_end() + 1;
    const std::span<const uint64_t> allowed = hurry ? place_.mask_to_end() : place_.mask();
    for (size_t first = 0; first < logits.size(); first += 64) {
      const uint64_t word = allowed[first / 64];
      if (word == ~uint64_t(0)) continue;
      const size_t n = std::min<size_t>(64, logits.size() - first);
      for (size_t i = 0; i < n; ++i)
        if (!(word >> i & 1)) logits[first + i] = -std::numeric_limits<float>::infinity();
    }
  }
  void accept(int32_t token) override {
    if (!place_.accept(token)) throw_error(ErrorKind::failure, "token {} was drawn outside of its grammar", token);
  }
  bool complete() const override { return place_.finished(); }

 private:
  grammar::Constraint place_;
};

/// The schema of one call of one of the tools: {"name": ..., "arguments": ...}.
Json call_schema(const Json& tools, const std::string& only, const std::string& arguments) {
  Json calls = Json::array(), definitions = Json::object();
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    if (!only.empty() && function["name"] != only) continue;
    Json parameters = function.value("parameters", Json{{"type", "object"}});
    // References are counted from the root of the document.
    for (const char* key : {"$defs", "definitions"})
      if (parameters.is_object() && parameters.contains(key)) {
        definitions[key].update(parameters[key]);
        parameters.erase(key);
      }
    Json properties = {{"name", {{"const", function["name"]}}}};
    properties[arguments] = std::move(parameters);
    calls.push_back({{"type", "object"},
                     {"properties", std::move(properties)},
                     {"required", Json::array({"name", arguments})},
                     {"additionalProperties", false}});
  }
  if (calls.empty()) refuse("tool_choice", fmt::format("no tool is called '{}'", only));
  Json schema = {{"anyOf", std::move(calls)}};
  schema.update(definitions);
  return schema;
}

/// What stands around the JSON of a call that must come, and how the JSON calls the arguments.
struct CallFrame {
  std::string before, after, arguments = "arguments";
};
CallFrame call_frame(text::ToolFormat format) {
  switch (format) {
    case text::ToolFormat::tags:
    case text::ToolFormat::xml: return {"<tool_call>\n", "\n</tool_call>"};  // parsers of xml read JSON there too
    case text::ToolFormat::mistral: return {"[TOOL_CALLS][", "]"};
    case text::ToolFormat::granite: return {"<|tool_call|>[", "]"};
    case text::ToolFormat::llama: return {"", "", "parameters"};
    default: return {};
  }
}

std::string chosen_tool(const Json& choice) {
  if (choice == "required") return {};
  if (choice.is_object() && choice.value("type", "") == "function" && choice.contains("function") &&
      choice["function"].is_object() && choice["function"].contains("name") && choice["function"]["name"].is_string())
    return choice["function"]["name"].get<std::string>();
  refuse("tool_choice", "none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": ...}}");
}

}  // namespace

std::shared_ptr<const grammar::Vocabulary> Structures::vocabulary() {
  if (vocabulary_) return vocabulary_;
  std::vector<std::string> pieces;
  std::vector<int32_t> ends;
  for (int32_t token = 0; token < engine_.plan().vocab_size; ++token) {
    // A model's output may have more rows than its tokenizer has tokens.
    const bool known = token < engine_.tokenizer().vocab_size();
    pieces.push_back(known ? engine_.tokenizer().piece(token) : std::string());
    if (known && engine_.tokenizer().is_end(token)) ends.push_back(token);
  }
  return vocabulary_ = std::make_shared<grammar::Vocabulary>(pieces, std::move(ends));
}

Structures::Maker Structures::compile(const std::string& field, const std::string& key,
                                      const std::function<Result<grammar::Grammar>()>& make) {
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find(recent_, key, [](const auto& entry) -> const std::string& { return entry.first; });
  if (found == recent_.end()) {
    Result<grammar::Grammar> made = make();
    if (!made) refuse(field, made.error().message);
    Result<Compiled> compiled = grammar::CompiledGrammar::make(std::move(*made), vocabulary());
    if (!compiled) refuse(field, compiled.error().message);
    (*compiled)->prepare();  // here, on a worker: later it would hold up the steps of all requests
    recent_.emplace_front(key, std::move(*compiled));
    if (recent_.size() > kRecentGrammars) recent_.pop_back();
  } else {
    recent_.splice(recent_.begin(), recent_, found);
  }
  return [compiled = recent_.front().second] { return std::make_unique<GrammarConstraint>(compiled); };
}

Structures::Maker Structures::read(const Json& body, const Json& tools, text::ToolFormat format) {
  const Fields f(body);
  const auto gbnf = f.text("grammar");
  const Json* form = f.find("response_format");
  std::string type = "text";
  if (form) {
    if (!form->is_object()) refuse("response_format", "not an object");
    type = Fields(*form).text("type").value_or("");
    if (type != "text" && type != "json_object" && type != "json_schema")
      refuse("response_format", "its type is text, json_object or json_schema");
  }
  const Json* choice = f.find("tool_choice");
  const bool call = choice && *choice != "none" && *choice != "auto";
  if ((gbnf ? 1 : 0) + (type != "text" ? 1 : 0) + (call ? 1 : 0) > 1)
    refuse("response_format", "only one of response_format, grammar and a tool_choice that wants a call goes");
  if (!engine_.has_tokenizer()) {
    if (gbnf || call || type != "text") refuse("response_format", "this model has no tokenizer, and so no texts");
    return {};
  }

  if (gbnf) return compile("grammar", "gbnf " + *gbnf, [&] { return grammar::parse_gbnf(*gbnf); });
  if (type == "json_object") return compile("response_format", "object", [] { return grammar::any_json_object(); });
  if (type == "json_schema") {
    const Json* named = Fields(*form).find("json_schema");
    if (!named || !named->is_object() || !named->contains("schema"))
      refuse("response_format", "json_schema is {\"name\": ..., \"schema\": {...}}");
    const Json& schema = (*named)["schema"];
    return compile("response_format", "schema " + schema.dump(-1, ' ', false, Json::error_handler_t::replace),
                   [&] { return grammar::grammar_of_schema(schema); });
  }
  if (!call) return {};
  const std::string only = chosen_tool(*choice);
  if (tools.is_null()) refuse("tool_choice", "the request has no tools");
  const auto [before, after, arguments] = call_frame(format);
  const Json schema = call_schema(tools, only, arguments);
  return compile("tool_choice", before + schema.dump(-1, ' ', false, Json::error_handler_t::replace),
                 [&] { return grammar::grammar_of_schema(schema, before, after); });
}

}  // namespace ridge::serve
