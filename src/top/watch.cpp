#include "top/watch.h"

#include <algorithm>

#include "text/unicode.h"
#include "top/screen.h"

namespace ridge::top {
namespace {

constexpr int kFrameMs = 50;
constexpr size_t kMostInput = 64 << 10;

void turn_page(View& view, int page) {
  view.page = Page((page + kPages) % kPages);
  view.scroll = 0;
}

void press_tab(View& view) {
  switch (view.page) {
    case Page::chat: view.typing = !view.typing; break;
    case Page::requests: view.shows_prompts = !view.shows_prompts; break;
    case Page::cache: view.shows_error = !view.shows_error; break;
    case Page::pools: ++view.pool; break;
    case Page::layers: break;
  }
}

/// Moves the layer of the cache page, or scrolls another page. Scrolling is at least 0 here; the page's contents limit
/// it where they are shown.
void move(View& view, int by) {
  if (view.page == Page::cache) {
    const size_t n =
        view.known.pools.empty() ? 0 : view.known.pools[size_t(view.pool) % view.known.pools.size()].layers.size();
    view.layer = std::clamp(view.layer + by, 0, std::max(0, int(n) - 1));
  } else {
    constexpr int kMostScroll = 1 << 20;
    view.scroll = std::clamp(view.scroll + (view.page == Page::chat ? -by : by), 0, kMostScroll);
  }
}

void type(View& view, Talk& talk, const Press& press) {
  if (press.key == Key::text && view.input.size() < kMostInput) view.input += press.text;
  if (press.key == Key::backspace && !view.input.empty())
    view.input.resize(text::code_position(view.input, text::count_codes(view.input) - 1));
  if (press.key == Key::enter && !view.input.empty() && !view.chat.streams) {
    talk.send(view.input, view.known.props.chat_template);
    view.input.clear();
  }
}

bool command(View& view, const std::string& letter) {
  if (letter == "q") return false;
  if (letter.size() == 1 && letter[0] >= '1' && letter[0] < '1' + kPages) turn_page(view, letter[0] - '1');
  if (letter == "p") ++view.pool;
  return true;
}

/// Returns whether the program goes on.
bool act(View& view, Talk& talk, const Press& press, int page_rows) {
  const bool typing = view.page == Page::chat && view.typing;
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

}  // namespace

void watch(const Target& target, const std::string& url, const std::function<bool()>& ended) {
  // Threads end behind the screen: a server that hangs does not keep the terminal.
  Poller poller(target);
  Talk talk(target);
  Screen screen;
  View view{.url = url};
  uint64_t seen = ~uint64_t(0);
  for (bool goes_on = true; goes_on && !ended();) {
    const uint64_t changes = poller.changes() + talk.changes();
    if (changes != seen) {
      seen = changes;
      view.known = poller.known();
      view.chat = talk.chat();
      Canvas canvas(std::max(1, screen.rows()), std::max(2, screen.columns()));
      draw(view, canvas);
      screen.show(canvas);
    }
    const Press press = screen.read(kFrameMs);
    if (press.key == Key::none) continue;
    goes_on = act(view, talk, press, std::max(1, screen.rows() - 6));
    seen = ~uint64_t(0);
    poller.ask_by_page(view.page == Page::cache);
  }
}

}  // namespace ridge::top
