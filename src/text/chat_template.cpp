#include "text/chat_template.h"

#include "text/jinja_eval.h"
#include "text/unicode.h"

namespace ridge::text {
namespace {

using jinja::Value;

Value to_value(jinja::Run& run, const Json& json, int depth = 0) {
  if (depth >= jinja::kMaxValueDepth) jinja::trouble("the messages nest deeper than {} levels", depth);
  run.step();
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t(INT64_MAX)) return {json.get<double>()};
  if (json.is_number_integer()) return {json.get<int64_t>()};
  if (json.is_number_float()) return {json.get<double>()};
  if (json.is_string()) return run.text(json.get_ref<const std::string&>());
  if (json.is_array()) {
    std::vector<Value> items;
    for (const Json& item : json) items.push_back(to_value(run, item, depth + 1));
    return run.list(std::move(items));
  }
  if (!json.is_object()) return {jinja::None{}};
  jinja::Pairs items;
  for (const auto& [key, item] : json.items()) items.emplace_back(run.text(key), to_value(run, item, depth + 1));
  return run.dict(std::move(items));
}

Value messages_value(jinja::Run& run, const Json& messages) {
  if (!messages.is_array()) jinja::trouble("the messages are not an array");
  std::vector<Value> items;
  for (const Json& message : messages) {
    if (!message.is_object()) jinja::trouble("message {} is not an object", items.size());
    jinja::Pairs pairs;
    for (const auto& [key, item] : message.items())
      if (!item.is_null()) pairs.emplace_back(run.text(key), to_value(run, item, 2));
    const auto reasoning = message.find("reasoning_content");
    if (reasoning != message.end() && !reasoning->is_null() && !message.contains("thinking"))
      pairs.emplace_back(run.text("thinking"), to_value(run, *reasoning, 2));
    items.push_back(run.dict(std::move(pairs)));
  }
  return run.list(std::move(items));
}

/// A message that a template or a value made, at most a screen of it.
std::string shortened(std::string message) {
  constexpr size_t kMost = 2000;
  if (message.size() <= kMost) return message;
  size_t end = kMost;
  while (end > kMost - 4 && (uint8_t(message[end]) & 0xC0) == 0x80) --end;  // whole characters
  return message.substr(0, end) + "...";
}

/// `work()`, with the Trouble that it may throw as a failure.
template <class Work>
auto guarded(Work work) -> Result<decltype(work())> {
  try {
    return work();
  } catch (jinja::Trouble& trouble) {
    trouble.message = shortened(std::move(trouble.message));
    if (trouble.refused) return Failure{ErrorKind::usage, std::move(trouble.message), "messages"};
    if (trouble.line == 0) return bad_file("chat template: {}", trouble.message);
    return bad_file("chat template: line {}, column {}: {}", trouble.line, trouble.column, trouble.message);
  }
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  return guarded([&] {
    ChatTemplate made;
    made.source_ = std::make_shared<const std::string>(source);
    made.root_ = jinja::parse(source);
    return made;
  });
}

Result<std::string> ChatTemplate::render(const ChatInput& input, const jinja::Limits& limits) const {
  return guarded([&] {
    std::tm now = input.now;
    timegm(&now);  // fills in the day of the week and of the year
    jinja::Run run(limits, now);
    if (!input.extra.is_object()) jinja::trouble("the extra variables are not an object");
    std::vector<std::pair<std::string_view, Value>> variables;
    const auto add = [&](std::string_view name, Value value) {
      if (!input.extra.contains(name)) variables.emplace_back(name, std::move(value));
    };
    add("messages", messages_value(run, input.messages));
    add("tools", to_value(run, input.tools));
    add("documents", {jinja::None{}});
    add("add_generation_prompt", {input.add_generation_prompt});
    if (input.bos_token) add("bos_token", run.text(*input.bos_token));
    if (input.eos_token) add("eos_token", run.text(*input.eos_token));
    for (auto item = input.extra.begin(); item != input.extra.end(); ++item)
      variables.emplace_back(item.key(), to_value(run, item.value()));
    return jinja::evaluate(run, *root_, std::move(variables));
  });
}

std::string plain_prompt(const Json& messages, bool add_generation_prompt) {
  std::string prompt;
  for (const Json& message : messages) {
    if (!message.is_object()) continue;
    std::string role = message.value("role", Json("user")).is_string() ? message.value("role", "user") : "user";
    const Json content = message.value("content", Json());
    if (!role.empty()) role[0] = upper(role.substr(0, 1))[0];
    prompt += role + ": ";
    if (content.is_string()) prompt += content.get_ref<const std::string&>();
    if (content.is_array())
      for (const Json& part : content)
        if (part.is_object() && part.contains("text") && part["text"].is_string())
          prompt += part["text"].get_ref<const std::string&>();
    prompt += "\n";
  }
  return add_generation_prompt ? prompt + "Assistant:" : prompt;
}

}  // namespace ridge::text
