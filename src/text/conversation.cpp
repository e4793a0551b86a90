#include "text/conversation.h"

#include <algorithm>
#include <map>

namespace ridge::text {
namespace {

// Words that no template writes by itself.
constexpr const char *kSaid = "Heliotrope", *kArgument = "Snapdragon", *kResult = "Larkspur";
/// A probe of a dozen words is cheap; a template that is not gets the habits of one that fails.
constexpr jinja::Limits kProbeLimits{.steps = 100'000, .bytes = uint64_t(16) << 20, .output = uint64_t(1) << 20};

bool has(const std::optional<std::string>& prompt, std::string_view word) {
  return prompt && prompt->find(word) != prompt->npos;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json parts_of(const Json& text) { return Json::array({{{"type", "text"}, {"text", text}}}); }

Json probe_tools() {
  return Json::array({{{"type", "function"},
                       {"function",
                        {{"name", "probe"},
                         {"description", "A probe."},
                         {"parameters",
                          {{"type", "object"},
                           {"properties", {{"x", {{"type", "string"}, {"description", "A word."}}}}},
                           {"required", Json::array({"x"})}}}}}}});
}

/// Arguments of calls, where they are objects, as texts.
void write_arguments(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (Json& call : *calls)
    if (call.is_object() && call.contains("function") && call["function"].is_object())
      if (const auto arguments = call["function"].find("arguments"); arguments != call["function"].end())
        if (!arguments->is_string()) *arguments = dump(*arguments);
}

/// Renders small conversations and learns from what they show.
class Prober {
 public:
  Prober(const ChatTemplate& chat_template, const ChatInput& tokens) : template_(chat_template), input_(tokens) {}

  TemplateHabits run() {
    if (!learn_form("user", {}, {})) return habits_;  // conversations of a kind unknown here: left as they are
    const Json user = message("user", "Hello");
    habits_.system = learn_form("system", {}, {user});
    learn_form("assistant", {user}, {user});
    const auto without = prompt({user}, nullptr), with = prompt({user}, probe_tools());
    habits_.tools = with && with != without;
    learn_calls(user);
    return habits_;
  }

 private:
  std::optional<std::string> prompt(const std::vector<Json>& messages, const Json& tools) {
    input_.messages = messages;
    input_.tools = tools;
    const Result<std::string> rendered = template_.render(input_, kProbeLimits);
    return rendered ? std::optional(*rendered) : std::nullopt;
  }

  Json message(const std::string& role, const std::string& text) const {
    return {{"role", role}, {"content", habits_.takes_parts(role) ? parts_of(text) : Json(text)}};
  }

  /// Whether a message of the role is shown between these, as a text or else as a list of parts.
  bool learn_form(const std::string& role, std::vector<Json> before, const std::vector<Json>& after) {
    for (const bool parts : {false, true}) {
      if (parts) habits_.part_roles.push_back(role);
      std::vector<Json> messages = before;
      messages.push_back(message(role, kSaid));
      messages.insert(messages.end(), after.begin(), after.end());
      if (has(prompt(messages, nullptr), kSaid)) return true;
    }
    habits_.part_roles.pop_back();
    return false;
  }

  /// A call and its result: which of them are shown, and in which form.
  void learn_calls(const Json& user) {
    const Json tools = habits_.tools ? probe_tools() : Json();
    const TemplateHabits before = habits_;
    habits_.calls = habits_.results = false;
    for (const unsigned form : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u}) {
      TemplateHabits tried = before;
      tried.needs_content = form & 1;
      tried.text_arguments = form & 2;
      if (form & 4) tried.part_roles.push_back("tool");
      const auto shown = prompt(call_and_result(user, tried), tools);
      tried.calls = has(shown, kArgument), tried.results = has(shown, kResult);
      if (int(tried.calls) + int(tried.results) > int(habits_.calls) + int(habits_.results)) habits_ = tried;
    }
    const Json answer = message("assistant", "Hello");
    if (habits_.calls) habits_.lone_results = has(prompt({user, answer, message("tool", kResult)}, nullptr), kResult);
    else habits_.lone_results = learn_form("tool", {user, answer}, {});
  }

  static std::vector<Json> call_and_result(const Json& user, const TemplateHabits& habits) {
    Json call = {{"role", "assistant"}};
    if (habits.needs_content) call["content"] = habits.takes_parts("assistant") ? parts_of("") : Json("");
    call["tool_calls"] = Json::array({{{"id", "probecall"},
                                       {"type", "function"},
                                       {"function", {{"name", "probe"}, {"arguments", Json{{"x", kArgument}}}}}}});
    if (habits.text_arguments) write_arguments(call);
    return {user,
            call,
            {{"role", "tool"},
             {"tool_call_id", "probecall"},
             {"name", "probe"},
             {"content", habits.takes_parts("tool") ? parts_of(kResult) : Json(kResult)}}};
  }

  const ChatTemplate& template_;
  ChatInput input_;
  TemplateHabits habits_;
};

/// The text of `key`, or "".
std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool has_calls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

void append_paragraph(std::string& to, std::string_view text) {
  if (!to.empty() && !text.empty()) to += "\n\n";
  to += text;
}

/// Calls as lines of JSON behind the content, in the form that fit_messages() asks the model for.
Json with_written_calls(const Json& message) {
  std::string text = text_of(message, "content");
  for (const Json& call : message["tool_calls"]) {
    const Json& function = call.is_object() && call.contains("function") ? call["function"] : call;
    if (!function.is_object()) continue;
    const auto arguments = function.find("arguments");
    const Json written = {{"name", text_of(function, "name")},
                          {"arguments", arguments == function.end() ? Json::object() : *arguments}};
    text += (text.empty() ? "" : "\n") + dump(written);
  }
  Json made = message;
  made.erase("tool_calls");
  made["content"] = std::move(text);
  return made;
}

/// Names of functions by the ids of their calls.
std::map<std::string, std::string> names_of_calls(const Json& messages) {
  std::map<std::string, std::string> names;
  for (const Json& message : messages) {
    if (!has_calls(message)) continue;
    for (const Json& call : message["tool_calls"])
      if (call.is_object() && call.contains("function") && call["function"].is_object())
        names[text_of(call, "id")] = text_of(call["function"], "name");
  }
  return names;
}

/// Calls and results, where they are to be told, as texts of roles that the template shows. Results that follow each
/// other are one message: templates want users and assistants to alternate.
Json told(const Json& messages, bool tell_calls, bool tell_results) {
  const std::map<std::string, std::string> names = names_of_calls(messages);
  Json made = Json::array();
  bool behind_result = false;  // that became a user's message
  for (const Json& message : messages) {
    const std::string role = text_of(message, "role");
    const bool result = tell_results && role == "tool";
    if (!result && !(behind_result && role == "user")) {
      made.push_back(tell_calls && has_calls(message) ? with_written_calls(message) : message);
      behind_result = false;
      continue;
    }
    std::string text = text_of(message, "content");
    if (result) {
      const auto known = names.find(text_of(message, "tool_call_id"));
      const std::string name = known != names.end() ? known->second : text_of(message, "name");
      text = "Result of " + (name.empty() ? "the function" : name) + ": " + text;
    }
    if (!behind_result) made.push_back({{"role", "user"}, {"content", ""}});
    append_paragraph(made.back()["content"].get_ref<std::string&>(), text);
    behind_result = result;
  }
  return made;
}

std::string description_of(const Json& tools) {
  std::string text = "You can call these functions:\n";
  for (const Json& tool : tools) text += dump(tool.contains("function") ? tool["function"] : tool) + "\n";
  return text +
         "To call one, answer with JSON in this form and with nothing else: {\"name\": NAME, \"arguments\": {...}}. "
         "The next message has the result.";
}

/// Puts `text` where the template shows it: into the system message, or before what the user says first.
void describe(const TemplateHabits& habits, const std::string& text, Json& messages) {
  const std::string role = habits.system ? "system" : "user";
  const auto place = std::ranges::find_if(messages, [&](const Json& m) { return text_of(m, "role") == role; });
  if (place == messages.end() || (habits.system && place != messages.begin()))
    return void(messages.insert(messages.begin(), Json{{"role", role}, {"content", text}}));
  std::string all = habits.system ? text_of(*place, "content") : text;
  append_paragraph(all, habits.system ? text : text_of(*place, "content"));
  (*place)["content"] = std::move(all);
}

}  // namespace

bool TemplateHabits::takes_parts(std::string_view role) const {
  return std::ranges::find(part_roles, role) != part_roles.end();
}

TemplateHabits habits_of(const ChatTemplate& chat_template, const ChatInput& tokens) {
  return Prober(chat_template, tokens).run();
}

TemplateHabits plain_habits() { return {.tools = false, .calls = false}; }

std::vector<std::string> plain_stops(const PlainNames& names) {
  return {"\n" + names.user + ":", "\n" + names.assistant + ":"};
}

Json fit_messages(const TemplateHabits& habits, Json messages, const Json& tools) {
  const bool tell_calls = !habits.calls || !tools.is_null();
  const bool tell_results = tell_calls ? !habits.lone_results : !habits.results;
  if (tell_calls || tell_results) messages = told(messages, tell_calls, tell_results);
  if (!tools.is_null()) describe(habits, description_of(tools), messages);
  for (Json& message : messages) {
    const auto content = message.find("content");
    const bool none = content == message.end() || content->is_null();
    if (habits.needs_content && none && text_of(message, "role") == "assistant") message["content"] = "";
    if (habits.text_arguments) write_arguments(message);
    if (!none && content->is_string() && habits.takes_parts(text_of(message, "role")))
      message["content"] = parts_of(*content);
  }
  return messages;
}

}  // namespace ridge::text
