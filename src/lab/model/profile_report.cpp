// The forms of a profile: JSON row and table.
#include <cmath>
#include <map>

#include "gpu/device_query.h"
#include "lab/model/profile.h"

namespace ridge::lab {
namespace {

double moved(const Work& work) { return double(work.read_bytes + work.write_bytes); }
double rate(double amount, double us) { return us > 0 ? amount / us * 1e-3 : NAN; }  // 10^9 a second
double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : NAN; }

/// Bytes that a step reads: as declared for a whole decode step, as summed over the parts for a prompt's chunk.
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

struct PartRow {
  const Profile& profile;
  const ProfilePart& part;
  bool is_moving() const { return moved(part.work) > 0; }
  std::string bytes() const { return is_moving() ? bytes_text(moved(part.work)) : ""; }
  double gb_s() const { return rate(moved(part.work), part.us); }

  double pct_of_roof() const { return percent(gb_s(), profile.ceilings.read_gb_s); }
  double share() const { return part.us / profile.attribution.step_us; }
  double per_cycle() const {
    return double(part.counters.instructions) / double(std::max<int64_t>(1, part.counters.cycles));
  }
  double line_gb_s() const { return rate(64.0 * double(part.counters.cache_misses), part.us); }
};

Columns<PartRow> part_columns(bool on_cpu) {
  const auto counted = [](int64_t OpCounters::*of) {
    return [of](const PartRow& r) { return only(r.profile.counted, r.part.counters.*of); };
  };
  return {
      {"name", "-", "op, and which of them", [](auto& r) { return r.part.name(); }, "part"},
      {"op", "-", "of the part", [](auto& r) { return r.part.op; }},
      {"kernel", "-", "that ran", [](auto& r) { return r.part.kernel; }, "kernel"},
      {"calls", "calls", "of a pass; on a GPU launches", [](auto& r) { return r.part.calls; },
       on_cpu ? ">calls" : ">launches", "{:.4g}"},
      {"us", "us", "of a pass", [](auto& r) { return r.part.us; }, ">us", "{:.1f}"},
      {"share", "-", "of the pass", &PartRow::share},
      {"", "%", "of the pass", [](auto& r) { return 100 * r.share(); }, ">share", "{:.1f} %"},
      {"read_bytes", "bytes", "declared", [](auto& r) { return r.part.work.read_bytes; }},
      {"write_bytes", "bytes", "declared", [](auto& r) { return r.part.work.write_bytes; }},
      {"", "-", "declared, read and written", &PartRow::bytes, ">bytes"},
      {"flops", "operations", "declared", [](auto& r) { return r.part.work.flops; }},
      {"gb_s", "GB/s", "bytes in that time", &PartRow::gb_s},
      {"", "GB/s", "bytes in that time", [](auto& r) { return when(r.is_moving(), r.gb_s()); }, ">GB/s", "{:.1f}"},
      {"gflop_s", "Gop/s", "in that time", [](auto& r) { return rate(double(r.part.work.flops), r.part.us); }},
      {"pct_of_roof", "%", "share of memory bandwidth", &PartRow::pct_of_roof},
      {"", "%", "of memory bandwidth", [](auto& r) { return when(r.is_moving(), r.pct_of_roof()); }, ">% of bandwidth",
       "{:.1f} %"},
      {"bound", "-", "memory, compute or latency", [](auto& r) { return part_bound(r.part, r.profile.ceilings); },
       "bound"},
      {"cycles", "cycles", "counted", counted(&OpCounters::cycles)},
      {"instructions", "instructions", "counted", counted(&OpCounters::instructions)},
      {"cache_misses", "lines", "from memory, counted", counted(&OpCounters::cache_misses)},
  };
}

Columns<PartRow> counter_columns() {
  return {
      {"", "-", "op, and which of them", [](auto& r) { return r.part.name(); }, "part"},
      {"", "instructions", "of a pass", [](auto& r) { return r.part.counters.instructions; }, ">instructions"},
      {"", "instructions", "of a cycle", &PartRow::per_cycle, ">a cycle", "{:.2f}"},
      {"", "lines", "of a pass", [](auto& r) { return r.part.counters.cache_misses; }, ">lines from memory"},
      {"", "GB/s", "of these lines", &PartRow::line_gb_s, ">GB/s", "{:.1f}"},
  };
}

bool on_cpu(const Profile& p) { return p.model.device == "cpu"; }
Provenance profile_provenance(const Profile& p) { return {p.model.n_threads, p.seed, p.date}; }
Row positive(double value) { return when(value > 0, value); }

}  // namespace

std::vector<ColumnText> profile_part_texts() { return part_columns(true).texts(); }

Columns<Profile> profile_columns() {
  return {
      {"kind", "-", "profile", [](auto&) { return "profile"; }},
      {"model", "-", "as it was named", [](auto& p) { return p.model.path; }},
      {"arch", "-", "architecture", [](auto& p) { return p.model.arch; }},
      {"weight_format", "-", "of the weights", [](auto& p) { return p.model.weight_format; }},
      {"device", "-", "cpu or cuda", [](auto& p) { return on_cpu(p) ? "cpu" : gpu::kDeviceWord; }},
      {"device_name", "-", "device, with its name", [](auto& p) { return p.model.device; }},
      {"isa", "-", "highest instruction set", [](auto& p) { return p.model.isa; }},
      {"kv", "-", "cache format", &Profile::kv},
      {"depth", "tokens", "in the cache before", &Profile::n_depth},
      {"phase", "-", "decode or prefill", [](auto& p) { return p.prefill ? "prefill" : "decode"; }},
      {"n_tokens", "tokens", "of a pass", &Profile::n_tokens},
      {"steps", "passes", "that the means are of", [](auto& p) { return p.attribution.n_steps; }},
      {"step_us", "us", "mean pass", [](auto& p) { return p.attribution.step_us; }},
      {"median_us", "us", "of all passes", [](auto& p) { return p.attribution.median_us; }},
      {"lower_quartile_us", "us", "of all passes", [](auto& p) { return p.attribution.lower_us; }},
      {"upper_quartile_us", "us", "of all passes", [](auto& p) { return p.attribution.upper_us; }},
      {"untraced_us", "us", "median pass that nobody recorded", &Profile::untraced_us},
      {"parts_us", "us", "of the parts", [](auto& p) { return p.attribution.parts_us; }},
      {"gap_us", "us", "between parts", [](auto& p) { return p.attribution.gap_us(); }},
      {"launches", "calls", "of a pass", [](auto& p) { return p.attribution.calls; }},
      {"read_bytes", "bytes", "declared by the parts", [](auto& p) { return p.attribution.work.read_bytes; }},
      {"write_bytes", "bytes", "declared by the parts", [](auto& p) { return p.attribution.work.write_bytes; }},
      {"flops", "operations", "declared by the parts", [](auto& p) { return p.attribution.work.flops; }},
      {"decode_read_bytes", "bytes", "that a decode pass must read", &Profile::step_read_bytes},
      {"gb_s", "GB/s", "those bytes in the pass", &step_gb_s},
      {"roof_gb_s", "GB/s", "memory bandwidth, measured in the same run", [](auto& p) { return p.ceilings.read_gb_s; }},
      {"roof_int8_gop_s", "Gop/s", "ceiling of int8", [](auto& p) { return positive(p.ceilings.int8_gop_s); }},
      {"roof_float_gop_s", "Gop/s", "ceiling of floats", [](auto& p) { return positive(p.ceilings.float_gop_s); }},
      {"last_level_cache_bytes", "bytes", "of the device", [](auto& p) { return p.ceilings.cache_bytes; }},
      {"pct_of_roof", "%", "of memory bandwidth", [](auto& p) { return percent(step_gb_s(p), p.ceilings.read_gb_s); }},
      {"checked", "-", "the check passed", [](auto& p) { return p.check.done && p.check.passed; }},
      {"check_error", "NMSE", "largest for its bound", [](auto& p) { return only(p.check.done, p.check.nmse); }},
      {"check_bound", "NMSE", "of that error", [](auto& p) { return only(p.check.done, p.check.bound); }},
      {"counted", "-", "parts have counters of the processor", &Profile::counted},
      {"parts", "-", "a list, see below",
       [](auto& p) {
         const auto fields = [&](const ProfilePart& part) { return part_columns(on_cpu(p)).fields({p, part}); };
         return list_of(p.attribution.parts, fields);
       }},
      {"n_ranks", "ranks", "if there are several", [](auto& p) { return only(p.model.n_ranks > 1, p.model.n_ranks); }},
      {"pp", "stages", "if there are several", [](auto& p) { return only(p.model.n_stages > 1, p.model.n_stages); }},
      part_of<Profile>(provenance_columns(), profile_provenance),
  };
}

std::string profile_markdown(const Profile& p) {
  const Attribution& a = p.attribution;
  std::vector<PartRow> parts;
  for (const ProfilePart& part : a.parts) parts.push_back({p, part});
  std::string text =
      fmt::format("{} {}, {} cache, {}{} on {}\n\n", p.model.name, p.model.weight_format, p.kv,
                  p.prefill ? fmt::format("{} tokens of a prompt", p.n_tokens) : std::string("a decode step"),
                  p.n_depth > 0 ? fmt::format(" at depth {}", p.n_depth) : "",
                  on_cpu(p) ? fmt::format("CPU {}, {} threads", p.model.isa, p.model.n_threads) : p.model.device);
  text += part_columns(on_cpu(p)).table(parts);
  text += fmt::format("| between them | | | {:.1f} | {:.1f} % | | | | |\n", a.gap_us(), percent(a.gap_us(), a.step_us));
  text += fmt::format("| the step | | {:.4g} | {:.1f} | 100 % | {} | {:.1f} | {:.1f} % | |\n\n", a.calls, a.step_us,
                      bytes_text(step_read_bytes(p)), step_gb_s(p), percent(step_gb_s(p), p.ceilings.read_gb_s));
  if (p.counted) {
    text += counter_columns().table(parts) + "\n";
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
      "Bytes are the ops' declared work; rows that stay in a cache can exceed memory bandwidth, {:.1f} GB/s read in "
      "this run. Bound: the ceiling that explains {:.0f} % of the time or more, else latency.\n",
      p.ceilings.read_gb_s, 100 * kExplainedShare);
  return text;
}

}  // namespace ridge::lab
