#include "io/chat_templates.h"

#include <algorithm>

#include "io/json.h"
#include "io/mapped_file.h"
#include "io/text.h"

namespace ridge::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kKey = "tokenizer.chat_template", kNames = "tokenizer.chat_templates";
constexpr std::string_view kJinja = "chat_template.jinja", kMore = "additional_chat_templates";
constexpr std::string_view kJson = "chat_template.json", kConfig = "tokenizer_config.json";
constexpr std::string_view kProcessor = "processor_config.json";
constexpr std::string_view kDefault = "default";
constexpr uint64_t kMaxFileBytes = uint64_t(16) << 20;

bool present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Adds what has a new name: files that are read first win. An empty text is no template.
void add(ChatTemplates& to, std::string name, std::string source) {
  if (!source.empty() && !to.find(name)) to.named.push_back({std::move(name), std::move(source)});
}

void note(ChatTemplates& to, const std::string& problem) {
  if (to.problem.empty()) to.problem = problem;
}

void add_file(ChatTemplates& to, const std::string& name, const fs::path& path) {
  Result<std::string> source = read_text_file(path, kMaxFileBytes);
  if (source) add(to, name, std::move(*source));
  else note(to, source.error().message);
}

/// `chat_template` of a JSON file: a text, an object of texts by their names, or a list of names and texts.
void add_value(ChatTemplates& to, const Json& value, const std::string& where) {
  if (value.is_null()) return;
  if (value.is_string()) return add(to, std::string(kDefault), value.get<std::string>());
  if (value.is_object()) {
    for (const auto& [name, source] : value.items())
      if (source.is_string()) add(to, name, source.get<std::string>());
      else note(to, fmt::format("{}: chat_template.{} is not a text", where, name));
    return;
  }
  if (!value.is_array()) return note(to, fmt::format("{}: chat_template is neither a text nor named templates", where));
  const auto is_text = [](const Json& entry, const char* key) { return entry.contains(key) && entry[key].is_string(); };
  for (size_t i = 0; i < value.size(); ++i) {
    const Json& entry = value[i];
    if (entry.is_object() && is_text(entry, "name") && is_text(entry, "template"))
      add(to, entry["name"].get<std::string>(), entry["template"].get<std::string>());
    else
      note(to, fmt::format("{}: entry {} of chat_template is not an object with the texts 'name' and 'template'", where,
                           i));
  }
}

void add_json_file(ChatTemplates& to, const fs::path& path) {
  if (!present(path)) return;
  const Result<std::string> text = read_text_file(path, kMaxFileBytes);
  if (!text) return note(to, text.error().message);
  const Result<Json> json = parse_json(*text, path.native());
  if (!json) return note(to, json.error().message);
  if (json->is_object() && json->contains("chat_template")) add_value(to, (*json)["chat_template"], path.native());
}

/// The *.jinja files of additional_chat_templates, by name.
std::vector<fs::path> more_files(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(directory / kMore, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".jinja") found.push_back(it->path());
  std::ranges::sort(found);
  return found;
}

}  // namespace

const NamedTemplate* ChatTemplates::find(std::string_view name) const {
  const auto found = std::ranges::find(named, name, &NamedTemplate::name);
  return found == named.end() ? nullptr : &*found;
}

ChatTemplates chat_templates_of_gguf(const Gguf& gguf) {
  ChatTemplates made;
  const auto read = [&](const std::string& key, const std::string& name) {
    Result<std::string> source = gguf.text(key);
    if (source) add(made, name, std::move(*source));
    else note(made, source.error().message);
  };
  if (gguf.has(kKey)) read(std::string(kKey), std::string(kDefault));
  const std::string prefix = std::string(kKey) + ".";
  for (auto at = gguf.metadata.lower_bound(prefix); at != gguf.metadata.end() && at->first.starts_with(prefix); ++at)
    read(at->first, at->first.substr(prefix.size()));
  return made;
}

ChatTemplates chat_templates_of_directory(const fs::path& directory) {
  ChatTemplates made;
  if (present(directory / kJinja)) add_file(made, std::string(kDefault), directory / kJinja);
  for (const fs::path& path : more_files(directory)) add_file(made, path.stem().string(), path);
  add_json_file(made, directory / kConfig);
  add_json_file(made, directory / kJson);
  add_json_file(made, directory / kProcessor);
  return made;
}

ChatTemplates read_chat_templates(const fs::path& model) {
  std::error_code ignored;
  const Result<fs::path> found = find_model(model);
  if (!found) return {{}, found.error().message};
  if (fs::is_directory(*found, ignored)) return chat_templates_of_directory(*found);
  if (!fs::is_regular_file(*found, ignored)) return {};
  const Result<GgufFile> file = open_gguf(*found);
  return file ? chat_templates_of_gguf(file->gguf) : ChatTemplates{{}, file.error().message};
}

std::map<std::string, GgufValue, std::less<>> chat_template_metadata(const std::vector<NamedTemplate>& named) {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<std::string> names;
  for (const NamedTemplate& one : named) {
    const bool is_default = one.name == kDefault;
    if (!is_default) names.push_back(one.name);
    metadata[std::string(kKey) + (is_default ? "" : "." + one.name)] = one.source;
  }
  if (!names.empty()) metadata[std::string(kNames)] = std::move(names);
  return metadata;
}

Status copy_chat_templates(const fs::path& from, const fs::path& to) {
  std::error_code error;
  std::vector<fs::path> files = more_files(from);
  if (!files.empty()) fs::create_directory(to / kMore, error);
  for (const std::string_view name : {kJinja, kJson, kProcessor})
    if (present(from / name)) files.push_back(from / name);
  for (const fs::path& file : files) {
    if (!error) fs::copy_file(file, to / file.lexically_relative(from), error);
    if (error) return fail(ErrorKind::failure, "cannot copy {} to {}: {}", file.native(), to.native(), error.message());
  }
  return {};
}

}  // namespace ridge::io
