// The forms of a profile: JSON row and table.
#include <cmath>
#include <map>

#include "lab/model/profile.h"

namespace ridge::lab {
namespace {

double moved(const Work& work) { return double(work.read_bytes + work.write_bytes); }
double rate(double amount, double us) { return us > 0 ? amount / us * 1e-3 : NAN; }  // 10^9 a second
double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : NAN; }

/// What a step reads: declared for a decode step as a whole, by its parts for a prompt's chunk.
double step_read_bytes(const Profile& p) {
  return double(p.prefill ? p.attribution.work.read_bytes : p.step_read_bytes);
}
double step_gb_s(const Profile& p) { return rate(step_read_bytes(p), p.attribution.step_us); }

/// Time of all parts of an op, largest first.
std::vector<std::pair<std::string, double>> by_op(const Attribution& a) {
  std::map<std::string, double> sums;
  for (const ProfilePart& part : a.parts) sums[part.op] += part.us;
  std::vector<std::pair<std::string, double>> ops(sums.begin(), sums.end());
  std::stable_sort(ops.begin(), ops.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
  return ops;
}

}  // namespace

Row profile_fields(const Profile& p, const ProfileParams& params) {
  const Attribution& a = p.attribution;
  const bool on_cpu = p.model.device == "cpu";
  Row f{{"kind", "profile"},
        {"model", params.model},
        {"arch", p.model.arch},
        {"weight_format", p.model.weight_format},
        {"device", on_cpu ? "cpu" : "cuda"},
        {"device_name", p.model.device},
        {"isa", p.model.isa},
        {"kv", p.kv},
        {"depth", p.n_depth},
        {"phase", p.prefill ? "prefill" : "decode"},
        {"n_tokens", p.n_tokens},
        {"steps", a.n_steps},
        {"step_us", number(a.step_us)},
        {"median_us", number(a.median_us)},
        {"lower_quartile_us", number(a.lower_us)},
        {"upper_quartile_us", number(a.upper_us)},
        {"untraced_us", number(p.untraced_us)},
        {"parts_us", number(a.parts_us)},
        {"gap_us", number(a.gap_us())},
        {"launches", number(a.calls)},
        {"read_bytes", a.work.read_bytes},
        {"write_bytes", a.work.write_bytes},
        {"flops", a.work.flops},
        {"decode_read_bytes", p.step_read_bytes},
        {"gb_s", number(step_gb_s(p))},
        {"roof_gb_s", number(p.ceilings.read_gb_s)},
        {"roof_int8_gop_s", p.ceilings.int8_gop_s > 0 ? Row(p.ceilings.int8_gop_s) : Row(nullptr)},
        {"roof_float_gop_s", p.ceilings.float_gop_s > 0 ? Row(p.ceilings.float_gop_s) : Row(nullptr)},
        {"last_level_cache_bytes", p.ceilings.cache_bytes},
        {"pct_of_roof", number(percent(step_gb_s(p), p.ceilings.read_gb_s))},
        {"counted", p.counted},
        {"parts", Row::array()}};
  put_ranks(f, p.model.n_ranks, p.model.n_stages);
  for (const ProfilePart& part : a.parts)
    f["parts"].push_back({{"name", part.name()},
                          {"op", part.op},
                          {"kernel", part.kernel},
                          {"calls", number(part.calls)},
                          {"us", number(part.us)},
                          {"share", number(part.us / a.step_us)},
                          {"read_bytes", part.work.read_bytes},
                          {"write_bytes", part.work.write_bytes},
                          {"flops", part.work.flops},
                          {"gb_s", number(rate(moved(part.work), part.us))},
                          {"gflop_s", number(rate(double(part.work.flops), part.us))},
                          {"pct_of_roof", number(percent(rate(moved(part.work), part.us), p.ceilings.read_gb_s))},
                          {"bound", part_bound(part, p.ceilings)}});
  for (size_t i = 0; p.counted && i < a.parts.size(); ++i) {
    const OpCounters& c = a.parts[i].counters;
    f["parts"][i].update({{"cycles", c.cycles}, {"instructions", c.instructions}, {"cache_misses", c.cache_misses}});
  }
  f.update(provenance(p.model.n_threads, params.seed));
  f["date"] = p.date;
  return f;
}

std::string profile_markdown(const Profile& p) {
  const Attribution& a = p.attribution;
  const bool on_cpu = p.model.device == "cpu";
  std::string text = fmt::format(
      "{} {}, {} cache, {}{} on {}\n\n"
      "| part | kernel | {} | us | share | bytes | GB/s | % of roof | bound |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n",
      p.model.name, p.model.weight_format, p.kv,
      p.prefill ? fmt::format("{} tokens of a prompt", p.n_tokens) : std::string("a decode step"),
      p.n_depth > 0 ? fmt::format(" at depth {}", p.n_depth) : "",
      on_cpu ? fmt::format("CPU {}, {} threads", p.model.isa, p.model.n_threads) : p.model.device,
      on_cpu ? "calls" : "launches");
  for (const ProfilePart& part : a.parts) {
    const double gb_s = rate(moved(part.work), part.us);
    const bool counted = moved(part.work) > 0;
    text += fmt::format("| {} | {} | {:.4g} | {:.1f} | {:.1f} % | {} | {} | {} | {} |\n", part.name(), part.kernel,
                        part.calls, part.us, percent(part.us, a.step_us), counted ? bytes_text(moved(part.work)) : "",
                        counted ? fmt::format("{:.1f}", gb_s) : "",
                        counted ? fmt::format("{:.1f} %", percent(gb_s, p.ceilings.read_gb_s)) : "",
                        part_bound(part, p.ceilings));
  }
  text += fmt::format("| between them | | | {:.1f} | {:.1f} % | | | | |\n", a.gap_us(), percent(a.gap_us(), a.step_us));
  text += fmt::format("| the step | | {:.4g} | {:.1f} | 100 % | {} | {:.1f} | {:.1f} % | |\n\n", a.calls, a.step_us,
                      bytes_text(step_read_bytes(p)), step_gb_s(p), percent(step_gb_s(p), p.ceilings.read_gb_s));
  if (p.counted) {
    text += fmt::format(
        "| part | instructions | a cycle | lines from memory | GB/s |\n| --- | ---: | ---: | ---: | ---: |\n");
    for (const ProfilePart& part : a.parts)
      text += fmt::format("| {} | {} | {:.2f} | {} | {:.1f} |\n", part.name(), part.counters.instructions,
                          double(part.counters.instructions) / double(std::max<int64_t>(1, part.counters.cycles)),
                          part.counters.cache_misses, rate(64.0 * double(part.counters.cache_misses), part.us));
    text += "\n";
  } else if (!p.why_not_counted.empty()) {
    text += p.why_not_counted + "; the table has times and declared bytes only.\n\n";
  }
  for (const auto& [op, us] : by_op(a)) text += fmt::format("{} {:.1f} %, ", op, percent(us, a.step_us));
  text += fmt::format("between them {:.1f} %\n", percent(a.gap_us(), a.step_us));
  text += fmt::format(
      "Means over {} steps, the middle half by duration; all steps: median {:.1f} us ({:.1f} - {:.1f}); with nobody "
      "recording {:.1f} us.\n",
      a.n_steps, a.median_us, a.lower_us, a.upper_us, p.untraced_us);
  text += fmt::format(
      "Bytes are the ops' declared work; rows that stay in a cache can exceed the roof, {:.1f} GB/s read from memory "
      "in this run. Bound: the roof that explains {:.0f} % of the time or more, else latency.\n",
      p.ceilings.read_gb_s, 100 * kExplainedShare);
  return text;
}

}  // namespace ridge::lab
