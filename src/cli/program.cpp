#include "cli/program.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <new>
#include <thread>

#include "base/build_info.h"
#include "base/closest.h"
#include "base/interrupt.h"
#include "chat/text_out.h"
#include "cli/options.h"
#include "engine/lead.h"
#include "io/mapped_file.h"
#include "io/text.h"
#include "lab/rows/results.h"
#include "rank/mpi.h"
#include "ridge/error.h"

namespace ridge::cli {
namespace {

std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent ? full_name(*parent) + " " + app.get_name() : "ridge";
}

std::vector<const CLI::App*> every_nested(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

/// `text` broken between words so that no line is longer than `width`.
std::string wrapped(std::string text, size_t width) {
  std::ranges::replace(text, '\n', ' ');
  std::string out;
  size_t column = 0;
  for (const std::string& word : split(text, ' ')) {
    if (column > 0 && column + 1 + word.size() > width) {
      out += '\n';
      column = 0;
    }
    if (column > 0) out += ' ';
    out += word;
    column = out.size() - (out.rfind('\n') == std::string::npos ? 0 : out.rfind('\n') + 1);
  }
  return out;
}

/// CLI11's help with full command names, nested commands in the list, and no environment names on every line: the
/// footer gives their rule.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->get_type_size() != 0) text = " " + option->get_type_name();
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    if (option->get_required()) text += " (required)";
    return text;
  }
  std::string make_usage(const CLI::App* app, std::string) const override {
    std::string text = "Usage: " + full_name(*app);
    for (const CLI::Option* option : app->get_options())
      if (option->get_positional()) text += " " + option->get_name(true);
    return text + (every_nested(*app).empty() ? " [FLAGS]\n" : " COMMAND\n");
  }
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode) const override {
    if (every_nested(*app).empty()) return "";
    std::string text = "\nCommands:\n";
    const std::string prefix = app->get_parent() ? app->get_name() + " " : "";
    for (const Command& command : commands())
      if (command.name.starts_with(prefix))
        text += fmt::format("  {:<16}  {}\n", command.name.substr(prefix.size()), command.summary);
    return text;
  }
};

/// The help text of a command, empty lines in a row made one.
std::string help_text(const CLI::App& app) {
  std::string text;
  for (const char c : app.help())
    if (c != '\n' || !text.ends_with("\n\n")) text += c;
  return text;
}

std::string version_text() {
  const BuildInfo& build = build_info();
  return fmt::format("ridge {} ({}, {}, {}, {})", build.version, build.commit, build.compiler, build.build_type,
                     build.gpu_text());
}

std::string footer(std::string_view example) {
  std::string text = "\nExamples:\n";
  for (const std::string& line : split(example, '\n')) text += "  " + line + "\n";
  return text + "\nAn environment variable can set any long flag (--ctx-size: RIDGE_CTX_SIZE); the command line wins.";
}

/// The app of a command, its group made on the way.
CLI::App& app_of(CLI::App& root, const Command& command) {
  const std::vector<std::string> words = split(command.name, ' ');
  CLI::App* parent = &root;
  if (words.size() == 2) {
    parent = nullptr;
    for (CLI::App* group : root.get_subcommands({}))
      if (group->get_name() == words[0]) parent = group;
    if (!parent)
      for (const Group& group : groups())
        if (group.name == words[0]) {
          parent = root.add_subcommand(words[0], std::string(group.summary));
          parent->require_subcommand(1);
        }
  }
  RIDGE_CHECK(parent, "no group for command '{}'", command.name);
  return *parent->add_subcommand(words.back(), std::string(command.summary));
}

/// The command that was being parsed: the deepest one named on the command line.
const CLI::App& parsed_app(const CLI::App& root) {
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return *app;
}

/// The closest known word to `unknown` in this app, empty when none is close.
std::string closest(const CLI::App& app, const std::string& unknown) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  for (const CLI::App* nested : every_nested(app)) words.push_back(nested->get_name());
  const std::string near = closest_word(unknown, std::vector<std::string_view>(words.begin(), words.end()));
  if (!near.empty() || app.get_parent()) return near;
  // "ppl" for "eval ppl".
  std::vector<std::string_view> last_words;
  for (const Command& command : commands()) last_words.push_back(command.name.substr(command.name.find(' ') + 1));
  const auto at = std::ranges::find(last_words, closest_word(unknown, last_words));
  return at == last_words.end() ? "" : std::string(commands()[size_t(at - last_words.begin())].name);
}

/// "help eval ppl" and "eval help ppl" as "eval ppl --help".
std::vector<std::string> with_help_flag(std::vector<std::string> words) {
  const auto is_group = [&] { return std::ranges::find(groups(), words[0], &Group::name) != groups().end(); };
  const size_t at = !words.empty() && words[0] != "help" && is_group() ? 1 : 0;
  if (words.size() <= at || words[at] != "help") return words;
  words.erase(words.begin() + ptrdiff_t(at));
  words.emplace_back("--help");
  return words;
}

/// The first word after the commands that were understood.
std::string first_rest(const CLI::App& app, const std::vector<std::string>& words) {
  size_t depth = 0;
  for (const CLI::App* a = &app; a->get_parent(); a = a->get_parent()) ++depth;
  return depth < words.size() ? words[depth] : "";
}

/// The first flag of `words` that `app` does not know, else the last word.
std::string unexpected(const CLI::App& app, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (word.starts_with("-") && !app.get_option_no_throw(word.substr(0, word.find('='))))
      return word.substr(0, word.find('='));
  return words.empty() ? "" : words.back();
}

std::string usage_message(const CLI::App& root, const CLI::ParseError& error, const std::vector<std::string>& words) {
  const CLI::App& app = parsed_app(root);
  const std::string name = full_name(app);
  const auto unknown = [&](std::string_view what, const std::string& word) {
    const std::string near = closest(app, word);
    return fmt::format("{}: unknown {} {} ({}see `{} --help`)", name, what, io::in_quotes(word),
                       near.empty() ? "" : fmt::format("did you mean {}? ", near), name);
  };
  if (!every_nested(app).empty()) {
    const std::string word = first_rest(app, words);
    if (!word.empty()) return unknown(word.starts_with("-") ? "flag" : "command", word);
    return fmt::format("{}: a command is needed (see `{} --help`)", name, name);
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    const std::string word = unexpected(app, app.remaining());
    return unknown(word.starts_with("-") ? "flag" : "argument", word);
  }
  return fmt::format("{}: {} (see `{} --help`)", name, error.what(), name);
}

int report(ErrorKind kind, std::string_view message) {
  std::fflush(stdout);
  chat::end_text(true);
  if (Ranks* const ranks = joined_ranks()) {
    // Let the first rank report an error that all ranks meet, and end them all; other ranks speak when it has not done
    // so.
    if (!ranks->is_first()) std::this_thread::sleep_for(std::chrono::seconds(2));
    fmt::print(stderr, "error: {}{}\n", ranks->is_first() ? "" : ranks->name(ranks->rank()) + ": ", message);
    ranks->abort(int(kind));
  }
  fmt::print(stderr, "error: {}\n", message);
  return int(kind);
}

/// Results that could not be written are a failure, whatever the command thinks.
int finish_output(int code) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return code;
  return report(ErrorKind::failure, "cannot write the output: stdout: the device is full or closed");
}

/// Command that a command line asks for.
struct Asked {
  Action action;
  RankUse ranks = RankUse::led;
};

/// Runs the command; on a rank that is led what the first rank says, and only that ends it.
int run_as_rank(const Asked& asked, const PathHere& path_here) {
  Ranks* const ranks = joined_ranks();
  if (!ranks || !ranks->led()) return asked.action();
  if (ranks->is_first()) {
    const int code = asked.action();
    lead_end(*ranks);
    return code;
  }
  ignore_interrupts();
  if (asked.ranks == RankUse::led) ranks->limit_waits(file_seconds(*ranks));
  follow(*ranks, path_here);
  return 0;
}

int parse_and_run(CLI::App& root, const std::vector<std::string>& args,
                  const std::map<const CLI::App*, Asked>& actions) {
  const std::vector<std::string> words =
      normalize_args(root, with_help_flag({args.begin() + std::min<int64_t>(1, int64_t(args.size())), args.end()}));
  try {
    root.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them from the back
  } catch (const CLI::CallForHelp& error) {
    const CLI::App& app = parsed_app(root);
    const std::string word = every_nested(app).empty() ? "" : first_rest(app, words);
    if (!word.empty() && !word.starts_with("-")) return report(ErrorKind::usage, usage_message(root, error, words));
    fmt::print("{}", help_text(app));
    return 0;
  } catch (const CLI::CallForVersion&) {
    fmt::print("{}\n", version_text());
    return 0;
  } catch (const CLI::ParseError& error) {
    return report(ErrorKind::usage, usage_message(root, error, words));
  }
  const CLI::App& app = parsed_app(root);
  const Asked& asked = actions.at(&app);
  const int code = run_as_rank(asked, join_ranks(app, words, asked.ranks));
  leave_mpi();
  return code;
}

}  // namespace

int run_program(const std::vector<std::string>& args) {
  install_interrupt_handler();
  io::install_sigbus_message();
  std::signal(SIGXFSZ, SIG_IGN);  // past a limit on file sizes write() fails and says so
  lab::set_command_line(args);

  CLI::App root("Ridge: an LLM decode engine in which every compressed format has to prove that it pays.", "ridge");
  root.formatter(std::make_shared<HelpFormatter>());
  root.set_version_flag("--version", version_text(), "print version, commit and compiler");
  root.require_subcommand(1);
  root.footer(
      "\nRun `ridge COMMAND --help` for a command's flags and examples.\n"
      "Exit codes: 0 ok, 1 failure, 2 usage, 3 a check or a limit failed, 4 bad input file, 5 not enough memory,\n"
      "6 device or driver missing, 130 interrupted.");
  std::map<const CLI::App*, Asked> actions;
  for (const Command& command : commands()) {
    CLI::App& app = app_of(root, command);
    actions[&app] = {command.declare(app), command.ranks};
    app.description(
        fmt::format("{}: {}\n\n{}\n", full_name(app), command.summary, wrapped(std::string(command.details), 100)));
    app.footer(app.get_footer() + footer(command.example));
  }
  complete_options(root);
  try {
    const int code = finish_output(parse_and_run(root, args, actions));
    return code == 0 ? exit_code_of(true) : code;
  } catch (const Error& error) {
    const std::string_view flag = flag_of_field(error.field());
    return report(error.kind(), four_parts("", flag, error.what(), ""));
  } catch (const std::bad_alloc&) {
    return report(ErrorKind::no_memory, "not enough memory (use a smaller model, context or batch)");
  } catch (const std::exception& error) {
    return report(ErrorKind::failure, fmt::format("{} (please report this with the command line)", error.what()));
  }
}

}  // namespace ridge::cli
