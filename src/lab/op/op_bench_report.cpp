// The forms of an op bench's row: JSON fields and the line of a table.
#include <cmath>

#include "lab/op/device_ceilings.h"
#include "lab/op/op_bench.h"
#include "lab/rows/machine.h"
#include "op/cache/rotation.h"

namespace ridge::lab {
namespace {

Row side_row(const KvSideConfig& side) {
  return {{"format", side.format->name},
          {"rotation", rotation_name(side.policy.rotation)},
          {"window", side.policy.window},
          {"recent", side.policy.recent},
          {"sinks", side.policy.sinks}};
}

std::string check_text(const OpCheck& check) { return fmt::format("{} {:.1e}", check.metric, check.error); }

}  // namespace

Row spread_fields(const Spread& us) {
  return {{"median_us", number(us.median)},
          {"lower_quartile_us", number(us.lower)},
          {"upper_quartile_us", number(us.upper)},
          {"min_us", number(us.min)}};
}

Row check_fields(const OpCheck& check, bool after_replays) {
  return {{"checked", check.passed()},          {"check_metric", check.metric}, {"check_error", number(check.error)},
          {"check_bound", number(check.bound)}, {"check_what", check.what},     {"check_after_replays", after_replays}};
}

Row sample_fields(const std::vector<double>& seconds, int calls) {
  Row row{{"replays", seconds.size()}, {"calls_per_replay", calls}, {"samples_us", Row::array()}};
  for (const double s : seconds) row["samples_us"].push_back(number(s * 1e6));
  return row;
}

Row op_fields(const OpRow& row, const OpDevice& device, const OpBenchParams& params) {
  const OpProblem& p = row.problem;
  Row f{{"kind", "op"}, {"op", op_name(p.op)}, {"kernel", row.kernel}};
  if (p.op == Op::gemv) {
    f["n_out"] = p.n_out;
    f["n_in"] = p.n_in;
    f["n_tokens"] = p.n_tokens;
    f["weight_format"] = p.weights->name;
  } else {
    if (p.op == Op::attention) f["n_heads"] = p.n_heads;
    f["n_kv_heads"] = p.n_kv_heads;
    f["head_dim"] = p.head_dim;
    f["n_seq"] = p.n_seq;
    f["n_keys"] = p.n_keys;
    if (p.op == Op::append) f["n_new"] = p.n_new;
    f["kv"] = kv_text(p.kv);
    f["kv_k"] = side_row(p.k);
    f["kv_v"] = side_row(p.v);
  }
  f["read_bytes"] = row.work.read_bytes;
  f["write_bytes"] = row.work.write_bytes;
  f["flops"] = row.work.flops;
  f["moved_bytes"] = row.moved_bytes;
  f.update(spread_fields(row.us()));
  f["predicted_us"] = number(row.predicted_us());
  f["gb_s"] = number(row.gb_s());
  f["roof_gb_s"] = row.roof_gb_s > 0 ? number(row.roof_gb_s) : Row(nullptr);
  f["roof_kernel"] = row.roof_kernel;
  f["pct_of_roof"] = number(row.pct_of_roof());
  f.update(check_fields(row.check, row.after_replays));
  f["check_cosine"] = row.check.has_comparison ? number(row.check.comparison.cosine) : Row(nullptr);
  f["check_norm_ratio"] = row.check.has_comparison ? number(row.check.comparison.norm_ratio) : Row(nullptr);
  f["check_max_abs"] = row.check.has_comparison ? number(row.check.comparison.max_abs) : Row(nullptr);
  f["check_worst_index"] = row.check.has_comparison ? Row(row.check.comparison.worst_index) : Row(nullptr);
  f.update(sample_fields(row.seconds, row.calls));
  f["buffer_sets"] = row.sets.n;
  f["buffer_set_bytes"] = row.set_bytes;
  f["cold"] = row.sets.cold;
  f["gpu_before"] = to_row(row.before);
  f["gpu_after"] = to_row(row.after);
  if (device.is_cpu()) {
    f["device"] = "cpu";
    f["device_name"] = machine_info().cpu_model;
    f["isa"] = isa_name(device.isa);
    f["llc_bytes"] = device.cache_bytes;
  } else {
    f.update(device_fields(device.index, device.device, device.driver_version, device.runtime_version));
  }
  f.update(provenance(device.n_threads, params.seed));
  f["date"] = row.date;
  return f;
}

std::string op_prediction(const OpRow& row) {
  std::string text = fmt::format("{} {} {}, {}: predicted {}", op_name(row.problem.op), row.problem.shape_text(),
                                 row.problem.format_text(), row.kernel, bytes_text(double(row.moved_bytes)));
  if (double(row.moved_bytes) > row.bytes()) text += fmt::format(" (the work needs {})", bytes_text(row.bytes()));
  if (row.roof_gb_s > 0) text += fmt::format(", {:.2f} us at {:.1f} GB/s", row.predicted_us(), row.roof_gb_s);
  return text;
}

std::string op_markdown_head() {
  return "| op | shape | format | kernel | us | quartiles | bytes | at roof us | GB/s | % of roof | checked |\n"
         "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";
}

std::string op_markdown_line(const OpRow& row) {
  const std::string front = fmt::format("| {} | {} | {} | {} |", op_name(row.problem.op), row.problem.shape_text(),
                                        row.problem.format_text(), row.kernel);
  if (row.failed())
    return fmt::format("{} FAILED | | {} | | | | {} > {:.1e}{} |", front, bytes_text(row.bytes()),
                       check_text(row.check), row.check.bound, row.after_replays ? " after the replays" : "");
  const Spread us = row.us();
  if (!std::isfinite(us.median))
    return fmt::format("{} no verdict | | {} | | | | {} |", front, bytes_text(row.bytes()), check_text(row.check));
  return fmt::format("{} {:.2f} | {:.2f} - {:.2f} | {} | {:.2f} | {:.1f} | {:.1f} %{} | {} |", front, us.median,
                     us.lower, us.upper, bytes_text(row.bytes()), row.predicted_us(), row.gb_s(), row.pct_of_roof(),
                     row.sets.cold ? "" : " (not cold)", check_text(row.check));
}

}  // namespace ridge::lab
