// The forms of an op bench's row: JSON fields and the line of a table.
#include <cmath>

#include "lab/op/device_ceilings.h"
#include "lab/op/op_bench.h"
#include "lab/rows/machine.h"
#include "op/cache/rotation.h"

namespace ridge::lab {
namespace {

Row side_row(const KvSideConfig& side) {
  if (!side.format) return {};  // of a matmul
  return {{"format", side.format->name},
          {"rotation", rotation_name(side.policy.rotation)},
          {"window", side.policy.window},
          {"recent", side.policy.recent},
          {"sinks", side.policy.sinks}};
}

std::string check_text(const OpRow& row) {
  const std::string text = fmt::format("{} {:.1e}", row.check.metric, row.check.error);
  if (!row.failed()) return text;
  return fmt::format("{} > {:.1e}{}", text, row.check.bound, row.after_replays ? " after the replays" : "");
}

Row of(Op op, const OpRow& row, Row value) { return only(row.problem.op == op, std::move(value)); }
Row of_cache(const OpRow& row, Row value) { return only(row.problem.op != Op::gemv, std::move(value)); }
Row of_cpu(const OpRow& row, Row value) { return only(row.device.is_cpu(), std::move(value)); }
/// Value of the check's comparison, null without one.
Row compared(const OpRow& row, Row value) { return when(row.check.has_comparison, std::move(value)); }

bool is_timed(const OpRow& row) { return std::isfinite(row.us().median); }
Row median(const OpRow& row) { return row.failed() ? "FAILED" : is_timed(row) ? Row(row.us().median) : "no verdict"; }
std::string share_text(const OpRow& row) {
  return is_timed(row) ? fmt::format("{:.1f} %{}", row.pct_of_roof(), row.sets.cold ? "" : " (not cold)") : "";
}

std::string weights_text(const OpRow& row) { return std::string(row.problem.weights ? row.problem.weights->name : ""); }
std::string device_text(const OpRow& row) { return row.device.is_cpu() ? "cpu" : gpu::device_text(row.device.index); }
std::string device_name(const OpRow& row) {
  return row.device.is_cpu() ? machine_info().cpu_model : row.device.device.name;
}
Provenance provenance_of(const OpRow& row) { return {row.device.n_threads, row.seed, row.date}; }
std::optional<GpuPlace> gpu_of(const OpRow& row) {
  const OpDevice& d = row.device;
  if (d.is_cpu()) return std::nullopt;
  return GpuPlace{d.device, d.driver_version, d.runtime_version};
}

}  // namespace

Columns<Timed> timed_columns() {
  return {
      {"median_us", "us", "of a call", [](auto& t) { return t.us().median; }},
      {"lower_quartile_us", "us", "of a call", [](auto& t) { return t.us().lower; }},
      {"upper_quartile_us", "us", "of a call", [](auto& t) { return t.us().upper; }},
      {"min_us", "us", "of a call", [](auto& t) { return t.us().min; }},
      {"replays", "samples", "timed", [](auto& t) { return t.seconds.size(); }},
      {"calls_per_replay", "calls", "of a sample", [](auto& t) { return t.calls; }},
      {"samples_us", "us", "a call of every sample", &Timed::samples_us},
      {"checked", "-", "the check passed", [](auto& t) { return t.check.passed(); }},
      {"check_metric", "-", "of the check's error", [](auto& t) { return t.check.metric; }},
      {"check_error", "metric", "largest", [](auto& t) { return t.check.error; }},
      {"check_bound", "metric", "of that error", [](auto& t) { return t.check.bound; }},
      {"check_what", "-", "what was compared", [](auto& t) { return t.check.what; }},
      {"check_after_replays", "-", "the error is of what the timed calls left", &Timed::after_replays},
  };
}

Columns<OpRow> op_columns() {
  return {
      {"kind", "-", "op or coding", &OpRow::kind},
      {"op", "-", "gemv, attention or append", [](auto& r) { return op_name(r.problem.op); }, "op"},
      {"", "-", "sizes", [](auto& r) { return r.problem.shape_text(); }, "shape"},
      {"", "-", "of the weights or the cache", [](auto& r) { return r.problem.format_text(); }, "format"},
      {"kernel", "-", "that was timed", &OpRow::kernel, "kernel"},
      {"n_out", "values", "rows of the weights", [](auto& r) { return of(Op::gemv, r, r.problem.n_out); }},
      {"n_in", "values", "columns of the weights", [](auto& r) { return of(Op::gemv, r, r.problem.n_in); }},
      {"n_tokens", "tokens", "multiplied at a time", [](auto& r) { return of(Op::gemv, r, r.problem.n_tokens); }},
      {"weight_format", "-", "of the weights", [](auto& r) { return of(Op::gemv, r, weights_text(r)); }},
      {"n_heads", "heads", "of queries", [](auto& r) { return of(Op::attention, r, r.problem.n_heads); }},
      {"n_kv_heads", "heads", "of the cache", [](auto& r) { return of_cache(r, r.problem.n_kv_heads); }},
      {"head_dim", "values", "of a head's row", [](auto& r) { return of_cache(r, r.problem.head_dim); }},
      {"n_seq", "sequences", "at a time", [](auto& r) { return of_cache(r, r.problem.n_seq); }},
      {"n_keys", "positions", "in the cache", [](auto& r) { return of_cache(r, r.problem.n_keys); }},
      {"n_new", "tokens", "coded of each sequence", [](auto& r) { return of(Op::append, r, r.problem.n_new); }},
      {"kv", "-", "cache format", [](auto& r) { return of_cache(r, kv_text(r.problem.kv)); }},
      {"kv_k", "-", "options of K", [](auto& r) { return of_cache(r, side_row(r.problem.k)); }},
      {"kv_v", "-", "options of V", [](auto& r) { return of_cache(r, side_row(r.problem.v)); }},
      {"read_bytes", "bytes", "that the op must read", [](auto& r) { return r.work.read_bytes; }},
      {"write_bytes", "bytes", "that the op must write", [](auto& r) { return r.work.write_bytes; }},
      {"flops", "operations", "of the op", [](auto& r) { return r.work.flops; }},
      {"moved_bytes", "bytes", "that the kernel moves by design", &OpRow::moved_bytes},
      {"", "us", "median of a call", &median, ">us", "{:.2f}"},
      {"", "us", "quartiles of a call", [](auto& r) { return when(is_timed(r), r.us().quartiles(2)); }, ">quartiles"},
      {"", "-", "that the op must read and write", [](auto& r) { return bytes_text(r.bytes()); }, ">bytes"},
      {"predicted_us", "us", "moved_bytes at memory bandwidth", &OpRow::predicted_us},
      {"", "us", "bytes at memory bandwidth", [](auto& r) { return when(is_timed(r), r.predicted_us()); },
       ">us at bandwidth", "{:.2f}"},
      {"gb_s", "GB/s", "bytes of the op in that time", &OpRow::gb_s, ">GB/s", "{:.1f}"},
      {"roof_gb_s", "GB/s", "memory bandwidth in the same run",
       [](auto& r) { return when(r.roof_gb_s > 0, r.roof_gb_s); }},
      {"roof_kernel", "-", "that measured it", &OpRow::roof_kernel},
      {"pct_of_roof", "%", "share of memory bandwidth", &OpRow::pct_of_roof},
      {"", "%", "share of memory bandwidth", &share_text, ">% of bandwidth"},
      {"", "-", "error against the reference", &check_text, ">checked"},
      part_of<OpRow>(timed_columns(), [](auto& r) -> const Timed& { return r; }),
      {"check_cosine", "-", "with the reference", [](auto& r) { return compared(r, r.check.comparison.cosine); }},
      {"check_norm_ratio", "-", "to the reference", [](auto& r) { return compared(r, r.check.comparison.norm_ratio); }},
      {"check_max_abs", "-", "largest difference", [](auto& r) { return compared(r, r.check.comparison.max_abs); }},
      {"check_worst_index", "-", "of it", [](auto& r) { return compared(r, r.check.comparison.worst_index); }},
      {"buffer_sets", "sets", "of buffers that took turns", [](auto& r) { return r.sets.n; }},
      {"buffer_set_bytes", "bytes", "of one", &OpRow::set_bytes},
      {"cold", "-", "data came from memory", [](auto& r) { return r.sets.cold; }},
      {"gpu_before", "-", "clocks (MHz) and temperature (C)", [](auto& r) { return to_row(r.before); }},
      {"gpu_after", "-", "clocks (MHz) and temperature (C)", [](auto& r) { return to_row(r.after); }},
      {"device", "-", "cpu or cuda:N", &device_text},
      {"device_name", "-", "processor or GPU", &device_name},
      {"isa", "-", "highest instruction set", [](auto& r) { return of_cpu(r, isa_name(r.device.isa)); }},
      {"llc_bytes", "bytes", "last-level cache", [](auto& r) { return of_cpu(r, r.device.cache_bytes); }},
      part_of<OpRow>(gpu_columns(), gpu_of),
      part_of<OpRow>(provenance_columns(), provenance_of),
  };
}

std::string op_prediction(const OpRow& row) {
  std::string text = fmt::format("{} {} {}, {}: predicted {}", op_name(row.problem.op), row.problem.shape_text(),
                                 row.problem.format_text(), row.kernel, bytes_text(double(row.moved_bytes)));
  if (double(row.moved_bytes) > row.bytes()) text += fmt::format(" (the work needs {})", bytes_text(row.bytes()));
  if (row.roof_gb_s > 0) text += fmt::format(", {:.2f} us at {:.1f} GB/s", row.predicted_us(), row.roof_gb_s);
  return text;
}

}  // namespace ridge::lab
