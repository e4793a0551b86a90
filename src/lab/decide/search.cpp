#include "lab/decide/search.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <unordered_set>

#include "engine/kv_choice.h"
#include "lab/decide/allocate.h"
#include "lab/rows/results.h"

namespace ridge::lab {
namespace {

constexpr const char* kExactSide = "f16";

KvSideOptions side_of(const std::string& text) { return parse_kv_side(text).or_throw(); }

/// Divergences of a question's sides, each measured alone.
struct Sensitivities {
  std::vector<std::vector<double>> added;  ///< [item][format, then f16: 0], what a format adds to the floor
  std::vector<double> floor;               ///< [item]
  double most_floor() const { return floor.empty() ? 0 : *std::ranges::max_element(floor); }
};

/// Nothing where a row is missing: then `why` says which.
std::optional<Sensitivities> sensitivities(std::span<const Row> rows, const DecisionQuestion& q,
                                           const SearchQuestion& s, std::string& why) {
  Sensitivities all;
  for (const SearchItem& item : s.items) {
    std::vector<double> of;
    for (const std::string& side : sides_alone(s)) {
      const Evidence evidence = find_evidence(rows, sensitivity_cell(q, s, side_alone(item.layer, item.side, side)));
      const double kld = evidence.row ? number_in(*evidence.row, "kld_mean") : NAN;
      if (!(kld >= 0)) {
        why = evidence.row ? "a sensitivity is no number" : evidence.why;
        return std::nullopt;
      }
      of.push_back(kld);
    }
    const double floor = of.back();  // sides_alone() has it last
    for (double& kld : of) kld = std::max(kld - floor, 0.0);
    of.back() = 0;
    all.added.push_back(std::move(of));
    all.floor.push_back(floor);
  }
  return all;
}

/// A choice of formats as it is written: the most common pair, then runs of layers with others.
std::string allocation_text(const SearchQuestion& s, const std::vector<int>& formats) {
  const auto name = [&](int format) { return size_t(format) < s.sides.size() ? s.sides[size_t(format)] : kExactSide; };
  std::map<int, std::pair<std::string, std::string>> layers;
  for (size_t i = 0; i < s.items.size(); ++i) {
    auto& [k, v] = layers[s.items[i].layer];
    (s.items[i].side == KvSide::k ? k : v) = name(formats[i]);
  }
  std::map<std::pair<std::string, std::string>, int> count;
  for (const auto& [_, pair] : layers) ++count[pair];
  const auto common =
      std::ranges::max_element(count, [](const auto& a, const auto& b) { return a.second < b.second; })->first;
  KvChoice kv{.k = side_of(common.first), .v = side_of(common.second), .layers = {}};
  std::pair<std::string, std::string> last;
  for (const auto& [layer, pair] : layers) {
    if (pair == common) continue;
    if (!kv.layers.empty() && kv.layers.back().last == layer - 1 && pair == last) kv.layers.back().last = layer;
    else kv.layers.push_back({.first = layer, .last = layer, .k = side_of(pair.first), .v = side_of(pair.second)});
    last = pair;
  }
  return kv_text(kv);
}

double bits_of(const SearchQuestion& s, double bytes) { return 8 * bytes / s.values; }

/// Bits and predicted divergence of a choice of formats.
SearchPoint point_of(const SearchQuestion& s, const Sensitivities& kld, const std::vector<int>& formats) {
  SearchPoint point{.kv = allocation_text(s, formats)};
  double bytes = 0, floor = 0;
  for (size_t i = 0; i < s.items.size(); ++i) {
    bytes += s.items[i].bytes[size_t(formats[i])];
    point.predicted += kld.added[i][size_t(formats[i])];
    if (size_t(formats[i]) < s.sides.size()) floor = std::max(floor, kld.floor[i]);
  }
  point.predicted += floor;
  point.bits = bits_of(s, bytes);
  return point;
}

std::optional<SearchPoint> within_budget(const SearchQuestion& s, const Sensitivities& kld) {
  std::vector<std::vector<AllocationOption>> items;
  for (size_t i = 0; i < s.items.size(); ++i) {
    items.emplace_back();
    for (size_t f = 0; f < kld.added[i].size(); ++f) items.back().push_back({s.items[i].bytes[f], kld.added[i][f]});
  }
  const auto found = allocate(items, s.kld_budget - kld.most_floor());
  if (!found) return std::nullopt;
  SearchPoint point = point_of(s, kld, found->options);
  point.kld_limit = s.kld_budget;
  return point;
}

std::optional<SearchPoint> within_bits(const SearchQuestion& s, const Sensitivities& kld, double bits) {
  std::vector<std::vector<AllocationOption>> items;
  for (size_t i = 0; i < s.items.size(); ++i) {
    items.emplace_back();
    for (size_t f = 0; f < kld.added[i].size(); ++f) items.back().push_back({kld.added[i][f], s.items[i].bytes[f]});
  }
  const auto found = allocate(items, bits * s.values / 8);
  if (!found) return std::nullopt;
  SearchPoint point = point_of(s, kld, found->options);
  point.bits_limit = bits;
  return point;
}

/// Pairs of formats for all layers that should be the best of their bits: the lower hull of what is expected, as far as
/// it is needed to have a line over all points.
std::vector<SearchPoint> best_uniform(const SearchQuestion& s, const Sensitivities& kld,
                                      const std::vector<SearchPoint>& points) {
  std::vector<SearchPoint> pairs;
  const int n = int(s.sides.size()) + 1;
  for (int k = 0; k < n; ++k)
    for (int v = 0; v < n; ++v) {
      std::vector<int> formats;
      for (const SearchItem& item : s.items) formats.push_back(item.side == KvSide::k ? k : v);
      pairs.push_back(point_of(s, kld, formats));
    }
  std::ranges::sort(pairs, [](const SearchPoint& a, const SearchPoint& b) {
    return std::tie(a.bits, a.predicted, a.kv) < std::tie(b.bits, b.predicted, b.kv);
  });
  const std::vector<size_t> hull = lower_hull(
      pairs, [](const SearchPoint& p) { return p.bits; }, [](const SearchPoint& p) { return p.predicted; });
  double least = INFINITY, most = 0;
  for (const SearchPoint& point : points) least = std::min(least, point.bits), most = std::max(most, point.bits);
  std::vector<SearchPoint> kept;
  for (size_t i = 0; i < hull.size(); ++i) {
    const bool below = i + 1 < hull.size() && pairs[hull[i + 1]].bits <= least,
               above = i > 0 && pairs[hull[i - 1]].bits >= most;
    if (!below && !above) kept.push_back(pairs[hull[i]]);
  }
  return kept;
}

/// Takes the divergence of a cache from its row on the held-out text.
void measure(std::span<const Row> rows, const DecisionQuestion& q, SearchPoint& point) {
  const Evidence evidence = find_evidence(rows, quality_cell(q, point.kv));
  if (!evidence.row) {
    point.why = q.corpus.empty() ? "no text to verify on was given" : evidence.why;
    return;
  }
  point.rows.push_back(row_id(*evidence.row));
  const auto kld = evidence.row->find("kld");
  const bool has_mean = kld != evidence.row->end() && kld->is_object() && kld->contains("mean");
  const Row mean = has_mean ? (*kld)["mean"] : Row::object();
  point.kld = number_in(mean, "value");
  point.kld_error = number_in(mean, "error");
  if (text_in(*evidence.row, "path") != "decode") point.why = "the row is not of the decode path";
  else if (!std::isfinite(point.kld) || !std::isfinite(point.kld_error)) point.why = "the row has no divergence";
}

/// The line between measured uniform pairs, at the point's bits.
bool set_line(const std::vector<SearchPoint>& uniform, SearchPoint& point) {
  const std::vector<size_t> hull = lower_hull(
      uniform, [](const SearchPoint& p) { return p.bits; }, [](const SearchPoint& p) { return p.kld; });
  for (size_t i = 0; i + 1 < hull.size(); ++i) {
    const SearchPoint &a = uniform[hull[i]], &b = uniform[hull[i + 1]];
    constexpr double kSame = 1e-9;  // bits that are summed in another order
    if (point.bits < a.bits - kSame || point.bits > b.bits + kSame) continue;
    const double t = std::clamp((point.bits - a.bits) / (b.bits - a.bits), 0.0, 1.0);
    point.line = (1 - t) * a.kld + t * b.kld;
    point.line_error = std::hypot((1 - t) * a.kld_error, t * b.kld_error);
    return true;
  }
  return false;
}

/// PASS: below the line by more than two standard errors. The texts are equal and errors of both rise and fall
/// together, so that their sum of squares is on the safe side.
void judge_point(const SearchRecord& record, const DecisionQuestion& q, const SearchQuestion& s, SearchPoint& point) {
  if (!point.why.empty()) return;
  for (const SearchPoint& pair : record.uniform)
    if (!pair.why.empty()) {
      point.why = pair.kv + ": " + pair.why;
      return;
    }
  if (q.corpus == s.corpus) {
    point.why = "the text is the one that was searched on";
    return;
  }
  if (!set_line(record.uniform, point)) {
    point.why = fmt::format("no uniform pairs have {:.2f} bits between them", point.bits);
    return;
  }
  const double below = point.line - point.kld, error = std::hypot(point.kld_error, point.line_error);
  point.why = fmt::format("mean KLD {:.5f} ± {:.5f} at {:.2f} bits, the line has {:.5f} ± {:.5f}", point.kld,
                          point.kld_error, point.bits, point.line, point.line_error);
  if (point.kld_limit > 0 && point.kld - 2 * point.kld_error > point.kld_limit) {
    point.verdict = GateVerdict::fail;
    point.why += fmt::format("; over the budget of {:g}", point.kld_limit);
  } else if (below > 2 * error) {
    point.verdict = GateVerdict::pass;
  } else if (below < -2 * error) {
    point.verdict = GateVerdict::fail;
  }
}

}  // namespace

std::string side_alone(int layer, KvSide side, const std::string& text) {
  KvLayerOptions own{.first = layer, .last = layer, .k = {}, .v = {}};
  (side == KvSide::k ? own.k : own.v) = side_of(text);
  return kv_text({.k = {}, .v = {}, .layers = {own}});
}

std::vector<std::string> sides_alone(const SearchQuestion& s) {
  std::vector<std::string> sides = s.sides;
  sides.emplace_back(kFloorSide);
  return sides;
}

Row sensitivity_cell(const DecisionQuestion& q, const SearchQuestion& s, const std::string& kv) {
  Row cell{{"bench", "sensitivity"}, {"model_hash", q.subject.model_hash},
           {"format", kv},           {"n_ctx", s.n_ctx},
           {"chunks", s.chunks},     {"corpus", s.corpus}};
  cell.update(place_of(q.subject));
  return cell;
}

std::optional<int64_t> shared_run(std::span<const int32_t> searched, std::span<const int32_t> held_out, int n) {
  const auto hash = [&](std::span<const int32_t> text, size_t at) {
    return XXH64(text.data() + at, size_t(n) * sizeof(int32_t), 0);
  };
  std::unordered_set<uint64_t> runs;
  for (size_t at = 0; at + size_t(n) <= searched.size(); ++at) runs.insert(hash(searched, at));
  for (size_t at = 0; at + size_t(n) <= held_out.size(); ++at)
    if (runs.contains(hash(held_out, at))) return int64_t(at);
  return std::nullopt;
}

SearchRecord search(std::span<const Row> rows, const DecisionQuestion& q, const SearchQuestion& s) {
  SearchRecord record{.path = s.path, .corpus = s.corpus, .n_ctx = s.n_ctx, .chunks = s.chunks, .sides = s.sides};
  const auto kld = sensitivities(rows, q, s, record.why);
  if (!kld) return record;
  const auto add = [&](std::optional<SearchPoint> point, const std::string& limit) {
    if (point) record.points.push_back(std::move(*point));
    else record.why += fmt::format("{}nothing has {}", record.why.empty() ? "" : "; ", limit);
  };
  if (s.kld_budget > 0) add(within_budget(s, *kld), fmt::format("a divergence up to {:g}", s.kld_budget));
  for (const double bits : s.bits) add(within_bits(s, *kld, bits), fmt::format("up to {:g} bits", bits));
  if (record.points.empty()) return record;
  record.uniform = best_uniform(s, *kld, record.points);
  for (SearchPoint& pair : record.uniform) measure(rows, q, pair);
  for (SearchPoint& point : record.points) {
    measure(rows, q, point);
    judge_point(record, q, s, point);
  }
  return record;
}

std::vector<std::string> searched_caches(const SearchRecord& record) {
  std::vector<std::string> caches;
  for (const auto* list : {&record.points, &record.uniform})
    for (const SearchPoint& point : *list)
      if (std::ranges::find(caches, point.kv) == caches.end()) caches.push_back(point.kv);
  return caches;
}

std::string budget_cache(const SearchRecord& record) {
  for (const SearchPoint& point : record.points)
    if (point.kld_limit > 0) return point.kv;
  return {};
}

void add_search(DecisionRecord& record, SearchRecord search) {
  for (const SearchPoint& point : search.points)
    if (point.verdict == GateVerdict::pass && (point.kld_limit > 0 || budget_cache(search).empty())) {
      record.sentence += fmt::format(" By layer and side {} has {}, at equal bits less than any pair of formats.",
                                     point.kv, point.why);
      break;
    }
  record.search = std::move(search);
}

std::vector<Row> search_rows(const DecisionQuestion& q, const SearchRecord& record) {
  std::vector<Row> rows;
  const auto add = [&](const SearchPoint& point, bool is_uniform) {
    Row cell{{"bench", "search"}, {"model_hash", q.subject.model_hash}, {"format", point.kv}, {"uniform", is_uniform}};
    cell["limit"] = limit_text(point);
    cell["searched"] = record.corpus;
    cell["corpus"] = q.corpus;
    cell["n_ctx"] = q.n_ctx;
    cell.update(place_of(q.subject));
    Row row{{"kind", "search_point"},
            {"model", q.subject.model_path},
            {"device", q.subject.device},
            {"device_name", q.subject.device_name},
            {"uniform", is_uniform},
            {"limit", limit_text(point)},
            {"kv", point.kv},
            {"bits", number(point.bits)},
            {"n_ctx", q.n_ctx},
            {"searched_on", record.path},
            {"searched_windows", fmt::format("{} x {}", record.chunks, record.n_ctx)},
            {"verified_windows", fmt::format("{} x {}", q.eval_chunks, q.eval_ctx)},
            {"predicted_kld", number(point.predicted)},
            {"kld", {{"value", number(point.kld)}, {"error", number(point.kld_error)}}},
            {"line", {{"value", number(point.line)}, {"error", number(point.line_error)}}},
            {"verdict", is_uniform ? "" : gate_verdict_name(point.verdict)},
            {"why", point.why}};
    row["cell"] = std::move(cell);
    rows.push_back(std::move(row));
  };
  for (const SearchPoint& pair : record.uniform) add(pair, true);
  for (const SearchPoint& point : record.points) add(point, false);
  return rows;
}

}  // namespace ridge::lab
