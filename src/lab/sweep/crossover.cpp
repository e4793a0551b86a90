#include "lab/sweep/crossover.h"

#include <algorithm>
#include <map>

#include "lab/rows/results.h"

namespace ridge::lab {
namespace {

using Verdicts = Verdict::Answer;

std::optional<int64_t> whole_of(const Row& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? std::optional(found->get<int64_t>()) : std::nullopt;
}

/// The rows of one format (and kernel) at one x.
struct Cell {
  const Row* row = nullptr;
  const Row* control = nullptr;
};
/// Everything that is compared with each other.
struct Series {
  Row common;                                         ///< the cells' fields but axis, format, kernel and control
  std::string newest;                                 ///< date
  std::vector<std::string> formats;                   ///< in the order they came
  std::map<int64_t, std::map<std::string, Cell>> at;  ///< [x][format]
};

std::string label_of(const Row& cell) {
  const std::string kernel = text_in(cell, "kernel");
  const std::string format = text_in(cell, "format");
  return kernel.empty() || kernel == "best" ? format : fmt::format("{} ({})", format, kernel);
}

Row without(Row cell, std::initializer_list<const char*> names) {
  for (const char* name : names) cell.erase(name);
  return cell;
}

/// Series along `axis`, of every build.
std::map<std::string, Series> collect(std::span<const Row> rows, const char* axis) {
  std::map<std::string, Series> all;
  for (const Row& row : rows) {
    const auto cell = row.find("cell");
    if (cell == row.end() || !cell->is_object() || text_in(*cell, "format").empty()) continue;
    const std::optional<int64_t> x = whole_of(*cell, axis);
    if (!x) continue;
    Row common = without(*cell, {axis, "format", "kernel", "control"});
    Series& series = all[cell_key({{"cell", common}})];
    series.common = std::move(common);
    const std::string date = row_date(row);
    series.newest = std::max(series.newest, date);
    const std::string label = label_of(*cell);
    if (std::find(series.formats.begin(), series.formats.end(), label) == series.formats.end())
      series.formats.push_back(label);
    Cell& place = series.at[*x][label];
    (cell->contains("control") ? place.control : place.row) = &row;
  }
  return all;
}

/// One series a subject: that of the build that measured last.
std::vector<const Series*> newest_builds(const std::map<std::string, Series>& all) {
  std::map<std::string, const Series*> newest;
  std::vector<std::string> order;
  for (const auto& [key, series] : all) {
    const std::string subject = cell_key({{"cell", without(series.common, {"build"})}});
    const Series*& kept = newest[subject];
    if (!kept) order.push_back(subject);
    if (!kept || kept->newest < series.newest) kept = &series;
  }
  std::vector<const Series*> list;
  for (const std::string& subject : order) list.push_back(newest[subject]);
  return list;
}

std::string no_times(const std::string& label, const Row* row) {
  if (!row) return label + ": not measured";
  const std::string state = row_state(*row), reason = text_in(*row, "reason");
  if (state != "done") return fmt::format("{}: {}: {}", label, state, reason);
  return label + ": its row has no samples";
}

CrossoverPoint point_at(int64_t x, const std::map<std::string, Cell>& cells, const std::string& baseline,
                        const std::string& format, double budget) {
  const auto cell = [&](const std::string& label) {
    const auto found = cells.find(label);
    return found == cells.end() ? Cell{} : found->second;
  };
  const auto times = [](const Row* row) { return row ? samples_in(*row) : std::vector<double>(); };
  const Cell a = cell(baseline), b = cell(format);
  CrossoverPoint point{.x = x};
  for (const auto& [label, row] : {std::pair(baseline, a.row), std::pair(format, b.row)}) {
    if (!times(row).empty()) continue;
    point.missing = no_times(label, row);
    return point;
  }
  point.verdict = judge(times(a.row), times(a.control), times(b.row), budget);
  if (!a.control && b.control) {
    // The sweep measured the other one twice: the same question from its side.
    Verdict& v = point.verdict;
    const Verdict w = judge(times(b.row), times(b.control), times(a.row), budget);
    v = w;
    v.ratio = 1 / w.ratio;
    v.low = 1 / w.high;
    v.high = 1 / w.low;
    v.effect = -w.effect;
    if (w.answer == Verdicts::faster) v.answer = Verdicts::slower;
    if (w.answer == Verdicts::slower) v.answer = Verdicts::faster;
  }
  point.baseline_key = cell_key(*a.row);
  point.key = cell_key(*b.row);
  return point;
}

/// From the decided points in order: faster then slower is `up_to`, slower then faster is `from`.
void answer(Crossover& c) {
  const CrossoverPoint* before = nullptr;
  int n_faster = 0, n_slower = 0, n_changes = 0;
  for (const CrossoverPoint& point : c.points) {
    if (!point.missing.empty() || point.verdict.answer == Verdicts::none) continue;
    (point.verdict.answer == Verdicts::faster ? n_faster : n_slower)++;
    if (before && before->verdict.answer != point.verdict.answer) {
      ++n_changes;
      c.answer = point.verdict.answer == Verdicts::slower ? Crossover::Answer::up_to : Crossover::Answer::from;
      c.between_low = before->x;
      c.between_high = point.x;
    }
    before = &point;
  }
  if (n_changes == 1) return;
  c.between_low = c.between_high = std::nullopt;
  c.answer = n_changes > 1  ? Crossover::Answer::mixed
             : n_faster > 0 ? Crossover::Answer::always
             : n_slower > 0 ? Crossover::Answer::never
                            : Crossover::Answer::undecided;
}

std::string subject_of(const Row& common, std::string_view axis) {
  const auto count = [&](const char* name) { return whole_of(common, name).value_or(0); };
  const std::string bench = text_in(common, "bench");
  std::string text = bench;
  if (bench == "gemv") text += fmt::format(" {}x{}", count("n_out"), count("n_in"));
  else if (bench == "decode") text += " of " + text_in(common, "model");
  else text += fmt::format(" {}/{}/{}", count("n_heads"), count("n_kv_heads"), count("head_dim"));
  if (axis != "batch" && common.contains("batch")) text += fmt::format(", batch {}", count("batch"));
  if (axis != "depth" && common.contains("depth")) text += fmt::format(", depth {}", count("depth"));
  return text;
}

std::string where_of(const Row& common) {
  const int64_t n_threads = whole_of(common, "n_threads").value_or(0);
  const std::string name = text_in(common, "device_name");
  return n_threads == 0 ? name : fmt::format("{}, {} thread{}", name, n_threads, n_threads == 1 ? "" : "s");
}

std::string_view answer_word(Crossover::Answer answer) {
  constexpr std::string_view kNames[] = {"always", "never", "up_to", "from", "mixed", "undecided"};
  return kNames[size_t(answer)];
}

/// The places of the points that a condition picks: "1, 2, 4".
template <class Condition>
std::string places(const Crossover& c, Condition picks) {
  std::string text;
  for (const CrossoverPoint& point : c.points)
    if (picks(point)) text += fmt::format("{}{}", text.empty() ? "" : ", ", point.x);
  return text;
}

bool has(const CrossoverPoint& point, Verdicts answer) {
  return point.missing.empty() && point.verdict.answer == answer;
}

Row between(const Crossover& c) { return c.between_low ? Row{*c.between_low, *c.between_high} : Row(); }

std::string claim(const Crossover& c) {
  const std::string range = fmt::format("{} {} to {}", c.axis, c.points.front().x, c.points.back().x);
  const bool everywhere =
      std::all_of(c.points.begin(), c.points.end(), [](const auto& p) { return has(p, Verdicts::faster); });
  switch (c.answer) {
    case Crossover::Answer::always:
      return fmt::format("{} beats {} {}, {}", c.format, c.baseline,
                         everywhere ? "always in the measured range" : "wherever it is decided", range);
    case Crossover::Answer::never:
      return fmt::format("{} never beats {} in the measured range, {}", c.format, c.baseline, range);
    case Crossover::Answer::up_to:
      return fmt::format("{} beats {} up to {} {}", c.format, c.baseline, c.axis, *c.between_low);
    case Crossover::Answer::from:
      return fmt::format("{} beats {} from {} {}", c.format, c.baseline, c.axis, *c.between_high);
    case Crossover::Answer::mixed:
      return fmt::format("{} beats {} at {} {} and loses at {}", c.format, c.baseline, c.axis,
                         places(c, [](const auto& p) { return has(p, Verdicts::faster); }),
                         places(c, [](const auto& p) { return has(p, Verdicts::slower); }));
    case Crossover::Answer::undecided:
      return fmt::format("{} and {} cannot be told apart, {}", c.format, c.baseline, range);
  }
  return "?";
}

/// The points next to the change, or the ends.
bool is_evidence(const Crossover& c, const CrossoverPoint& point) {
  if (c.answer == Crossover::Answer::mixed) return true;
  if (c.between_low) return point.x >= *c.between_low && point.x <= *c.between_high;
  return &point == &c.points.front() || &point == &c.points.back();
}

}  // namespace

std::vector<Crossover> find_crossovers(std::span<const Row> rows, const CrossoverOptions& options) {
  std::vector<Crossover> found;
  for (const char* axis : {"batch", "depth"}) {
    const std::map<std::string, Series> all = collect(rows, axis);
    for (const Series* series : newest_builds(all)) {
      if (series->at.size() < 2) continue;
      const std::vector<std::string>& formats = series->formats;
      for (size_t i = 0; i < formats.size(); ++i)
        for (size_t j = 0; j < formats.size(); ++j) {
          const bool pair = options.baseline == "all" ? i < j : formats[i] == options.baseline && i != j;
          if (!pair) continue;
          Crossover c;
          c.axis = axis;
          c.baseline = formats[i];
          c.format = formats[j];
          c.subject = subject_of(series->common, axis);
          c.where = where_of(series->common);
          c.series = series->common;
          for (const auto& [x, cells] : series->at)
            c.points.push_back(point_at(x, cells, c.baseline, c.format, options.budget));
          answer(c);
          found.push_back(std::move(c));
        }
    }
  }
  return found;
}

std::string sentence(const Crossover& c) {
  std::string text = fmt::format("{} on {} ({}):", claim(c), c.subject, c.where);
  bool first = true;
  for (const CrossoverPoint& point : c.points) {
    if (!is_evidence(c, point)) continue;
    const std::string value = point.missing.empty() ? ratio_text(point.verdict) : "nothing";
    text += fmt::format("{} at {} {}", first ? "" : ",", point.x, value);
    first = false;
  }
  const std::string undecided = places(c, [](const auto& p) { return has(p, Verdicts::none); });
  if (!undecided.empty() && c.answer != Crossover::Answer::undecided)
    text += fmt::format("; inside the noise at {} {}", c.axis, undecided);
  for (const CrossoverPoint& point : c.points)
    if (!point.missing.empty()) text += fmt::format("; no comparison at {} {}: {}", c.axis, point.x, point.missing);
  return text;
}

Columns<CrossoverPoint> crossover_point_columns(std::string_view axis) {
  const auto verdict = [](const CrossoverPoint& p) {
    return p.missing.empty() ? verdict_columns().fields(p.verdict)
                             : verdict_columns().picked({"verdict", "why_none"}).fields({.why_none = p.missing});
  };
  const auto cell = [](std::string CrossoverPoint::*key) {
    return [key](const CrossoverPoint& p) { return p.missing.empty() ? Row::parse(p.*key) : absent(); };
  };
  return {
      {axis, "-", "where the formats were compared", &CrossoverPoint::x},
      {"", "", "", verdict, "", "", verdict_columns().texts()},
      {"baseline_cell", "-", "of the baseline's row", cell(&CrossoverPoint::baseline_key)},
      {"cell", "-", "of the format's row", cell(&CrossoverPoint::key)},
  };
}

Columns<Crossover> crossover_columns() {
  return {
      {"kind", "-", "crossover", [](auto&) { return "crossover"; }},
      {"answer", "-", "always, never, up_to, from, mixed or undecided", [](auto& c) { return answer_word(c.answer); }},
      {"axis", "-", "batch or depth", &Crossover::axis},
      {"format", "-", "that is compared", &Crossover::format},
      {"baseline", "-", "format that it is compared with", &Crossover::baseline},
      {"between", "-", "places that the answer changes between", &between},
      {"sentence", "-", "answer in words", &sentence},
      {"series", "-", "what the cells have in common", &Crossover::series},
      {"points", "-", "a list, see below", [](auto& c) { return list_of(c.points, crossover_point_columns(c.axis)); }},
  };
}

}  // namespace ridge::lab
