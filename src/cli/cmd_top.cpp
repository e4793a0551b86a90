// ridge top: a live view of a server in a terminal.
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/top_client.h"
#include "cli/top_screen.h"
#include "http/auth.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "text/unicode.h"

namespace ridge::cli {
namespace {

constexpr int kFrameMs = 50;
constexpr int kOnceColumns = 100;
constexpr int kMostOnceRows = 4200;
constexpr size_t kMostInput = 64 << 10;

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
  for (const std::string_view name : {"props", "slots", "kv"})
    all[std::string(name)] = io::parse_json(target.get("/" + std::string(name), nullptr).or_throw(), name).or_throw();
  fmt::print("{}\n", all.dump(-1, ' ', true));
  return 0;
}

int print_once(const top::Target& target, const std::string& url) {
  top::View view{.url = url};
  top::poll_once(target, false, nullptr, view.known);
  if (!view.known.connected) throw Error(ErrorKind::failure, view.known.trouble);
  top::Canvas canvas(std::min(kMostOnceRows, 16 + int(view.known.slots.running.size() + 2 * view.known.pools.size())),
                     kOnceColumns);
  top::draw_requests(view, canvas, 0, canvas.rows());
  int rows = canvas.rows();
  while (rows > 0 && canvas.line(rows - 1).empty()) --rows;
  for (int row = 0; row < rows; ++row) fmt::print("{}\n", canvas.line(row));
  return 0;
}

void turn_page(top::View& view, int page) {
  view.page = top::Page((page + top::kPages) % top::kPages);
  view.scroll = 0;
}

void press_tab(top::View& view) {
  switch (view.page) {
    case top::Page::chat: view.typing = !view.typing; break;
    case top::Page::requests: view.shows_prompts = !view.shows_prompts; break;
    case top::Page::cache: view.shows_error = !view.shows_error; break;
    case top::Page::pools: ++view.pool; break;
  }
}

/// What scrolls has its own least; its most is where there is something to see.
void move(top::View& view, int by) {
  if (view.page == top::Page::cache) {
    const size_t n =
        view.known.pools.empty() ? 0 : view.known.pools[size_t(view.pool) % view.known.pools.size()].layers.size();
    view.layer = std::clamp(view.layer + by, 0, std::max(0, int(n) - 1));
  } else {
    constexpr int kMostScroll = 1 << 20;
    view.scroll = std::clamp(view.scroll + (view.page == top::Page::chat ? -by : by), 0, kMostScroll);
  }
}

void type(top::View& view, top::Talk& talk, const top::Press& press) {
  if (press.key == top::Key::text && view.input.size() < kMostInput) view.input += press.text;
  if (press.key == top::Key::backspace && !view.input.empty())
    view.input.resize(text::code_position(view.input, text::count_codes(view.input) - 1));
  if (press.key == top::Key::enter && !view.input.empty() && !view.chat.streams) {
    talk.send(view.input, view.known.props.chat_template);
    view.input.clear();
  }
}

bool command(top::View& view, const std::string& letter) {
  if (letter == "q") return false;
  if (letter.size() == 1 && letter[0] >= '1' && letter[0] < '1' + top::kPages) turn_page(view, letter[0] - '1');
  if (letter == "p") ++view.pool;
  return true;
}

/// Returns whether the program goes on.
bool act(top::View& view, top::Talk& talk, const top::Press& press, int page_rows) {
  using top::Key;
  const bool typing = view.page == top::Page::chat && view.typing;
  switch (press.key) {
    case Key::quit: return false;
    case Key::previous: turn_page(view, int(view.page) - 1); return true;
    case Key::next: turn_page(view, int(view.page) + 1); return true;
    case Key::escape: talk.stop(); return true;
    case Key::reset:
      talk.reset();
      view.input.clear();
      return true;
    case Key::tab: press_tab(view); return true;
    case Key::up: move(view, -1); return true;
    case Key::down: move(view, 1); return true;
    case Key::page_up: move(view, -page_rows); return true;
    case Key::page_down: move(view, page_rows); return true;
    case Key::text:
      if (!typing) return command(view, press.text);
      [[fallthrough]];
    case Key::enter:
    case Key::backspace:
      if (typing) type(view, talk, press);
      return true;
    case Key::none:
    case Key::resize: return true;
  }
  return true;
}

int watch(const top::Target& target, const std::string& url) {
  // Threads end behind the screen: a server that hangs does not keep the terminal.
  top::Poller poller(target);
  top::Talk talk(target);
  top::Screen screen;
  top::View view{.url = url};
  uint64_t seen = ~uint64_t(0);
  for (bool goes_on = true; goes_on && !interrupted();) {
    const uint64_t changes = poller.changes() + talk.changes();
    if (changes != seen) {
      seen = changes;
      view.known = poller.known();
      view.chat = talk.chat();
      top::Canvas canvas(std::max(1, screen.rows()), std::max(2, screen.columns()));
      draw(view, canvas);
      screen.show(canvas);
    }
    const top::Press press = screen.read(kFrameMs);
    if (press.key == top::Key::none) continue;
    goes_on = act(view, talk, press, std::max(1, screen.rows() - 6));
    seen = ~uint64_t(0);
    poller.ask_by_page(view.page == top::Page::cache);
  }
  clear_interrupt();  // it is a way to end
  return 0;
}

int run_top(const TopFlags& flags) {
  top::Target target{.key = key_of(flags), .interval_ms = flags.interval_ms};
  Result<http::Url> url = http::parse_url(flags.url);
  if (!url) bad_flag("URL", url.error().message);
  target.url = *url;
  const std::string shown = flags.url.substr(0, flags.url.find('?'));
  if (flags.output.json) return print_json(target);
  return flags.once ? print_once(target, shown) : watch(target, shown);
}

}  // namespace

Action declare_top(CLI::App& app) {
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

}  // namespace ridge::cli
