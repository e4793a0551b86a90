// The forms of a bench row: llama-bench's fields, its markdown table, CSV, JSON and SQL.
#include <cmath>

#include "base/build_info.h"
#include "gpu/device_query.h"
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

std::string side_text(const BenchRow& row, const KvSideReport& side) {
  return fmt::format("{} rotation={} centre={} window={} of {} sinks={} scale={} rounding={}{}", side.format,
                     side.rotation, side.centre ? "on" : "off", side.window, side.recent, side.sinks, side.scale,
                     side.rounding, row.cache.layers_differ() ? " layers=" + kv_text(row.test.kv) : "");
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

std::string rate_text(const BenchRow& row) {
  const double mean = row.avg_tokens_per_second();
  return std::isfinite(mean) ? fmt::format("{:.2f} ± {:.2f}", mean, row.stddev_tokens_per_second()) : "no verdict";
}

bool on_device(const BenchRow& row) { return row.model.device.starts_with(gpu::kDeviceWord); }

/// "cuda:0" and "NAME" of "cuda:0 NAME".
std::string device_word(const BenchRow& row, bool is_name) {
  const size_t end = row.model.device.find(' ');
  return is_name ? row.model.device.substr(end + 1) : row.model.device.substr(0, end);
}

std::string backend(const BenchRow& row) { return on_device(row) ? row.model.device : "CPU " + row.model.isa; }
const char* split_mode(const BenchRow& row) { return row.model.device.find(',') == std::string::npos ? "none" : "row"; }
const char* depth_fill(const BenchRow& row) {
  return row.test.n_depth == 0 ? "none" : row.real_prefill ? "prefill" : "random";
}

/// A field of llama-bench that has one value here.
Column<BenchRow> fixed(std::string_view key, Row value) {
  return {key, "-", "always this value; llama-bench has the field", [value](auto&) { return value; }};
}

}  // namespace

std::string ModelBenchRow::roof_text(double gb_s) const {
  const double pct = pct_of_roof(gb_s);
  return std::isfinite(pct) ? fmt::format("{:.1f} %{}", pct, in_cache() ? " (in cache)" : "") : "";
}

std::string ModelBenchRow::checked_text() const { return check.done ? fmt::format("ok {:.1e}", check.nmse) : "off"; }

Columns<BenchRow> bench_columns() {
  return {
      {"build_commit", "-", "commit of the build", [](auto&) { return build_info().commit; }},
      {"build_number", "commits", "up to that commit", [](auto&) { return build_info().number; }},
      {"cpu_info", "-", "processor", [](auto&) { return machine_info().cpu_model; }},
      {"gpu_info", "-", "GPU", [](auto& r) { return on_device(r) ? device_word(r, true) : ""; }},
      {"backends", "-", "CPU or CUDA", [](auto& r) { return on_device(r) ? "CUDA" : "CPU"; }},
      {"model_filename", "-", "as it was named", [](auto& r) { return r.model.path; }},
      {"model_type", "-", "architecture, parameters, weight format", [](auto& r) { return model_type(r.model); },
       "model"},
      {"", "-", "weights", [](auto& r) { return human_bytes(r.model.weight_bytes); }, ">size"},
      {"", "-", "weights, in number", [](auto& r) { return human_count(r.model.n_params); }, ">params"},
      {"model_size", "bytes", "weights", [](auto& r) { return r.model.weight_bytes; }},
      {"model_n_params", "values", "weights", [](auto& r) { return r.model.n_params; }},
      {"n_batch", "tokens", "given to the engine at a time", [](auto& r) { return r.test.n_batch; }},
      {"n_ubatch", "tokens", "most of a forward pass", [](auto& r) { return r.test.n_ubatch; }},
      {"", "-", "device, or the CPU's instruction set", &backend, "backend"},
      {"", "threads", "of the CPU", [](auto& r) { return when(!on_device(r), r.model.n_threads); }, ">threads"},
      {"n_threads", "threads", "of the CPU", [](auto& r) { return r.model.n_threads; }},
      fixed("cpu_mask", "0x0"),
      fixed("cpu_strict", false),
      fixed("poll", 50),
      {"", "-", "cache format of K, options included", [](auto& r) { return kv_side_text(r.test.kv.k); }, "type_k"},
      {"", "-", "cache format of V", [](auto& r) { return kv_side_text(r.test.kv.v); }, "type_v"},
      {"type_k", "-", "cache format of K", [](auto& r) { return r.cache.k.format; }},
      {"type_v", "-", "cache format of V", [](auto& r) { return r.cache.v.format; }},
      {"n_gpu_layers", "layers", "on GPUs", [](auto& r) { return on_device(r) ? r.model.n_layers : 0; }},
      {"n_cpu_moe", "layers", "whose experts stay in host memory", [](auto& r) { return r.model.n_cpu_moe; }},
      {"split_mode", "-", "row where devices share the model", &split_mode},
      fixed("main_gpu", 0),
      fixed("no_kv_offload", false),
      fixed("flash_attn", true),
      {"devices", "-", "GPUs by number", [](auto& r) { return on_device(r) ? device_word(r, false) : "none"; }},
      fixed("tensor_split", "0.00"),
      fixed("tensor_buft_overrides", "none"),
      fixed("load_mode", "mmap"),
      fixed("embeddings", false),
      fixed("no_op_offload", 0),
      fixed("no_host", false),
      fixed("fit_target", 0),
      fixed("fit_min_ctx", 0),
      {"n_prompt", "tokens", "of the prompt", [](auto& r) { return r.test.n_prompt; }},
      {"n_gen", "tokens", "generated", [](auto& r) { return r.test.n_gen; }},
      {"n_depth", "tokens", "in the cache before", [](auto& r) { return r.test.n_depth; }},
      {"test_time", "UTC", "end of the measurement", &BenchRow::date},
      {"avg_ns", "ns", "mean of the repetitions", [](auto& r) { return when(r.avg_ns() > 0, int64_t(r.avg_ns())); }},
      {"stddev_ns", "ns", "their standard deviation", [](auto& r) { return int64_t(r.stddev_ns()); }},
      {"avg_ts", "tokens/s", "mean of the repetitions", [](auto& r) { return r.avg_tokens_per_second(); }},
      {"stddev_ts", "tokens/s", "their standard deviation", [](auto& r) { return r.stddev_tokens_per_second(); }},
      {"samples_ns", "ns", "every repetition",
       [](auto& r) { return list_of(r.seconds, [](double s) { return int64_t(s * 1e9); }); }},
      {"samples_ts", "tokens/s", "every repetition",
       [](auto& r) { return list_of(r.seconds, [&](double s) { return double(r.n_tokens()) / s; }); }},
      {"test", "-", "prompt (pp) and generation (tg), depth (d)", [](auto& r) { return r.test.name(); }, "test"},
      {"", "tokens/s", "mean and standard deviation", &rate_text, ">t/s"},
      {"", "ms", "median and quartiles of a token", [](auto& r) { return quartiles(ms_per_token(r)); },
       ">ms a token (quartiles)"},
      {"median_ms", "ms", "of a token", [](auto& r) { return ms_per_token(r).median; }},
      {"lower_quartile_ms", "ms", "of a token", [](auto& r) { return ms_per_token(r).lower; }},
      {"upper_quartile_ms", "ms", "of a token", [](auto& r) { return ms_per_token(r).upper; }},
      {"load_1min", "processes", "load of the machine", [](auto&) { return machine_info().load_1min; }},
      {"kv_k", "-", "cache of K with its options", [](auto& r) { return side_text(r, r.cache.k); }},
      {"kv_v", "-", "cache of V with its options", [](auto& r) { return side_text(r, r.cache.v); }},
      {"kv_bytes_per_token", "bytes", "of the cache", [](auto& r) { return r.cache.bytes_per_token(); }},
      {"depth_fill", "-", "how the depth was reached", &depth_fill},
      {"read_bytes", "bytes", "a decode step's", [](auto& r) { return when(r.test.n_gen > 0, int64_t(r.read_bytes)); }},
      {"host_read_bytes", "bytes", "of experts in host memory, more than those",
       [](auto& r) { return only(r.model.host_step_bytes > 0, r.model.host_step_bytes); }},
      {"cached_experts", "experts", "of each layer in host memory, that the GPU keeps as well",
       [](auto& r) { return only(r.model.n_cached_experts > 0, r.model.n_cached_experts); }},
      {"expert_hits", "%", "of the choices of experts in host memory, that the GPU had",
       [](auto& r) { return only(r.hits.n_chosen > 0, 100 * r.hits.share()); }},
      {"read_gb_s", "GB/s", "those bytes in the step's time", &BenchRow::read_gb_s, ">read GB/s", "{:.1f}"},
      {"roof_gb_s", "GB/s", "memory bandwidth, measured in the same run", &BenchRow::roof_gb_s},
      {"pct_of_roof", "%", "share of memory bandwidth", [](auto& r) { return r.pct_of_roof(); }},
      {"", "%", "share of memory bandwidth", [](auto& r) { return r.roof_text(r.read_gb_s()); }, ">% of bandwidth"},
      {"in_cache", "-", "those bytes fit in the last-level cache", &BenchRow::in_cache},
      {"", "-", "error of a block against the reference kernels", &BenchRow::checked_text, ">checked (NMSE)"},
      {"checked", "-", "the check passed", [](auto& r) { return r.check.done && r.check.passed; }},
      {"check_error", "NMSE", "largest for its bound", [](auto& r) { return when(r.check.done, r.check.nmse); }},
      {"check_bound", "NMSE", "of that error", [](auto& r) { return r.check.bound; }},
      {"check_what", "-", "what was compared", [](auto& r) { return r.check.what; }},
      {"kernels", "-", "of the model's ops", [](auto& r) { return fmt::format("{}", fmt::join(r.kernels, " ")); }},
      {"device", "-", "device, with its name", [](auto& r) { return r.model.device; }},
      {"n_ranks", "ranks", "if there are several", [](auto& r) { return only(r.model.n_ranks > 1, r.model.n_ranks); }},
      {"pp", "stages", "if there are several", [](auto& r) { return only(r.model.n_stages > 1, r.model.n_stages); }},
      {"isa", "-", "highest instruction set", [](auto& r) { return r.model.isa; }},
      {"compiler", "-", "of the build", [](auto&) { return build_info().compiler; }},
      {"seed", "-", "of tokens and cache rows", &BenchRow::seed},
      {"temperature", "-", "of sampling", [](auto& r) { return only(r.temperature > 0, r.temperature); }},
      {"command", "-", "the command line", [](auto&) { return command_line(); }},
  };
}

Columns<BenchRow> bench_run_columns() {
  return bench_columns().picked({"build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename",
                                 "model_type", "model_size", "model_n_params", "n_ubatch", "n_threads", "type_k",
                                 "type_v", "test_time", "load_1min"});
}

Columns<BenchRow> bench_cache_columns() {
  return bench_columns().picked({"kv_k", "kv_v", "kv_bytes_per_token", "checked", "check_error", "check_bound",
                                 "check_what", "kernels", "device", "isa", "compiler", "seed", "command"});
}

}  // namespace ridge::lab
