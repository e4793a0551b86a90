// ridge top: a live view of a server in a terminal.
#include "base/interrupt.h"
#include "cli/options.h"
#include "http/auth.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "text/unicode.h"
#include "top/watch.h"

namespace ridge::cli {
namespace {

constexpr int kOnceColumns = 100;
constexpr int kMostOnceRows = 4200;

struct TopFlags {
  std::string url = "http://127.0.0.1:8080", key, key_file;
  int interval_ms = 500;
  bool once = false;
  OutputFlags output;
};

/// The first key of a file as `ridge serve` takes it.
std::string key_of(const TopFlags& flags) {
  if (!flags.key.empty() && !flags.key_file.empty()) bad_flag("--api-key-file", "does not go with --api-key");
  const bool from_file = !flags.key_file.empty();
  const std::string text = from_file ? io::read_text_file(flags.key_file, 1 << 20).or_throw() : flags.key;
  if (text.empty()) return "";
  const std::string_view where = from_file ? std::string_view(flags.key_file) : "--api-key";
  if (http::Keys::parse(text, where).or_throw().empty()) bad_flag("--api-key-file", flags.key_file + " holds no key");
  std::string key;
  text::each_line(text, [&](std::string_view line) {
    line = text::strip(line, nullptr, true, true);
    if (key.empty() && !line.empty() && line[0] != '#') key = line;
  });
  return key;
}

int print_json(const top::Target& target) {
  nlohmann::json all;
  for (const std::string_view name : {"props", "status", "kv"})
    all[std::string(name)] = io::parse_json(target.get("/" + std::string(name), nullptr).or_throw(), name).or_throw();
  fmt::print("{}\n", all.dump(-1, ' ', true));
  return 0;
}

int print_once(const top::Target& target, const std::string& url) {
  top::View view{.url = url};
  top::poll_once(target, false, nullptr, view.known);
  if (!view.known.connected) throw Error(ErrorKind::failure, view.known.trouble);
  top::Canvas canvas(std::min(kMostOnceRows, 16 + int(view.known.status.running.size() + 2 * view.known.pools.size())),
                     kOnceColumns);
  top::draw_requests(view, canvas, 0, canvas.rows());
  int rows = canvas.rows();
  while (rows > 0 && canvas.line(rows - 1).empty()) --rows;
  for (int row = 0; row < rows; ++row) fmt::print("{}\n", canvas.line(row));
  return 0;
}

int run_top(const TopFlags& flags) {
  top::Target target{.key = key_of(flags), .interval_ms = flags.interval_ms};
  Result<http::Url> url = http::parse_url(flags.url);
  if (!url) bad_flag("URL", url.error().message);
  target.url = *url;
  const std::string shown = flags.url.substr(0, flags.url.find('?'));
  if (flags.output.json) return print_json(target);
  if (flags.once) return print_once(target, shown);
  top::watch(target, shown, [] { return interrupted(); });
  clear_interrupt();  // it is a way to end
  return 0;
}

}  // namespace

static Action declare_top(CLI::App& app) {
  const auto flags = std::make_shared<TopFlags>();
  TopFlags& f = *flags;
  add_text(app, "URL", f.url, "TEXT", "address of a `ridge serve`");
  add_text(app, "--api-key", f.key, "KEY", "key that the server wants (other users see flags: prefer the file)");
  add_text(app, "--api-key-file", f.key_file, "FILE", "file whose first key is shown to the server");
  add_whole(app, "--interval-ms", f.interval_ms, 50, 3'600'000, "milliseconds between questions to the server");
  app.add_flag("--once", f.once, "print the requests page once, as text, and end");
  add_output_flags(app, f.output, false);
  return [flags] { return run_top(*flags); };
}

extern const Command top_command = {
    "top", "watch a server in the terminal, and chat with it",
    R"(Five pages: chat; requests, queue and throughput; norms and coding errors of the cache by layer and page;
pools and memory; time of the ops by layer, where the server runs with --trace-ops. F1 and F2 (or 1 to 5) turn
pages, Tab moves the focus, Esc stops an answer, Ctrl-R resets the chat, q or Ctrl-C ends. The server may be on
another machine. --once prints the requests page as text, --json what /props, /status and /kv say.)",
    R"(ridge top
ridge top http://gpu-box:8080 --api-key-file key.txt
ridge top --once)",
    declare_top};

}  // namespace ridge::cli
