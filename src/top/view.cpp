#include "top/view.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>

namespace ridge::top {
namespace {

constexpr std::string_view kNames[kPages] = {"chat", "requests", "cache", "pools", "layers"};

/// A bar of parts, each `glyph` in its style, together as wide as `width`; a part that is there gets a column at least.
struct Part {
  int64_t count;
  char32_t glyph;
  Style style;
};
void put_bar(Canvas& canvas, int row, int column, int width, int64_t total, std::initializer_list<Part> parts) {
  int64_t before = 0;
  int at = 0;
  for (const Part& part : parts) {
    before += part.count;
    int end = total > 0 ? int(double(width) * std::min(1.0, double(before) / double(total)) + 0.5) : 0;
    if (part.count > 0) end = std::max(end, at + 1);
    end = std::min(end, width);
    for (; at < end; ++at) canvas.put(row, column + at, std::u32string_view(&part.glyph, 1), part.style);
  }
}

void put_pages_bar(Canvas& canvas, int row, int column, int width, const Pool& p) {
  put_bar(canvas, row, column, width, p.pages,
          {{p.used, U'█', Style::good},
           {p.shared, U'▓', Style::accent},
           {p.cached, U'▒', Style::warn},
           {p.free, U'·', Style::dim}});
}

std::string pages_text(const Pool& p) {
  return fmt::format("used {}  shared {}  cached {}  free {} of {}", p.used, p.shared, p.cached, p.free, p.pages);
}

std::string ratio_text(int64_t f16, int64_t used) {
  return used > 0 && f16 > 0 ? fmt::format(" ({:.2f}x)", double(f16) / double(used)) : "";
}

std::string kv_text(const Pool& p) {
  return fmt::format("{} of {}; sequences {}, f16 {}{}", bytes_text(p.used_bytes), bytes_text(p.allocated_bytes),
                     bytes_text(p.sequence_bytes), bytes_text(p.sequence_f16_bytes),
                     ratio_text(p.sequence_f16_bytes, p.sequence_bytes));
}

/// A label and its text; returns whether there was a row.
bool put_fact(Canvas& canvas, int& row, int bottom, std::string_view label, std::string_view text,
              Style style = Style::plain) {
  if (row >= bottom) return false;
  canvas.put(row, 0, label, Style::dim);
  canvas.put(row++, 10, text, style);
  return true;
}

struct Column {
  std::string_view name;
  int width;
  bool right;
};
constexpr std::array<Column, 8> kColumns = {{{"id", 6, true},
                                             {"state", 7, false},
                                             {"prompt", 13, true},
                                             {"cached", 7, true},
                                             {"made", 7, true},
                                             {"tok/s", 8, true},
                                             {"cache", 24, false},
                                             {"", 0, false}}};

void put_columns(Canvas& canvas, int row, const std::array<std::string, 7>& cells, Style style) {
  int column = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    const int end = column + kColumns[i].width;
    if (end > canvas.columns() && kColumns[i].right) break;
    if (kColumns[i].right) canvas.put_right(row, end, cells[i], style);
    else canvas.put(row, column, cells[i], style, kColumns[i].width);
    column = end + 2;
  }
}

const Pool* chosen_pool(const View& view) {
  const auto& pools = view.known.pools;
  return pools.empty() ? nullptr : &pools[size_t(view.pool) % pools.size()];
}

double value_of(const Measure& m, bool error) { return error ? m.error : m.norm; }
std::string value_text(double value, bool error) {
  return error ? fmt::format("{:.2f} %", 100 * value) : fmt::format("{:.3g}", value);
}

struct Range {
  double low = 0, high = 0;
  void add(double value) {
    if (!(value > 0)) return;
    low = high == 0 ? value : std::min(low, value);
    high = std::max(high, value);
  }
};

/// How many cells a row of a map has, and what their colours say.
struct MapCells {
  int width;
  bool error;
};
/// The pages of a layer across: several pages a cell, the largest of them, where they are too many.
void put_pages(Canvas& canvas, int row, int column, const MapCells& cells, const std::vector<Measure>& pages,
               const Range& range) {
  const size_t a_cell = std::max<size_t>(1, (pages.size() + size_t(cells.width) - 1) / size_t(cells.width));
  for (size_t page = 0; page < pages.size(); page += a_cell) {
    double value = 0;
    for (size_t i = page; i < std::min(pages.size(), page + a_cell); ++i)
      value = std::max(value, value_of(pages[i], cells.error));
    canvas.heat(row, column + int(page / a_cell), heat_level(value, range.low, range.high));
  }
}

std::string side_text(const Side& side, bool error) {
  Range range;
  for (const Measure& page : side.pages) range.add(value_of(page, error));
  return fmt::format("norm {:.3g}  error {:.2f} %  saturated {}  by page {} to {}", side.all.norm, 100 * side.all.error,
                     side.saturated, value_text(range.low, error), value_text(range.high, error));
}

constexpr int kLayerColumn = 9, kTimeColumn = 11;

/// Ops with their seconds in all layers, the longest first.
std::vector<std::pair<std::string, double>> ops_by_time(const OpTimes& times) {
  std::map<std::string, double> sums;
  for (const LayerTimes& layer : times.layers)
    for (const auto& [op, seconds] : layer.seconds) sums[op] += seconds;
  std::vector<std::pair<std::string, double>> ops(sums.begin(), sums.end());
  std::ranges::stable_sort(ops, std::ranges::greater(), &std::pair<std::string, double>::second);
  return ops;
}

std::string ms_text(const OpTimes& times, double seconds) {
  return fmt::format("{:.3f}", 1e3 * seconds / double(times.passes));
}

/// "12.500 ms a pass (last 3): gemv 61 %, attention 20 %, gaps 4 %"; gaps lie between ops.
std::string ops_text(const OpTimes& times, std::span<const std::pair<std::string, double>> by_time) {
  std::string text = fmt::format("{} ms a pass (last {}):", ms_text(times, times.seconds), times.passes);
  double rest = times.seconds;
  const auto add = [&](std::string_view op, double seconds) {
    text += fmt::format(" {} {:.0f} %,", op, times.seconds > 0 ? 100 * seconds / times.seconds : 0.0);
  };
  for (const auto& [op, seconds] : by_time) {
    add(op, seconds);
    rest -= seconds;
  }
  add("gaps", std::max(0.0, rest));
  text.pop_back();
  return text;
}

}  // namespace

void draw_requests(const View& view, Canvas& canvas, int top, int bottom) {
  const ServerStatus& s = view.known.status;
  int row = top;
  const bool roomy = bottom - top > 9;  // else the table comes before history and empty rows
  const int width = std::max(1, canvas.columns() - 10);
  put_fact(canvas, row, bottom, "running",
           fmt::format("{} of {}   queue {}   done {}   cancelled {}   failed {}", s.running.size(), s.parallel,
                       s.queue, count_text(s.finished), count_text(s.cancelled), count_text(s.failed)),
           s.queue > 0 ? Style::warn : Style::plain);
  put_fact(canvas, row, bottom, "tok/s",
           fmt::format("{:.1f} made   {:.1f} of prompts   {} made in all   {} from the cache", s.tok_s, s.prompt_tok_s,
                       count_text(s.generated_tokens), count_text(s.cached_tokens)),
           Style::bold);
  const std::vector<double>& history = view.shows_prompts ? view.known.prompt_tok_s : view.known.tok_s;
  double high = 0;
  for (size_t i = history.size() - std::min(history.size(), size_t(width)); i < history.size(); ++i)
    high = std::max(high, history[i]);
  if (roomy && row < bottom) {
    canvas.put(row, 0, view.shows_prompts ? "prompts" : "made", Style::dim);
    const std::string most = fmt::format(" max {:.0f}", high);
    canvas.put(row, 10, sparkline(history, width - int(most.size())), Style::accent);
    canvas.put_right(row++, canvas.columns(), most, Style::dim);
  }
  put_fact(
      canvas, row, bottom, "step",
      fmt::format("{:.2f} ms (p50)   newest: {} decode + {} prompt tokens", s.ms_p50, s.decode_seqs, s.prompt_tokens));
  if (roomy)
    put_fact(canvas, row, bottom, "parts",
             fmt::format("planning {:.2f}  model {:.2f}  sampling {:.2f}  events {:.2f} ms (p50 each)", s.planning_ms,
                         s.model_ms, s.sampling_ms, s.events_ms));
  if (roomy && view.known.ops.passes > 0)
    put_fact(canvas, row, bottom, "ops", ops_text(view.known.ops, ops_by_time(view.known.ops)));
  for (const Pool& p : view.known.pools) {
    if (bottom - row < 5) break;  // the table comes first
    put_fact(canvas, row, bottom, "pages", "");
    const int bar = std::clamp(canvas.columns() - 60, 4, 24);
    put_pages_bar(canvas, row - 1, 10, bar, p);
    canvas.put(row - 1, 12 + bar, pages_text(p));
    put_fact(canvas, row, bottom, "bytes", fmt::format("{}  {}", kv_text(p), p.kv));
  }
  if (roomy) ++row;
  if (row >= bottom) return;
  std::array<std::string, 7> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kColumns[i].name;
  put_columns(canvas, row++, names, Style::dim);
  const int n = int(s.running.size()), room = bottom - row;
  if (n == 0 && room > 0) canvas.put(row, 0, view.known.connected ? "nothing runs" : "", Style::dim);
  for (int i = std::clamp(view.scroll, 0, std::max(0, n - room)); i < n && row < bottom; ++i, ++row) {
    const Sequence& q = s.running[size_t(i)];
    if (row + 1 == bottom && i + 1 < n) {
      canvas.put(row, 0, fmt::format("{} more (Down)", n - i), Style::dim);
      break;
    }
    put_columns(canvas, row,
                {q.id, q.state, fmt::format("{}/{}", q.n_prompt_done, q.n_prompt), count_text(q.n_cached),
                 count_text(q.n_generated), fmt::format("{:.1f}", q.tok_s), q.kv},
                q.state == "parked"   ? Style::warn
                : q.state == "prompt" ? Style::accent
                                      : Style::plain);
  }
}

void draw_cache(const View& view, Canvas& canvas, int top, int bottom) {
  const Pool* pool = chosen_pool(view);
  if (!pool || pool->layers.empty()) {
    canvas.put(top, 0, pool ? "asking for the counts of pages" : "no cache yet: it is opened by the first request",
               Style::dim);
    return;
  }
  const bool error = view.shows_error;
  const size_t n = pool->layers.size(), chosen = std::min(size_t(std::max(0, view.layer)), n - 1);
  const Layer& layer = pool->layers[chosen];
  Range k, v;
  for (const Layer& l : pool->layers) {
    for (const Measure& page : l.k.pages) k.add(value_of(page, error));
    for (const Measure& page : l.v.pages) v.add(value_of(page, error));
  }
  int row = top;
  canvas.put(row++, 0,
             fmt::format("{} of {} pages of {} tokens, cache {}", error ? "coding error" : "norms of rows",
                         layer.k.pages.size(), pool->page_tokens, pool->kv));
  const int half = std::max(3, (canvas.columns() - 6) / 2);
  if (bottom - top > 4 && row < bottom) {
    canvas.put(row, 5, fmt::format("K {} to {}", value_text(k.low, error), value_text(k.high, error)), Style::dim,
               half - 1);
    canvas.put(row++, 5 + half, fmt::format("V {} to {}", value_text(v.low, error), value_text(v.high, error)),
               Style::dim);
  }
  const int room = std::max(1, bottom - row - 3);
  const size_t first = n <= size_t(room) ? 0 : std::min(n - size_t(room), chosen - std::min(chosen, size_t(room) / 2));
  const int end = std::min(bottom, row + std::min(room, int(n)));
  for (size_t i = first; row < end; ++row, ++i) {
    const Layer& l = pool->layers[i];
    canvas.put_right(row, 4, fmt::format("{}{:>3}", i == chosen ? ">" : " ", l.layer),
                     i == chosen ? Style::bold : Style::dim);
    put_pages(canvas, row, 5, {half - 1, error}, l.k.pages, k);
    put_pages(canvas, row, 5 + half, {half - 1, error}, l.v.pages, v);
  }
  if (row < bottom && canvas.columns() >= 60) {
    canvas.put(row, 5, "low ", Style::dim);
    for (int level = 1; level <= kHeatLevels; ++level) canvas.heat(row, 8 + level, level);
    canvas.put(row++, 18, "high, · nothing stored", Style::dim);
  }
  if (row < bottom)
    canvas.put(row++, 0, fmt::format("layer {} K  {}", layer.layer, side_text(layer.k, error)), Style::bold);
  if (row < bottom)
    canvas.put(row++, 0, fmt::format("layer {} V  {}", layer.layer, side_text(layer.v, error)), Style::bold);
}

void draw_pools(const View& view, Canvas& canvas, int top, int bottom) {
  const auto& pools = view.known.pools;
  if (pools.empty()) {
    canvas.put(top, 0, "no pool yet: the first request opens one", Style::dim);
    return;
  }
  int row = top;
  const size_t chosen = size_t(view.pool) % pools.size();
  for (size_t i = chosen; i < pools.size() + chosen && row < bottom; ++i) {
    const Pool& p = pools[i % pools.size()];
    canvas.put(row++, 0, fmt::format("{} {}", i == chosen ? ">" : " ", p.kv), Style::bold);
    put_fact(canvas, row, bottom, "  formats", fmt::format("K {}  V {}", p.k_format, p.v_format));
    put_fact(canvas, row, bottom, "  token", fmt::format("{} B, f16 {:.2f}x as much", p.bytes_per_token, p.ratio));
    put_fact(canvas, row, bottom, "  pages", pages_text(p));
    if (put_fact(canvas, row, bottom, "", ""))
      put_pages_bar(canvas, row - 1, 10, std::max(1, canvas.columns() - 10), p);
    put_fact(canvas, row, bottom, "  page",
             fmt::format("{} tokens, {}; slot {}", p.page_tokens, bytes_text(p.page_bytes), bytes_text(p.slot_bytes)));
    put_fact(canvas, row, bottom, "  slots",
             fmt::format("{} of {} taken: {} sequences, {} checkpoints", p.slots - std::min(p.slots, p.slots_free),
                         p.slots, p.sequences, p.checkpoints));
    put_fact(canvas, row, bottom, "  bytes", kv_text(p));
    put_fact(canvas, row, bottom, "  tokens", fmt::format("{} held by running sequences", p.tokens));
    ++row;
  }
}

void draw_layers(const View& view, Canvas& canvas, int top, int bottom) {
  const OpTimes& times = view.known.ops;
  if (times.passes == 0) {
    canvas.put(top, 0,
               view.known.status.times_ops
                   ? "no pass has run yet"
                   : "ops are not timed here: ridge serve --trace-ops (CPU; GPU: ridge profile)",
               Style::dim);
    return;
  }
  const auto by_time = ops_by_time(times);
  int row = top;
  canvas.put(row++, 0, ops_text(times, by_time), Style::bold);
  const auto put_times = [&](const std::string& name, std::span<const LayerTimes> of, Style style) {
    if (row >= bottom) return;
    canvas.put(row, 0, name, style, kLayerColumn);
    double all = 0;
    for (const LayerTimes& layer : of)
      for (const auto& [op, seconds] : layer.seconds) all += seconds;
    int end = kLayerColumn + kTimeColumn;
    canvas.put_right(row, end, ms_text(times, all), style);
    for (const auto& [op, total] : by_time) {
      if ((end += kTimeColumn) > canvas.columns()) break;
      double sum = 0;
      for (const LayerTimes& layer : of)
        if (const auto found = layer.seconds.find(op); found != layer.seconds.end()) sum += found->second;
      canvas.put_right(row, end, ms_text(times, sum), style);
    }
    ++row;
  };
  if (row < bottom) {
    canvas.put(row, 0, "layer", Style::dim);
    int end = kLayerColumn + kTimeColumn;
    canvas.put_right(row, end, "ms", Style::dim);
    for (const auto& [op, total] : by_time)
      if ((end += kTimeColumn) <= canvas.columns())
        canvas.put_right(row, end, op.substr(0, kTimeColumn - 1), Style::dim);
    ++row;
  }
  // The layers behind what is outside of them; several a row where they are too many.
  const bool has_outside = !times.layers.empty() && times.layers[0].layer < 0;
  const std::span<const LayerTimes> all = times.layers, layers = all.subspan(has_outside);
  const size_t room = size_t(std::max(1, bottom - row - 2)),
               a_row = std::max<size_t>(1, (layers.size() + room - 1) / room);
  for (size_t first = 0; first < layers.size(); first += a_row) {
    const auto some = layers.subspan(first, std::min(a_row, layers.size() - first));
    put_times(some.size() == 1 ? fmt::format("{}", some[0].layer)
                               : fmt::format("{}-{}", some.front().layer, some.back().layer),
              some, Style::plain);
  }
  if (has_outside) put_times("outside", all.first(1), Style::plain);
  put_times("all", all, Style::bold);
}

void draw_chat(const View& view, Canvas& canvas, int top, int bottom) {
  const int columns = canvas.columns(), room = bottom - top - 2;
  std::vector<std::pair<std::u32string, Style>> lines;
  const auto add = [&](std::string_view who, const std::string& text, Style style) {
    const int indent = int(who.size());
    bool first = true;
    for (std::u32string& line : wrap(safe_text(text, true), std::max(2, columns - indent))) {
      lines.emplace_back((first ? safe_text(who) : std::u32string(size_t(indent), U' ')) + line, style);
      first = false;
    }
  };
  for (const Turn& turn : view.chat.turns) {
    if (!turn.reasoning.empty()) add("  ", turn.reasoning, Style::dim);
    if (!turn.text.empty() || turn.user)
      add(turn.user ? "> " : "  ", turn.text, turn.user ? Style::accent : Style::plain);
  }
  if (lines.empty())
    add("", "Type a message and press Enter. The server may be remote: nothing runs here.", Style::dim);
  const int n = int(lines.size()), up = view.typing ? 0 : std::clamp(view.scroll, 0, std::max(0, n - room));
  for (int i = std::max(0, n - up - room), row = top; i < n - up && row < bottom - 2; ++i, ++row)
    canvas.put(row, 0, lines[size_t(i)].first, lines[size_t(i)].second);
  if (room >= 0) {
    canvas.put(bottom - 2, 0, std::u32string(size_t(columns), U'─'), Style::dim);
    canvas.put(bottom - 2, 2, view.chat.note.empty() ? "" : " " + view.chat.note + " ", Style::dim, columns - 4);
    if (up > 0) canvas.put_right(bottom - 2, columns - 2, fmt::format(" {} lines below ", up), Style::dim);
  }
  // The end of what is typed stays in sight, with a cursor behind it.
  std::u32string input = safe_text(view.input);
  while (!input.empty() && width_of(input) > columns - 4) input.erase(0, 1);
  const int end = canvas.put(bottom - 1, canvas.put(bottom - 1, 0, "> ", Style::accent), input);
  if (view.typing) canvas.put(bottom - 1, end, " ", Style::inverse);
}

void draw(const View& view, Canvas& canvas) {
  const Known& known = view.known;
  const int columns = canvas.columns(), bottom = canvas.rows() - 1;
  int column = canvas.put(0, 0, fmt::format(" {}", known.props.model.empty() ? "ridge top" : known.props.model));
  const std::string facts = fmt::format("  {}  {}", known.props.weights, known.props.kv);
  column = canvas.put(0, column, known.props.weights.empty() ? "" : facts);
  const std::string where = fmt::format(" {} ", view.url);
  if (column + int(where.size()) <= columns) canvas.put_right(0, columns, where);
  canvas.fill(0, Style::inverse);

  column = 0;
  for (int i = 0; i < kPages; ++i) {
    const bool here = int(view.page) == i;
    column = canvas.put(1, column, fmt::format(" {} {} ", i + 1, kNames[i]), here ? Style::inverse : Style::dim);
  }
  if (!known.trouble.empty()) canvas.put(1, column, " " + known.trouble, Style::bad);
  else if (known.connected && column + 10 < columns)
    canvas.put_right(1, columns, fmt::format("{}  {} ctx ", known.props.device, known.props.n_ctx), Style::dim);
  else if (!known.connected) canvas.put(1, column, " connecting", Style::warn);

  if (bottom > 2) {
    switch (view.page) {
      case Page::chat: draw_chat(view, canvas, 2, bottom); break;
      case Page::requests: draw_requests(view, canvas, 2, bottom); break;
      case Page::cache: draw_cache(view, canvas, 2, bottom); break;
      case Page::pools: draw_pools(view, canvas, 2, bottom); break;
      case Page::layers: draw_layers(view, canvas, 2, bottom); break;
    }
  }
  static constexpr std::string_view kKeys[kPages] = {
      "Enter sends  Esc stops  Ctrl-R resets  Tab transcript  Ctrl-C quits",
      "1-5 pages  Tab prompts/answers  Up/Down table  q quits",
      "1-5 pages  Tab norm/error  Up/Down layer  p pool  q quits",
      "1-5 pages  Tab next pool  q quits",
      "1-5 pages  q quits",
  };
  std::string_view keys = kKeys[int(view.page)];
  if (view.page == Page::chat && !view.typing) keys = "1-5 pages  Tab input  Up/Down scroll  Esc stops  q quits";
  if (bottom > 1) {
    canvas.put(bottom, canvas.put(bottom, 0, "F1/F2 ", Style::bold), keys, Style::dim);
  }
}

}  // namespace ridge::top
