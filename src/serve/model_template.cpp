#include "serve/model_template.h"

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "io/mapped_file.h"

namespace ridge::serve {
namespace {

constexpr uint64_t kMaxTemplateBytes = uint64_t(4) << 20;

/// Formats that many models were trained on, for models whose files have no template.
constexpr std::pair<std::string_view, std::string_view> kStandard[] = {
    {"chatml",
     "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    {"llama3",
     "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
     "{{ m.content | trim }}<|eot_id|>{% endfor %}"
     "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"},
    {"gemma",
     // Put the system message in front of the user's next message.
     "{{ bos_token }}{% set said = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
     "{% set said.system = said.system + (m.content | trim) + '\n\n' %}{% else %}"
     "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
     "{% if m.role == 'user' %}{{ said.system }}{% set said.system = '' %}{% endif %}"
     "{{ m.content | trim }}<end_of_turn>\n{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
    {"zephyr",
     "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
     "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"},
};

std::string names_of(const std::vector<io::NamedTemplate>& named) {
  std::string names;
  for (const io::NamedTemplate& one : named) names += (names.empty() ? "" : ", ") + one.name;
  return names;
}

/// The source of the template that a person named.
std::string chosen(const io::ChatTemplates& own, const std::string& choice) {
  if (const io::NamedTemplate* const found = own.find(choice)) return found->source;
  for (const auto& [name, source] : kStandard)
    if (name == choice) return std::string(source);
  std::error_code ignored;
  if (std::filesystem::exists(choice, ignored)) return io::read_text_file(choice, kMaxTemplateBytes).or_throw();
  std::string standard;
  for (const auto& [name, source] : kStandard) standard += (standard.empty() ? "" : ", ") + std::string(name);
  throw_error(ErrorKind::usage,
              "--chat-template: '{}' is no file and no template of that name is known ({}standard: {})", choice,
              own.named.empty() ? "" : "of the model: " + names_of(own.named) + "; ", standard);
}

/// Variables of the model and the clock for every rendering.
text::ChatInput input_of(const Engine& engine) {
  text::ChatInput input;
  const io::TokenizerSpec& spec = engine.tokenizer().spec();
  if (spec.bos) input.bos_token = engine.tokenizer().piece(*spec.bos, true);
  if (spec.eos) input.eos_token = engine.tokenizer().piece(*spec.eos, true);
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &input.now);
  return input;
}

Result<PreparedTemplate> prepare(const Engine& engine, const std::string& source) {
  PreparedTemplate made;
  RIDGE_TRY(made.parsed, text::ChatTemplate::parse(source));
  made.habits = text::habits_of(made.parsed, input_of(engine));
  made.format = text::detect_tool_format(source);
  if (!made.habits.tools || made.format == text::ToolFormat::none) made.format = text::ToolFormat::json;
  return made;
}

const io::NamedTemplate* choose(const std::vector<io::NamedTemplate>& named, bool with_tools) {
  const auto find = [&](std::string_view name) { return std::ranges::find(named, name, &io::NamedTemplate::name); };
  auto found = with_tools ? find("tool_use") : named.end();
  if (found == named.end()) found = find("default");
  if (found == named.end() && named.size() == 1) found = named.begin();
  return found == named.end() ? nullptr : &*found;
}

}  // namespace

ModelTemplate read_model_template(const std::string& model_path, const std::string& choice) {
  io::ChatTemplates own = io::read_chat_templates(model_path);
  if (!choice.empty()) {
    ModelTemplate made{.named = {{"default", chosen(own, choice)}}};
    const auto parsed = text::ChatTemplate::parse(made.named[0].source);
    if (!parsed) throw_error(ErrorKind::usage, "--chat-template {}: {}", choice, parsed.error().message);
    return made;
  }
  ModelTemplate made{.named = std::move(own.named)};
  const io::NamedTemplate* const used = choose(made.named, false);
  if (!used && !own.problem.empty()) made.problem = "chat template: " + own.problem;
  if (!used) return made;
  if (const auto parsed = text::ChatTemplate::parse(used->source); !parsed) made.problem = parsed.error().message;
  return made;
}

Result<const PreparedTemplate*> ModelTemplate::prepared(const Engine& engine, bool with_tools) const {
  if (!problem.empty()) return bad_file("{}", problem);
  const io::NamedTemplate* const used = choose(named, with_tools);
  if (!used)
    return bad_file("chat template: none is called 'default'; there are: {} (--chat-template NAME)", names_of(named));
  const std::lock_guard lock(cache->mutex);
  auto known = cache->by_name.find(used->name);
  if (known == cache->by_name.end()) known = cache->by_name.emplace(used->name, prepare(engine, used->source)).first;
  if (!known->second) return known->second.error();
  return &*known->second;
}

Result<std::string> render_conversation(const Engine& engine, const ModelTemplate& chat_template,
                                        const Conversation& c) {
  if (chat_template.plain()) {
    const Json* begins = member(c.extra, "add_generation_prompt");
    return text::plain_prompt(text::fit_messages(text::plain_habits(), c.messages, c.tools),
                              !begins || *begins != false);
  }
  RIDGE_TRY(const PreparedTemplate* const used, chat_template.prepared(engine, !c.tools.is_null()));
  const bool told = used->format == text::ToolFormat::json;
  text::ChatInput input = input_of(engine);
  input.messages = text::fit_messages(used->habits, c.messages, told ? c.tools : Json());
  if (!told) input.tools = c.tools;
  input.extra = c.extra;
  Result<std::string> prompt = used->parsed.render(input);
  if (!prompt && text::refused_by_template(prompt.error()))
    return Failure{ErrorKind::usage, "chat template: " + prompt.error().message, "messages"};
  return prompt;
}

Result<text::ToolFormat> format_of_calls(const Engine& engine, const ModelTemplate& chat_template) {
  if (chat_template.plain()) return text::ToolFormat::json;
  RIDGE_TRY(const PreparedTemplate* const used, chat_template.prepared(engine, true));
  return used->format;
}

}  // namespace ridge::serve
