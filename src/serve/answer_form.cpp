#include "serve/answer_form.h"

#include "text/unicode.h"

namespace ridge::serve {

AnswerForm answer_form(const Engine& engine, const ModelTemplate& chat_template, const std::string& prompt,
                       const Json& tools) {
  AnswerForm form;
  form.output.tools = tools;
  form.output.reasoning = !chat_template.plain();
  if (!tools.is_null()) form.output.format = format_of_calls(engine, chat_template).or_throw();
  if (chat_template.plain()) return form;
  const io::Tokenizer& tokenizer = engine.tokenizer();
  const std::string& source = chat_template.prepared(engine, !tools.is_null()).or_throw()->parsed.source();
  form.output.harmony = tokenizer.is_harmony();
  if (form.output.harmony) form.output.format = text::ToolFormat::harmony;
  if (form.output.harmony) form.output.header = text::harmony_header(prompt);
  else form.output.in_reasoning = text::opened_reasoning(prompt) != nullptr;
  for (const std::string_view mark : text::marks_of(form.output.format)) {
    const auto token = tokenizer.find_special(mark);
    if (!token || !tokenizer.is_control(*token)) continue;
    form.output.control.emplace_back(mark);
    form.marks.push_back(*token);
  }
  if (form.output.harmony || text::prompt_closes_reasoning(prompt)) return form;
  if (form.output.in_reasoning) {
    form.close = text::opened_reasoning(prompt)->close;
    return form;
  }
  for (const text::ReasoningMarks& marks : text::reasoning_marks())
    if (source.find(marks.open) != source.npos || tokenizer.find_special(marks.open)) {
      if (form.may_open.empty()) form.close = marks.close;
      form.may_open.push_back(marks.open);
    }
  return form;
}

std::optional<int32_t> find_turn_end(const Engine& engine, const ModelTemplate& chat_template) {
  if (chat_template.plain() || !engine.has_tokenizer() || engine.tokenizer().is_harmony()) return {};
  constexpr std::string_view kAnswer = "I answer briefly.";
  const Json messages = {{{"role", "user"}, {"content", "A question."}}, {{"role", "assistant"}, {"content", kAnswer}}};
  const Result<std::string> text =
      render_conversation(engine, chat_template, {.messages = messages, .extra = {{"add_generation_prompt", false}}});
  const size_t at = text ? text->rfind(kAnswer) : std::string::npos;
  if (at == std::string::npos) return {};
  const std::string_view behind = text::strip(std::string_view(*text).substr(at + kAnswer.size()), nullptr, true, true);
  const io::Tokenizer& tokenizer = engine.tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode(behind.substr(0, 64), false, true);
  if (ids.empty() || tokenizer.find_special(tokenizer.piece(ids[0], true)) != ids[0]) return {};
  return ids[0];
}

}  // namespace ridge::serve
