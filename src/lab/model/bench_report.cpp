// The forms of a bench row: llama-bench's fields, its markdown table, CSV, JSON and SQL.
#include <cmath>

#include "base/build_info.h"
#include "lab/model/bench.h"
#include "lab/op/ceilings.h"
#include "lab/rows/machine.h"

namespace ridge::lab {
namespace {

std::string human_bytes(int64_t bytes) {
  const double gib = double(bytes) / 1073741824;
  return gib >= 1 ? fmt::format("{:.2f} GiB", gib) : fmt::format("{:.2f} MiB", gib * 1024);
}

std::string human_count(int64_t n) {
  return n >= 1000000000 ? fmt::format("{:.2f} B", double(n) / 1e9)
         : n >= 1000000  ? fmt::format("{:.2f} M", double(n) / 1e6)
                         : fmt::format("{:.2f} K", double(n) / 1e3);
}

std::string model_type(const ModelInfo& model) {
  return fmt::format("{} {} {}", model.arch, human_count(model.n_params), model.weight_format);
}

Row side_row(const KvSideReport& side) {
  return fmt::format("{} rotation={} centre={} window={} of {} sinks={} scale={} rounding={}", side.format,
                     side.rotation, side.centre ? "on" : "off", side.window, side.recent, side.sinks, side.scale,
                     side.rounding);
}

/// Milliseconds a token over the repeats; NaN without repeats or with a clock that gave nothing.
Spread ms_per_token(const BenchRow& row) {
  std::vector<double> ms = row.seconds;
  if (ms.empty()) ms = {NAN};
  for (double& seconds : ms) seconds = seconds > 0 ? 1e3 * seconds / double(row.n_tokens()) : NAN;
  return spread(std::move(ms));
}

std::string quartiles(const Spread& ms) {
  return ms.median > 0 && std::isfinite(ms.median)
             ? fmt::format("{:.3g} ({:.3g} - {:.3g})", ms.median, ms.lower, ms.upper)
             : "";
}

std::string plus_minus(double mean, double deviation) {
  return std::isfinite(mean) ? fmt::format("{:.2f} ± {:.2f}", mean, deviation) : "no verdict";
}

std::string optional_number(double value, std::string_view unit = "") {
  return std::isfinite(value) ? fmt::format("{:.1f}{}", value, unit) : "";
}

std::string checked_word(const BenchCheck& check) { return check.done ? fmt::format("ok {:.1e}", check.nmse) : "off"; }

bool on_device(const BenchRow& row) { return row.model.device.starts_with("cuda"); }

}  // namespace

std::string bench_markdown_head() {
  return "| model | size | params | backend | threads | type_k | type_v | test | t/s | ms a token (quartiles) | read "
         "GB/s "
         "| % of roof | checked (NMSE) |\n"
         "| --- | ---: | ---: | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |";
}

std::string bench_markdown_line(const BenchRow& row) {
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |", model_type(row.model),
                     human_bytes(row.model.weight_bytes), human_count(row.model.n_params),
                     on_device(row) ? row.model.device : "CPU " + row.model.isa,
                     on_device(row) ? "" : std::to_string(row.model.n_threads), kv_side_text(row.test.kv.k),
                     kv_side_text(row.test.kv.v), row.test.name(),
                     plus_minus(row.avg_tokens_per_second(), row.stddev_tokens_per_second()),
                     quartiles(ms_per_token(row)), optional_number(row.read_gb_s()),
                     optional_number(row.pct_of_roof(), row.in_cache() ? " % (in cache)" : " %"),
                     checked_word(row.check));
}

Row bench_fields(const BenchRow& row, const BenchParams& params) {
  const BuildInfo& build = build_info();
  Row f;
  f["build_commit"] = build.commit;
  f["build_number"] = build.number;
  f["cpu_info"] = machine_info().cpu_model;
  // "cuda:0 NAME"
  f["gpu_info"] = on_device(row) ? row.model.device.substr(row.model.device.find(' ') + 1) : "";
  f["backends"] = on_device(row) ? "CUDA" : "CPU";
  f["model_filename"] = row.model.path;
  f["model_type"] = model_type(row.model);
  f["model_size"] = row.model.weight_bytes;
  f["model_n_params"] = row.model.n_params;
  f["n_batch"] = row.test.n_batch;
  f["n_ubatch"] = row.test.n_ubatch;
  f["n_threads"] = row.model.n_threads;
  f["cpu_mask"] = "0x0";
  f["cpu_strict"] = false;
  f["poll"] = 50;
  f["type_k"] = row.cache.k.format;
  f["type_v"] = row.cache.v.format;
  f["n_gpu_layers"] = on_device(row) ? row.model.n_layers : 0;
  f["n_cpu_moe"] = 0;
  f["split_mode"] = row.model.device.find(',') == std::string::npos ? "none" : "row";
  f["main_gpu"] = 0;
  f["no_kv_offload"] = false;
  f["flash_attn"] = true;
  f["devices"] = on_device(row) ? row.model.device.substr(0, row.model.device.find(' ')) : "none";
  f["tensor_split"] = "0.00";
  f["tensor_buft_overrides"] = "none";
  f["load_mode"] = "mmap";
  f["embeddings"] = false;
  f["no_op_offload"] = 0;
  f["no_host"] = false;
  f["fit_target"] = 0;
  f["fit_min_ctx"] = 0;
  f["n_prompt"] = row.test.n_prompt;
  f["n_gen"] = row.test.n_gen;
  f["n_depth"] = row.test.n_depth;
  f["test_time"] = row.date;
  f["avg_ns"] = std::isfinite(row.avg_ns()) ? Row(int64_t(row.avg_ns())) : Row(nullptr);
  f["stddev_ns"] = int64_t(row.stddev_ns());
  f["avg_ts"] = number(row.avg_tokens_per_second());
  f["stddev_ts"] = number(row.stddev_tokens_per_second());
  f["samples_ns"] = Row::array();
  f["samples_ts"] = Row::array();
  for (const double seconds : row.seconds) {
    f["samples_ns"].push_back(int64_t(seconds * 1e9));
    f["samples_ts"].push_back(number(double(row.n_tokens()) / seconds));
  }
  f["test"] = row.test.name();
  const Spread ms = ms_per_token(row);
  f["median_ms"] = number(ms.median);  // a token
  f["lower_quartile_ms"] = number(ms.lower);
  f["upper_quartile_ms"] = number(ms.upper);
  f["load_1min"] = number(machine_info().load_1min);
  const std::string layers = row.cache.layers_differ() ? " layers=" + kv_text(row.test.kv) : "";
  f["kv_k"] = side_row(row.cache.k).get<std::string>() + layers;
  f["kv_v"] = side_row(row.cache.v).get<std::string>() + layers;
  f["kv_bytes_per_token"] = row.cache.bytes_per_token();
  f["depth_fill"] = row.test.n_depth == 0 ? "none" : params.real_prefill ? "prefill" : "random";
  f["read_bytes"] = row.test.n_gen > 0 ? Row(int64_t(row.read_bytes)) : Row(nullptr);
  f["read_gb_s"] = number(row.read_gb_s());
  f["roof_gb_s"] = number(row.roof_gb_s);
  f["pct_of_roof"] = number(row.pct_of_roof());
  f["in_cache"] = row.in_cache();
  f["checked"] = row.check.done && row.check.passed;
  f["check_error"] = row.check.done ? number(row.check.nmse) : Row(nullptr);
  f["check_bound"] = number(row.check.bound);
  f["check_what"] = row.check.what;
  f["kernels"] = fmt::format("{}", fmt::join(row.kernels, " "));
  f["device"] = row.model.device;
  put_ranks(f, row.model.n_ranks, row.model.n_stages);
  f["isa"] = row.model.isa;
  f["compiler"] = build.compiler;
  f["seed"] = params.seed;
  if (params.temperature > 0) f["temperature"] = params.temperature;
  f["command"] = command_line();
  return f;
}

}  // namespace ridge::lab
