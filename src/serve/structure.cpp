#include "serve/structure.h"

#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "serve/messages.h"

namespace ridge::serve {
namespace {

/// Grammars of one request that are prepared: more would hold up a worker for seconds.
constexpr size_t kPreparedCalls = 4;

/// Parameters of a function as read_tools() gives it: one without properties is called without any.
Json parameters_of(const Json& function) {
  Json parameters = function["parameters"];
  if (!parameters.contains("type") && !parameters.contains("$ref")) parameters["type"] = "object";
  if (const Json* properties = member(parameters, "properties");
      parameters.size() == 2 && properties && *properties == Json::object())
    parameters["additionalProperties"] = false;
  return parameters;
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// The schema of one call of one of the tools: {"name": ..., "arguments": ...}.
Json call_schema(const Json& tools, const std::string& only, const std::string& arguments) {
  Json calls = Json::array(), definitions = Json::object();
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    if (!only.empty() && function["name"] != only) continue;
    Json parameters = parameters_of(function);
    // References are counted from the root of the document.
    for (const char* key : {"$defs", "definitions"})
      if (const Json* own = member(parameters, key)) {
        if (!own->is_object())
          refuse("tools", fmt::format("the {} of {} are not an object", key, shown(function["name"])));
        for (const auto& [name, schema] : own->items())
          if (const auto& known = definitions[key].emplace(name, schema).first.value(); known != schema)
            refuse("tools", fmt::format("two functions have different {} of the name {}", key, shown(name)));
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

/// Text around the JSON of a call that must come, and the name of the arguments in that JSON.
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

/// The schema of a response_format; null for a json_object without one.
const Json* schema_of_form(const Json& form, const std::string& type) {
  const Json* schema = Fields(form).find("schema");
  if (type == "json_object") return schema;
  const Json* named = Fields(form).find("json_schema");
  if (named && !named->is_object())
    refuse("response_format.json_schema", fmt::format("{} is not an object", shown(*named)));
  if (named) schema = Fields(*named).find("schema");
  if (named) {
    const Fields f(*named, "response_format.json_schema.");
    f.text("name"), f.text("description"), f.flag("strict");
  }
  if (!schema) refuse("response_format", "json_schema is {\"name\": ..., \"schema\": {...}}");
  return schema;
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
    if (engine_.tokenizer().is_end(token)) ends.push_back(token);
  }
  return vocabulary_ = std::make_shared<grammar::Vocabulary>(pieces, std::move(ends));
}

Structures::Compiled Structures::compile(const std::string& field, const std::string& key, bool prepare,
                                         const std::function<Result<grammar::Grammar>()>& make) {
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find(recent_, key, [](const auto& entry) -> const std::string& { return entry.first; });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
    forget_oldest();  // masks that texts added since count too
    return recent_.front().second;
  }
  Result<grammar::Grammar> made = make();
  if (!made) refuse(field, made.error().message);
  Result<Compiled> compiled = grammar::CompiledGrammar::make(std::move(*made), vocabulary());
  if (!compiled) refuse(field, compiled.error().message);
  if (prepare) (*compiled)->prepare();  // here, on a worker: later it would hold up the steps of all requests
  recent_.emplace_front(key, std::move(*compiled));
  forget_oldest();
  return recent_.front().second;
}

size_t Structures::held() const {
  size_t bytes = 0;
  for (const auto& [key, compiled] : recent_) bytes += key.size() + compiled->bytes();
  return bytes;
}

/// Down to max_bytes_; the grammar of this request stays.
void Structures::forget_oldest() {
  while (recent_.size() > 1 && held() > max_bytes_) recent_.pop_back();
}

size_t Structures::kept_bytes() {
  const std::lock_guard lock(mutex_);
  return held();
}

Structures::Maker Structures::maker(std::vector<Stage> stages, int first) {
  auto plan = std::make_shared<StagePlan>();
  plan->stages = std::move(stages);
  plan->first = first;
  for (const char* line_end : {"\n", "\n\n"})
    if (const auto ids = tokens(line_end); ids.size() == 1) plan->line_ends.push_back(ids[0]);
  const std::lock_guard lock(mutex_);
  plan->vocabulary = vocabulary();
  return
      [plan = std::shared_ptr<const StagePlan>(std::move(plan))] { return std::make_unique<StagedConstraint>(plan); };
}

std::vector<int32_t> Structures::tokens(std::string_view text) const {
  return engine_.tokenizer().encode(text, false, true);
}

/// Stage of a mark that ends or opens something: a control token, or text.
void Structures::add_mark(std::string_view mark, const AnswerForm& form, Stage::Mark& to) const {
  const bool control = std::ranges::find(form.output.control, mark) != form.output.control.end();
  if (control) to.tokens.push_back(*engine_.tokenizer().find_special(mark));
  else to.texts.emplace_back(mark);
}

Structures::Maker Structures::behind_reasoning(Stage answer, const AnswerForm& form) {
  if (form.output.harmony) return harmony({{"final", std::move(answer)}}, form);
  if (!form.output.in_reasoning && form.may_open.empty()) return maker({std::move(answer)}, 0);
  Stage opening{.kind = Stage::Kind::may_open, .next = 2}, reasoning{.kind = Stage::Kind::reasoning, .next = 2};
  reasoning.budget = form.reasoning_budget;
  reasoning.closing = tokens(form.close);
  for (const text::ReasoningMarks& marks : text::reasoning_marks()) add_mark(marks.close, form, reasoning.marks);
  for (const std::string_view open : form.may_open) add_mark(open, form, opening.marks);
  if (answer.forced.empty()) opening.grammar = answer.grammar;
  return maker({std::move(opening), std::move(reasoning), std::move(answer)}, form.output.in_reasoning ? 1 : 0);
}

Stage Structures::words(const std::vector<std::pair<std::string, int>>& next, std::vector<int32_t> forced) {
  std::vector<std::string> words;
  for (const auto& [word, stage] : next) words.push_back(word);
  Stage stage{.kind = Stage::Kind::words, .forced = std::move(forced), .words = next};
  stage.grammar = compile("tool_choice", fmt::format("words {}", fmt::join(words, "|")), false, [&] {
    grammar::Builder builder;
    const grammar::Expr root = builder.words(words);
    return std::move(builder).finish(root);
  });
  return stage;
}

Structures::Maker Structures::harmony(std::vector<std::pair<std::string, Stage>> answers, const AnswerForm& form) {
  constexpr int kReasoning = 1, kFirstAnswer = 3;
  constexpr std::string_view kChannel = "<|channel|>", kMessage = "<|message|>";
  constexpr std::string_view kBegun = "<|start|>assistant<|channel|>";
  const std::string header = form.output.header;
  const size_t channel = header.find(kChannel);
  const bool has_message = header.ends_with(kMessage);
  const auto opens = [&](std::string_view name) {
    return channel != header.npos && header.find(name, channel) != header.npos;
  };
  std::vector<std::pair<std::string, int>> next;
  for (size_t i = 0; i < answers.size(); ++i) next.emplace_back(answers[i].first, kFirstAnswer + int(i));

  std::vector<Stage> stages(kFirstAnswer);
  stages[2] = words(next, tokens(kBegun));
  next.emplace_back("analysis", kReasoning);
  stages[0] = words(next, header.empty()           ? tokens(kBegun)
                          : channel == header.npos ? tokens(kChannel)
                                                   : std::vector<int32_t>());
  stages[kReasoning] = {.kind = Stage::Kind::reasoning, .forced = tokens(kMessage), .next = 2};
  add_mark("<|end|>", form, stages[kReasoning].marks);
  stages[kReasoning].barred = tokens("<|start|><|channel|><|message|>");
  stages[kReasoning].budget = form.reasoning_budget;
  stages[kReasoning].closing = tokens("<|end|>");
  for (auto& [word, answer] : answers) stages.push_back(std::move(answer));

  if (!opens("analysis") && !opens("final") && !has_message) return maker(std::move(stages), 0);
  if (!opens("analysis") && answers.front().first != "final") {
    // The prompt is inside of a message that is no call: it ends, and the call is a message of its own.
    stages[2].forced = tokens(fmt::format("{}<|end|>{}", has_message ? "" : kMessage, kBegun));
    return maker(std::move(stages), 2);
  }
  const int first = opens("analysis") ? kReasoning : kFirstAnswer;
  if (has_message) stages[size_t(first)].forced.clear();
  return maker(std::move(stages), first);
}

Structures::Maker Structures::harmony_call(const Json& tools, const std::string& only, const AnswerForm& form) {
  const bool typed = engine_.tokenizer().find_special("<|constrain|>").has_value();
  std::vector<std::pair<std::string, Stage>> answers;
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    if (!only.empty() && function["name"] != only) continue;
    const Json parameters = parameters_of(function);
    Stage answer{.forced = tokens(typed ? "<|constrain|>json<|message|>" : "<|message|>")};
    answer.grammar = compile("tools", "arguments " + text_of(parameters), answers.size() < kPreparedCalls,
                             [&] { return grammar::grammar_of_schema(parameters); });
    answers.emplace_back(fmt::format("commentary to=functions.{} ", function["name"].get<std::string>()),
                         std::move(answer));
  }
  if (answers.empty()) refuse("tool_choice", fmt::format("no tool is called '{}'", only));
  return harmony(std::move(answers), form);
}

Structures::Maker Structures::call(const Json& tools, const std::string& only, const AnswerForm& form) {
  const text::ToolFormat format = form.output.format;
  if (format == text::ToolFormat::harmony) return harmony_call(tools, only, form);
  auto [before, after, arguments] = call_frame(format);
  Stage answer;
  // A mark that is a control token is no text that a grammar could have. A call may lack its end mark.
  for (const std::string& mark : form.output.control) {
    if (before.starts_with(mark)) answer.forced = tokens(mark), before.erase(0, mark.size());
    if (after.ends_with(mark)) after.erase(after.size() - mark.size());
  }
  const Json schema = call_schema(tools, only, arguments);
  answer.grammar = compile("tool_choice", fmt::format("{}{}{}", before, text_of(schema), after), true,
                           [&] { return grammar::grammar_of_schema(schema, before, after); });
  return behind_reasoning(std::move(answer), form);
}

Structures::Maker Structures::free_answer(const AnswerForm& form) {
  const Stage free{.kind = Stage::Kind::free};
  if (form.output.harmony) return harmony({{"final", free}, {"commentary", free}}, form);
  return form.output.in_reasoning || !form.may_open.empty() ? behind_reasoning(free, form) : Maker();
}

Structures::Maker Structures::read(const Json& body, const Json& tools, const AnswerForm& form) {
  const Fields f(body);
  const auto gbnf = f.text("grammar");
  const Json* named = f.find("response_format");
  std::string type = "text";
  if (named) {
    if (!named->is_object()) refuse("response_format", "not an object");
    type = Fields(*named, "response_format.").text("type").value_or("");
    if (type != "text" && type != "json_object" && type != "json_schema")
      refuse("response_format", "its type is text, json_object or json_schema");
  }
  const ToolChoice choice = read_tool_choice(body);
  const bool wants_call = choice.kind == ToolChoice::Kind::required;
  if ((gbnf ? 1 : 0) + (type != "text" ? 1 : 0) + (wants_call ? 1 : 0) > 1)
    refuse("response_format", "only one of response_format, grammar and a tool_choice that wants a call goes");
  if (!engine_.has_tokenizer()) {
    if (gbnf || wants_call || type != "text") refuse("response_format", "this model has no tokenizer, and so no texts");
    return {};
  }
  if (wants_call) {
    if (tools.is_null()) refuse("tool_choice", "the request has no tools");
    return call(tools, choice.name, form);
  }

  Stage answer;
  if (gbnf) {
    answer.grammar = compile("grammar", "gbnf " + *gbnf, true, [&] { return grammar::parse_gbnf(*gbnf); });
  } else if (const Json* schema = type == "text" ? nullptr : schema_of_form(*named, type)) {
    answer.grammar = compile("response_format", "schema " + text_of(*schema), true,
                             [&] { return grammar::grammar_of_schema(*schema); });
  } else if (type == "json_object") {
    answer.grammar = compile("response_format", "object", true, [] { return grammar::any_json_object(); });
  }
  if (!answer.grammar) return form.reasoning_budget < 0 ? Maker() : free_answer(form);
  if (form.output.harmony) answer.forced = tokens("<|message|>");
  return behind_reasoning(std::move(answer), form);
}

}  // namespace ridge::serve
