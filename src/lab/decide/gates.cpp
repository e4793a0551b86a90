#include "lab/decide/gates.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "engine/kv_choice.h"
#include "lab/quality/statistics.h"
#include "lab/rows/results.h"
#include "lab/sweep/compare.h"

namespace ridge::lab {
namespace {

constexpr const char* kBaseline = "f16";

/// Evidence of one gate: its rows, its commands, and the first reason why it cannot judge.
class Case {
 public:
  Case(std::span<const Row> rows, int gate_number, std::string name) : rows_(rows) {
    gate.number = gate_number;
    gate.name = std::move(name);
  }
  const Row* find(const Row& cell) {
    const Evidence evidence = find_evidence(rows_, cell);
    if (!evidence.row) {
      if (missing_.empty()) missing_ = evidence.why;
      return nullptr;
    }
    gate.rows.push_back(row_id(*evidence.row));
    const std::string command = text_in(*evidence.row, "command");
    if (!command.empty() && std::ranges::find(gate.commands, command) == gate.commands.end())
      gate.commands.push_back(command);
    return evidence.row;
  }
  /// Attention of a cache; where layers differ the mean over them, of rows of each kind.
  const Row* attention(const DecisionQuestion& q, const HeadShape& shape, int depth, const std::string& kv,
                       bool control) {
    const auto caches = layer_caches(q, kv);
    if (caches.size() == 1) return find(attention_cell(q, shape, depth, caches[0].first, control));
    std::vector<std::pair<const Row*, double>> of_layers;
    for (const auto& [cache, share] : caches)
      of_layers.emplace_back(find(attention_cell(q, shape, depth, cache, control)), share);
    if (std::ranges::any_of(of_layers, [](const auto& of) { return !of.first; })) return nullptr;
    return &means_.emplace_back(mean_row(of_layers));
  }
  bool complete() const { return missing_.empty(); }
  GateResult none(std::string why = {}) {
    gate.why = why.empty() ? missing_ : std::move(why);
    return gate;
  }
  GateResult end(bool pass, std::string why) {
    gate.verdict = pass ? GateVerdict::pass : GateVerdict::fail;
    gate.why = std::move(why);
    return gate;
  }

  GateResult gate;

 private:
  /// Layers follow one another: times, bytes and flops are means by share, the share of memory bandwidth one by time.
  static Row mean_row(const std::vector<std::pair<const Row*, double>>& of_layers) {
    double us = 0, roof_us = 0, bytes = 0, flops = 0;
    bool cold = true;
    std::vector<double> samples;
    for (const auto& [row, share] : of_layers) {
      const double of_layer = share * number_in(*row, "median_us");
      us += of_layer;
      roof_us += of_layer * number_in(*row, "pct_of_roof");
      bytes += share * number_in(*row, "read_bytes");
      flops += share * number_in(*row, "flops");
      cold &= row->value("cold", false);
      const std::vector<double> of_row = samples_in(*row);
      if (row == of_layers[0].first) samples.resize(of_row.size());
      samples.resize(std::min(samples.size(), of_row.size()));
      for (size_t i = 0; i < samples.size(); ++i) samples[i] += share * of_row[i];
    }
    return {{"samples_us", samples},       {"median_us", number(us)}, {"pct_of_roof", number(roof_us / us)},
            {"read_bytes", number(bytes)}, {"flops", number(flops)},  {"cold", cold}};
  }

  std::span<const Row> rows_;
  std::deque<Row> means_;
  std::string missing_;
};

/// A format against f16 at one depth.
struct Point {
  int depth = 0;
  Verdict verdict;

  bool faster() const { return verdict.answer == Verdict::Answer::faster; }
  /// Nothing beyond the budget can hide in the noise.
  bool decided() const { return verdict.answer != Verdict::Answer::none || verdict.noise <= verdict.budget; }
};

/// Comparisons at every depth for which find(depth, kv, control) has rows.
template <class Find>
std::vector<Point> compare(Case& of, const std::vector<int>& depths, const std::string& kv, double budget,
                           const Find& find) {
  std::vector<Point> points;
  for (const int depth : depths) {
    const Row *a = find(depth, kBaseline, false), *again = find(depth, kBaseline, true), *b = find(depth, kv, false);
    if (!a || !again || !b) continue;
    points.push_back({depth, judge(samples_in(*a), samples_in(*again), samples_in(*b), budget)});
    const Verdict& v = points.back().verdict;
    of.gate.noise = std::max(of.gate.noise, std::isnan(v.noise) ? 0 : v.noise);
    of.gate.numbers["depths"].push_back({{"depth", depth}, {"comparison", verdict_columns().fields(v)}});
  }
  return points;
}

std::string points_text(const std::vector<Point>& points) {
  std::string text;
  for (const Point& p : points)
    text += fmt::format("{}{} at {}", text.empty() ? "" : ", ", ratio_text(p.verdict), p.depth);
  return text;
}

/// The depth from which on every point is faster; nothing when the last one is not.
std::optional<int> faster_from(const std::vector<Point>& points) {
  std::optional<int> from;
  for (size_t i = points.size(); i-- > 0 && points[i].faster();) from = points[i].depth;
  return from;
}

/// PASS where the format is faster from some point up to the last one.
GateResult faster_from_some(Case& of, const std::vector<Point>& points, std::string_view what) {
  if (!of.complete()) return of.none();
  if (points.empty()) return of.none(fmt::format("no {} was asked", what));
  if (const std::optional<int> from = faster_from(points)) {
    of.gate.numbers["faster_from"] = *from;
    return of.end(true, fmt::format("faster from {}: {}", *from, points_text(points)));
  }
  const Point& last = points.back();
  if (!last.decided()) return of.none(fmt::format("at {}: {}", last.depth, last.verdict.why_none));
  return of.end(false, fmt::format("not faster at {}: {}", last.depth, points_text(points)));
}

std::string depths_text(const std::vector<int>& depths) { return fmt::format("{}", fmt::join(depths, ", ")); }

}  // namespace

std::vector<int> sweep_depths(int n_ctx) {
  std::set<int> depths{n_ctx};
  for (int depth = n_ctx / 2; depth >= 512 && depths.size() < 6; depth /= 2) depths.insert(depth);
  for (const int needed : {8192, 16384})
    if (needed < n_ctx) depths.insert(needed);
  return {depths.begin(), depths.end()};
}

Row place_of(const RecordSubject& s) {
  Row place;
  place["device"] = s.device;
  place["device_name"] = s.device_name;
  place["n_threads"] = s.n_threads;
  if (s.device == "cpu") place["isa"] = s.isa;
  place["build"] = s.build;
  return place;
}

Row attention_cell(const DecisionQuestion& q, const HeadShape& shape, int depth, std::string_view kv, bool control) {
  Row cell{{"bench", "attention"},
           {"n_heads", shape.n_heads},
           {"n_kv_heads", shape.n_kv_heads},
           {"head_dim", shape.head_dim},
           {"batch", 1},
           {"depth", depth},
           {"format", kv},
           {"kernel", "best"}};
  if (control) cell["control"] = true;
  cell.update(place_of(q.subject));
  return cell;
}

std::vector<std::pair<std::string, double>> layer_caches(const DecisionQuestion& q, const std::string& kv) {
  const KvChoice choice = parse_kv_choice(kv).or_throw();
  if (choice.layers.empty() || q.attention_layers.empty()) return {{kv, 1}};
  std::map<std::string, int> count;
  for (const int layer : q.attention_layers) {
    KvChoice of_layer{.k = choice.k, .v = choice.v, .layers = {}};
    for (const KvLayerOptions& own : choice.layers)
      if (own.first <= layer && layer <= own.last) of_layer.k = own.k, of_layer.v = own.v;
    ++count[kv_text(of_layer)];
  }
  std::vector<std::pair<std::string, double>> caches;
  for (const auto& [cache, n] : count) caches.emplace_back(cache, double(n) / double(q.attention_layers.size()));
  return caches;
}

namespace {

Row model_cell(const DecisionQuestion& q, const char* bench, std::string_view kv) {
  Row cell{{"bench", bench}, {"model_hash", q.subject.model_hash}, {"format", kv}};
  cell.update(place_of(q.subject));
  return cell;
}

}  // namespace

Row service_cell(const DecisionQuestion& q, int n_prompt, std::string_view kv, bool control) {
  Row cell = model_cell(q, "service", kv);
  cell["n_prompt"] = n_prompt;
  cell["n_gen"] = q.n_gen;
  if (control) cell["control"] = true;
  return cell;
}

Row quality_cell(const DecisionQuestion& q, std::string_view kv) {
  Row cell = model_cell(q, "quality", kv);
  cell["n_ctx"] = q.eval_ctx;
  cell["chunks"] = q.eval_chunks;
  cell["corpus"] = q.corpus;
  return cell;
}

Row plan_cell(const DecisionQuestion& q, std::string_view kv) {
  Row cell = model_cell(q, "plan", kv);
  cell["n_ctx"] = q.n_ctx;
  cell["n_sessions"] = q.n_sessions;
  cell["memory"] = q.memory_bytes > 0 ? Row(q.memory_bytes) : Row("available");
  return cell;
}

Evidence find_evidence(std::span<const Row> rows, const Row& cell) {
  // Fields by which a row may belong to another model, machine or build, and how to say so.
  constexpr std::pair<const char*, const char*> kOwners[] = {{"model_hash", "of another model"},
                                                             {"device_name", "of another machine"},
                                                             {"device", "of another device"},
                                                             {"n_threads", "with another number of threads"},
                                                             {"isa", "with kernels of another instruction set"},
                                                             {"build", "of another build"}};
  const auto strange = [&](const Row& of) -> std::string {
    for (const auto& [field, what] : kOwners)
      if (cell.contains(field) && (!of.contains(field) || of[field] != cell[field]))
        return fmt::format("{} ({})", what, of.contains(field) ? json_text(of[field]) : "not said");
    return {};
  };
  const auto asked = [&](const Row& of) {
    if (of.contains("control") != cell.contains("control")) return false;
    for (const auto& [field, value] : cell.items()) {
      const bool is_owner = std::ranges::any_of(kOwners, [&](const auto& owner) { return field == owner.first; });
      if (!is_owner && (!of.contains(field) || of[field] != value)) return false;
    }
    return true;
  };
  Row what = cell;
  for (const auto& [field, _] : kOwners) what.erase(field);
  Evidence evidence{.why = "no row of " + json_text(what)};
  for (size_t i = rows.size(); i-- > 0;) {
    const auto of = rows[i].find("cell");
    if (of == rows[i].end() || !of->is_object() || !asked(*of)) continue;
    if (const std::string other = strange(*of); !other.empty()) {
      evidence.why = fmt::format("the row of {} is {}", json_text(what), other);
      continue;
    }
    if (row_state(rows[i]) != "done")
      return {nullptr, fmt::format("{}: {}", json_text(what), text_in(rows[i], "reason"))};
    return {&rows[i], {}};
  }
  return evidence;
}

GateResult attention_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                          const GateThresholds& limits) {
  Case of(
      rows, 1,
      fmt::format("attention of {}/{}/{} up to {}", q.shape.n_heads, q.shape.n_kv_heads, q.shape.head_dim, q.n_ctx));
  for (const int needed : {8192, 16384})
    if (needed <= q.n_ctx && std::ranges::find(q.depths, needed) == q.depths.end())
      return of.none(fmt::format("the sweep of {} has no depth of {}", depths_text(q.depths), needed));
  const auto points =
      compare(of, q.depths, kv, limits.effect_budget, [&](int depth, const std::string& format, bool control) {
        return of.attention(q, q.shape, depth, format, control);
      });
  if (!of.complete()) return of.none();
  const auto at_least = [&](const Point& p) { return p.faster() && p.verdict.ratio >= limits.attention_speedup; };
  if (std::ranges::any_of(points, at_least)) return of.end(true, points_text(points));
  // A speed-up that counts could hide here.
  for (const Point& p : points)
    if (const Verdict& v = p.verdict; v.answer == Verdict::Answer::none &&
                                      !(v.noise < limits.attention_speedup - 1 && v.high < limits.attention_speedup))
      return of.none(fmt::format("at {}: {}", p.depth, v.why_none));
  return of.end(false, fmt::format("never {:g}x: {}", limits.attention_speedup, points_text(points)));
}

GateResult target_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                       const GateThresholds& limits) {
  Case of(rows, 2, fmt::format("crossover of {}/{}/{}", q.target.n_heads, q.target.n_kv_heads, q.target.head_dim));
  const auto points =
      compare(of, q.target_depths, kv, limits.effect_budget, [&](int depth, const std::string& format, bool control) {
        return of.attention(q, q.target, depth, format, control);
      });
  return faster_from_some(of, points, "depth");
}

GateResult service_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                        const GateThresholds& limits) {
  Case of(rows, 3, fmt::format("requests of {} + {} tokens", depths_text(q.prompts), q.n_gen));
  const auto points =
      compare(of, q.prompts, kv, limits.effect_budget, [&](int n_prompt, const std::string& format, bool control) {
        return of.find(service_cell(q, n_prompt, format, control));
      });
  if (of.complete() && !points.empty()) of.gate.numbers["speedup"] = number(points.back().verdict.ratio);
  return faster_from_some(of, points, "prompt");
}

GateResult quality_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                        const GateThresholds& limits) {
  Case of(rows, 4, fmt::format("quality token by token, {} windows of {}", q.eval_chunks, q.eval_ctx));
  if (q.subject.synthetic)
    return of.none(
        "random weights say nothing about quality (a trained model of this family can give a hint: "
        "ridge eval kld --path decode)");
  if (q.corpus.empty()) return of.none("no text was named (-f FILE measures quality)");
  const Row* row = of.find(quality_cell(q, kv));
  if (!row) return of.none();
  const auto value = [&](const char* field, const char* part) {
    return row->contains(field) && (*row)[field].is_object() ? number_in((*row)[field], part) : NAN;
  };
  const double rise = value("difference", "value"), rise_error = value("difference", "error");
  const Row kld_row = row->contains("kld") && (*row)["kld"].is_object() ? (*row)["kld"].value("mean", Row()) : Row();
  const double kld = kld_row.is_object() ? number_in(kld_row, "value") : NAN,
               kld_error = kld_row.is_object() ? number_in(kld_row, "error") : NAN;
  of.gate.numbers = {{"ppl_rise", number(rise)},
                     {"ppl_rise_error", number(rise_error)},
                     {"kld", number(kld)},
                     {"kld_error", number(kld_error)},
                     {"ppl_base", number(value("ppl_base", "value"))}};
  of.gate.noise = rise_error;
  if (text_in(*row, "path") != "decode") return of.none("the row is not of the decode path");
  if (!std::isfinite(rise) || !std::isfinite(rise_error) || !std::isfinite(kld) || !std::isfinite(kld_error))
    return of.none("the row has no perplexity, divergence or errors of both");
  const std::string text =
      fmt::format("perplexity {:+.4f} ± {:.4f} (limit {:+g}), mean KLD {:.5f} ± {:.5f} (limit {:g})", rise, rise_error,
                  limits.ppl_rise, kld, kld_error, limits.kld);
  const Kept kept = keeps({limits.ppl_rise, limits.kld}, {rise, rise_error}, {kld, kld_error});
  return kept == Kept::unknown ? of.none("the errors reach a limit: " + text) : of.end(kept == Kept::yes, text);
}

GateResult bound_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                      const GateThresholds& limits) {
  Case of(rows, 5, "what binds attention");
  if (q.target_depths.empty() || q.depths.empty()) return of.none("no depth was asked");
  struct Bound {
    const Row *f16, *format;
  };
  const auto find = [&](const HeadShape& shape, int depth) {
    return Bound{of.attention(q, shape, depth, kBaseline, false), of.attention(q, shape, depth, kv, false)};
  };
  const Bound target = find(q.target, q.target_depths.back()), own = find(q.shape, q.depths.back());
  if (!of.complete()) return of.none();
  const auto numbers = [&](const Bound& b) {
    const double bytes = number_in(*b.format, "read_bytes");
    return Row{{"share_of_roof", number(number_in(*b.format, "pct_of_roof") / 100)},
               {"share_of_roof_f16", number(number_in(*b.f16, "pct_of_roof") / 100)},
               {"operations_a_byte", number(number_in(*b.format, "flops") / bytes)},
               {"speedup_by_bytes", number(number_in(*b.f16, "read_bytes") / bytes)},
               {"speedup", number(number_in(*b.f16, "median_us") / number_in(*b.format, "median_us"))}};
  };
  of.gate.numbers["target"] = numbers(target);
  of.gate.numbers["own"] = numbers(own);
  const double share = number_in(*target.format, "pct_of_roof") / 100,
               of_own = number_in(*own.format, "pct_of_roof") / 100;
  if (!std::isfinite(share) || !std::isfinite(of_own)) return of.none("a row has no share of memory bandwidth");
  if (!target.format->value("cold", false))
    return of.none("the target's data stayed in a cache: memory does not bound it");
  const auto bound = [&](double of_roof) { return of_roof >= limits.bound_share ? "memory" : "arithmetic"; };
  return of.end(share >= limits.bound_share,
                fmt::format("target bound by {} ({:.0f} % of memory bandwidth), the model's shape by {} ({:.0f} %)",
                            bound(share), 100 * share, bound(of_own), 100 * of_own));
}

GateResult memory_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv) {
  Case of(rows, 6, fmt::format("memory for {} session{} of {}", q.n_sessions, q.n_sessions == 1 ? "" : "s", q.n_ctx));
  const Row *f16 = of.find(plan_cell(q, kBaseline)), *format = of.find(plan_cell(q, kv));
  if (!f16 || !format) return of.none();
  const double memory = number_in(*format, "memory_bytes"), bytes = number_in(*format, "total_bytes"),
               f16_bytes = number_in(*f16, "total_bytes");
  if (!(memory > 0) || !(bytes > 0) || !(f16_bytes > 0)) return of.none("a plan's row has no bytes");
  of.gate.numbers = {{"total_bytes", number(bytes)},
                     {"total_bytes_f16", number(f16_bytes)},
                     {"memory_bytes", number(memory)},
                     {"f16_fits", f16_bytes <= memory}};
  return of.end(bytes <= memory, fmt::format("{} of {}; f16 needs {}{}", bytes_text(bytes), bytes_text(memory),
                                             bytes_text(f16_bytes), f16_bytes <= memory ? "" : " and does not fit"));
}

namespace {

/// Whether B is at least `limit` times as fast: what noise may hide decides nothing.
GateVerdict at_least(const Verdict& v, double limit) {
  // `ratio` and its noise, in parts of it: both ends must lie on one side of the limit.
  const double low = std::min(v.low, v.ratio * (1 - v.noise)), high = std::max(v.high, v.ratio * (1 + v.noise));
  if (!std::isfinite(low) || !std::isfinite(high) || std::min({v.n_a, v.n_again, v.n_b}) < kFewestSamples)
    return GateVerdict::none;
  if (low >= limit) return GateVerdict::pass;
  return high < limit ? GateVerdict::fail : GateVerdict::none;
}

}  // namespace

GateResult promotion_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                          const GateThresholds& limits) {
  Case of(rows, 7, fmt::format("promotion: prompts of {}, then {} tokens", kPromotionPrompt, q.n_gen));
  if (std::ranges::find(q.prompts, kPromotionPrompt) == q.prompts.end())
    return of.none(fmt::format("requests of {} have no prompt of {}", depths_text(q.prompts), kPromotionPrompt));
  const auto row = [&](std::string_view format, bool control) {
    return of.find(service_cell(q, kPromotionPrompt, format, control));
  };
  const Row *a = row(kBaseline, false), *again = row(kBaseline, true), *b = row(kv, false);
  if (!a || !again || !b) return of.none();
  GateVerdict verdicts[2];
  std::string text;
  const std::pair<const char*, double> parts[] = {{"prompt", limits.promotion_prompt},
                                                  {"decode", limits.promotion_decode}};
  for (size_t i = 0; i < 2; ++i) {
    const auto& [part, limit] = parts[i];
    const auto seconds = [&](const Row& from) {
      std::vector<double> values;
      for (const Row& value : from.value(fmt::format("{}_seconds", part), Row::array()))
        if (value.is_number()) values.push_back(value.get<double>());
      return values;
    };
    const std::vector<double> of_a = seconds(*a), of_again = seconds(*again), of_b = seconds(*b);
    if (of_a.empty() || of_again.empty() || of_b.empty())
      return of.none(fmt::format("the rows do not tell the {}'s time from the rest", part));
    const Verdict v = judge(of_a, of_again, of_b, 0);
    verdicts[i] = at_least(v, limit);
    of.gate.numbers[part] = verdict_columns().fields(v);
    of.gate.noise = std::max(of.gate.noise, std::isnan(v.noise) ? 0 : v.noise);
    text += fmt::format("{}{} {} (limit {:g}x, {})", text.empty() ? "" : ", ", part, ratio_text(v), limit,
                        gate_verdict_name(verdicts[i]));
  }
  const auto [prompt, decode] = verdicts;
  const auto both = [&](GateVerdict verdict) { return prompt == verdict && decode == verdict; };
  const auto either = [&](GateVerdict verdict) { return prompt == verdict || decode == verdict; };
  const bool pass = limits.promotion_both ? both(GateVerdict::pass) : either(GateVerdict::pass);
  const bool fail = limits.promotion_both ? either(GateVerdict::fail) : both(GateVerdict::fail);
  return pass || fail ? of.end(pass, text) : of.none(text);
}

CandidateRecord judge_candidate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                                const GateThresholds& limits) {
  CandidateRecord c{
      .kv = kv,
      .gates = {attention_gate(rows, q, kv, limits), target_gate(rows, q, kv, limits),
                service_gate(rows, q, kv, limits), quality_gate(rows, q, kv, limits), bound_gate(rows, q, kv, limits),
                memory_gate(rows, q, kv), promotion_gate(rows, q, kv, limits)}};
  const auto passes = [&](int gate) { return c.gates[size_t(gate - 1)].verdict == GateVerdict::pass; };
  const Row &service = c.gates[2].numbers, &memory = c.gates[5].numbers;
  if (const double speedup = number_in(service, "speedup"); speedup > 0) c.speedup = speedup;
  std::string not_passed;
  for (const int gate : {1, 2, 3, 4})
    if (!passes(gate))
      not_passed += fmt::format("{}gate {} {}", not_passed.empty() ? "" : ", ", gate,
                                gate_verdict_name(c.gates[size_t(gate - 1)].verdict));
  if (not_passed.empty()) {
    c.on = true;
    c.from_depth = int(number_in(service, "faster_from"));
    c.why = fmt::format("gates 1 to 4 pass; requests are {:.2f}x as fast as with f16", c.speedup);
  } else if (passes(4) && passes(6) && !memory.value("f16_fits", true)) {
    c.on = true;
    c.why = fmt::format("f16 does not fit, and quality passes ({})", not_passed);
  } else {
    c.why = not_passed;
  }
  return c;
}

namespace {

/// States the result of gates 1 to 3 where no format is on.
std::string speed_in_words(const DecisionRecord& record) {
  bool has_rows = false, unclear = false;
  std::string slower;
  for (const CandidateRecord& c : record.candidates) {
    const GateResult& requests = c.gates[2];
    for (const GateResult& gate : std::span(c.gates).first(3)) has_rows |= !gate.rows.empty();
    unclear |= requests.verdict == GateVerdict::none && !requests.numbers.empty();
    if (requests.verdict == GateVerdict::fail) slower += (slower.empty() ? "" : ", ") + c.kv;
  }
  if (!has_rows) return "not measured";
  if (unclear && slower.empty()) return "too noisy to tell (on a quiet machine, the same command with --again)";
  if (unclear) return fmt::format("{} not faster in whole requests; the others too noisy to tell", slower);
  return slower.empty() ? "not every gate passes" : "no cache is faster in whole requests";
}

/// The smallest cache that gate 4 passes, by the bytes of the plan.
std::string quality_in_words(const DecisionRecord& record) {
  const auto bytes = [](const CandidateRecord& c) { return number_in(c.gates[5].numbers, "total_bytes"); };
  const CandidateRecord* smallest = nullptr;
  bool has_rows = false;
  for (const CandidateRecord& c : record.candidates) {
    has_rows |= !c.gates[3].rows.empty();
    if (c.gates[3].verdict == GateVerdict::pass && (!smallest || bytes(c) < bytes(*smallest))) smallest = &c;
  }
  if (record.subject.synthetic) return "Quality: random weights say nothing about it.";
  if (!has_rows) return "Quality: not measured (-f names a text).";
  if (!smallest) return "No cache is within the quality limit beyond doubt (more --chunks narrow the errors).";
  return fmt::format("Smallest cache within the quality limit: {} ({}).", smallest->kv, smallest->gates[3].why);
}

}  // namespace

std::vector<std::string> noisy_rows(const DecisionRecord& record) {
  std::set<int> noisy;
  std::set<std::string> ids;
  const auto is_timed = [](const GateResult& gate) { return gate.number <= 3 || gate.number == 7; };
  for (const CandidateRecord& c : record.candidates)
    for (const GateResult& gate : c.gates)
      if (is_timed(gate) && gate.verdict == GateVerdict::none) noisy.insert(gate.number);
  // Rows of one gate are compared with one another: all of them are measured again.
  for (const CandidateRecord& c : record.candidates)
    for (const GateResult& gate : c.gates)
      if (noisy.contains(gate.number)) ids.insert(gate.rows.begin(), gate.rows.end());
  return {ids.begin(), ids.end()};
}

DecisionRecord decide(std::span<const Row> rows, const DecisionQuestion& q, const std::vector<std::string>& candidates,
                      const GateThresholds& limits) {
  DecisionRecord record{.subject = q.subject,
                        .n_ctx = q.n_ctx,
                        .n_sessions = q.n_sessions,
                        .thresholds = limits,
                        .date = utc_now(),
                        .command = command_line()};
  const CandidateRecord* best = nullptr;
  for (const std::string& kv : candidates) record.candidates.push_back(judge_candidate(rows, q, kv, limits));
  for (const CandidateRecord& c : record.candidates)
    if (c.on && (!best || c.speedup > best->speedup)) best = &c;
  if (!best) {
    record.sentence = fmt::format("Stay with f16. Speed: {}. {}", speed_in_words(record), quality_in_words(record));
    return record;
  }
  record.choice = best->kv;
  record.from_depth = best->from_depth;
  record.sentence = best->from_depth > 0 ? fmt::format("Use {} from {} tokens on", best->kv, best->from_depth)
                                         : fmt::format("Use {}", best->kv);
  record.sentence += fmt::format(": {}. Quality: {}.", best->why, best->gates[3].why);
  return record;
}

}  // namespace ridge::lab
