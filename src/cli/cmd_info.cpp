// ridge info: build, machine, formats, kernels, and a model's facts.
#include <memory>

#include "base/build_info.h"
#include "cli/options.h"
#include "format/list.h"
#include "gpu/device_query.h"
#include "lab/op/device_ceilings.h"
#include "lab/rows/columns.h"
#include "lab/rows/machine.h"
#include "model/weights.h"
#include "op/cache/layout.h"
#include "op/cache/rotation.h"
#include "op/kernel_tables.h"

namespace ridge::cli {
namespace {

struct InfoFlags {
  ModelFlags model;
  OutputFlags output;
};

constexpr int kHeadDim = 128;  // for bits per value of KV formats

lab::Row build_row() {
  const BuildInfo& build = build_info();
  return {{"version", build.version},
          {"commit", build.commit},
          {"build_number", build.number},
          {"compiler", build.compiler},
          {"build_type", build.build_type},
          {"cuda", build.cuda},
          {"hip", build.hip}};
}

lab::Row machine_row() {
  const lab::MachineInfo machine = lab::machine_info();
  lab::Row row{{"cpu", machine.cpu_model},
               {"processors", machine.n_processors},
               {"threads", machine.n_threads},
               {"isa", machine.isa},
               {"memory_bytes", machine.memory_bytes},
               {"available_bytes", machine.available_bytes},
               {"load_1min", lab::number(machine.load_1min)},
               {"caches", lab::Row::array()}};
  for (const lab::CacheInfo& cache : machine.caches)
    row["caches"].push_back(
        {{"level", cache.level}, {"type", cache.type}, {"bytes", cache.bytes}, {"shared_cpus", cache.shared_cpus}});
  return row;
}

lab::Row gpu_row(const gpu::DeviceReport& report) {
  lab::Row row{{"driver_version", report.driver_version},
               {"runtime_version", report.runtime_version},
               {"why_none", report.why_none},
               {"devices", lab::Row::array()}};
  for (const gpu::Device& device : report.devices)
    row["devices"].push_back({{"name", device.name},
                              {"sm", device.sm},
                              {"gfx", device.gfx},
                              {"processors", device.n_processors},
                              {"memory_bytes", device.memory_bytes},
                              {"l2_bytes", device.l2_bytes}});
  return row;
}

/// Shapes whose cache is quoted in the documents.
constexpr std::string_view kQuotedShapes[] = {"bitnet-2b-4t", "qwen2.5-1.5b", "llama-3.1-70b"};

lab::Row weight_format_row(const WeightFormat& format) {
  const bool has_dtype = !format.safetensors_dtype.empty();
  return {{"name", format.name},
          {"bits_per_weight", format.bits_per_weight()},
          {"group", format.group},
          {"block_bytes", format.block_bytes},
          {"tail_bytes", format.tail_bytes},
          {"gguf_type", format.gguf_type < 0 ? lab::Row() : lab::Row(format.gguf_type)},
          {"safetensors_dtype", has_dtype ? lab::Row(format.safetensors_dtype) : lab::Row()},
          {"checked", format.check != nullptr},
          {"written", format.encode != nullptr}};
}

/// The cache of a quoted shape with this format and its own policy on both sides: what a session of that model reports.
lab::Row kv_shape_row(const KvFormat& format, std::string_view shape) {
  const Config config = synth_config(shape).or_throw();
  lab::Row row{{"shape", shape},
               {"n_layers", config.n_layers},
               {"n_kv_heads", config.n_kv_heads},
               {"head_dim", config.head_dim},
               {"bytes_per_token", nullptr},
               {"fixed_bytes", nullptr}};
  if (config.head_dim % format.group != 0) return row;
  int64_t per_token = 0, fixed = 0;
  for (const KvSide side : kKvSides) {
    const KvSideConfig settings = default_kv_side(format, config.kv_rank > 0 ? KvSide::v : side);
    KvLayerConfig of{settings, settings, config.n_kv_heads, config.head_dim};
    of.v_is_k = config.kv_rank > 0;
    const KvLayout layout(of, side, false);
    per_token += config.n_layers * layout.bytes_per_token();
    fixed += config.n_layers * layout.slot_bytes();
  }
  row["bytes_per_token"] = per_token;
  row["fixed_bytes"] = fixed;
  return row;
}

lab::Row kv_format_row(const KvFormat& format) {
  const KvPolicy& policy = format.policy;
  lab::Row row{{"name", format.name},
               {"bits_per_value", format.bits_per_value(kHeadDim)},
               {"group", format.group},
               {"row_bytes", lab::Row::object()},
               {"scales", lab::list_of(format.scales, scale_name)},
               {"scale_per_head", format.head_scale},
               {"can_weigh", format.can_weigh},
               {"policy",
                {{"rotation", rotation_name(policy.rotation)},
                 {"centre", policy.centre},
                 {"window", policy.window},
                 {"recent", policy.recent},
                 {"sinks", policy.sinks},
                 {"scale", scale_name(policy.scale)},
                 {"rounding", rounding_name(policy.rounding)}}},
               {"shapes", lab::list_of(kQuotedShapes, [&](auto shape) { return kv_shape_row(format, shape); })}};
  for (const int head_dim : {64, 128, 256})
    row["row_bytes"][std::to_string(head_dim)] =
        head_dim % format.group == 0 ? lab::Row(format.row_bytes(head_dim)) : lab::Row();
  return row;
}

lab::Row formats_row() {
  return {{"weights", lab::list_of(weight_formats(), weight_format_row)},
          {"kv", lab::list_of(kv_formats(), kv_format_row)}};
}

lab::Row kernels_row() {
  lab::Row row;
  for (const KernelTable& table : kernel_tables())
    for (const KernelInfo& kernel : table.kernels)
      row[std::string(table.op)].push_back({{"name", kernel.name}, {"isa", isa_name(kernel.isa)}});
  return row;
}

lab::Row device_kernels_row() {
  lab::Row row;
  for (const KernelTable& table : device_kernel_tables())
    for (const KernelInfo& kernel : table.kernels) row[std::string(table.op)].push_back(kernel.name);
  return row;
}

void print_kernels(std::string_view label, std::span<const KernelTable> tables) {
  for (const KernelTable& table : tables) {
    std::string names;
    for (const KernelInfo& kernel : table.kernels) names += fmt::format(" {}", kernel.name);
    fmt::print("{:<9} {:<12}{}\n", label, table.op, names);
  }
}

lab::Row model_row(const Model& model) {
  const ModelInfo& m = model.info();
  lab::Row row{{"path", m.path},
               {"name", m.name},
               {"arch", m.arch},
               {"weight_format", m.weight_format},
               {"n_layers", m.n_layers},
               {"n_heads", m.n_heads},
               {"n_kv_heads", m.n_kv_heads},
               {"head_dim", m.head_dim},
               {"d_model", m.d_model},
               {"d_ff", m.d_ff},
               {"vocab_size", m.vocab_size},
               {"n_ctx_train", m.n_ctx_train},
               {"tied_output", m.tied_output},
               {"n_params", m.n_params},
               {"weight_bytes", m.weight_bytes},
               {"decode_weight_bytes", m.decode_weight_bytes},
               {"packing", m.packing},
               {"unread_fields", m.unread_fields},
               {"has_tokenizer", m.has_tokenizer},
               {"add_bos", m.add_bos},
               {"load_seconds", lab::number(m.load_seconds)},
               {"packed_bytes", m.packed_bytes},
               {"pack_seconds", lab::number(m.pack_seconds)},
               {"kv_bytes_per_token", lab::Row::object()}};
  for (const KvFormat& format : kv_formats()) {
    const auto name = std::string(format.name);
    // A format whose group does not divide the heads has no cost here.
    int64_t bytes = 0;
    bool fits = true;
    for (const auto& [head_dim, n_heads] : m.cached_heads) {
      fits = fits && head_dim % format.group == 0;
      if (fits) bytes += n_heads * format.row_bytes(head_dim);
    }
    row["kv_bytes_per_token"][name] = fits ? lab::Row(bytes) : lab::Row(nullptr);
  }
  return row;
}

std::string size_text(int64_t bytes) {
  return bytes >= 1 << 20 ? fmt::format("{:.1f} MiB", double(bytes) / 1048576) : fmt::format("{} KiB", bytes >> 10);
}

void print_gpus(const gpu::DeviceReport& report) {
  if (report.devices.empty()) fmt::print("gpu       none: {}\n", report.why_none);
  for (const gpu::Device& device : report.devices)
    fmt::print("gpu       {}, {}, {} processors, {:.1f} GiB, driver for {} {}, built with {}\n", device.name,
               device.target(), device.n_processors, double(device.memory_bytes) / 1073741824, gpu::kRuntimeName,
               lab::runtime_version_text(report.driver_version), lab::runtime_version_text(report.runtime_version));
}

void print_text(const lab::Row& row, const gpu::DeviceReport& gpus) {
  const BuildInfo& build = build_info();
  fmt::print("build     ridge {} ({}), {}, {}, {}\n", build.version, build.commit, build.compiler, build.build_type,
             build.gpu_text());
  const lab::MachineInfo machine = lab::machine_info();
  fmt::print("cpu       {}, {} processor{}, kernels up to {}\n", machine.cpu_model, machine.n_processors,
             machine.n_processors == 1 ? "" : "s", machine.isa);
  if (machine.n_threads < machine.n_processors)
    fmt::print("threads   {} by default: the container's quota pays for no more\n", machine.n_threads);
  for (const lab::CacheInfo& cache : machine.caches)
    fmt::print("cache     L{} {}: {} (processors {})\n", cache.level, cache.type, size_text(cache.bytes),
               cache.shared_cpus);
  fmt::print("memory    {:.1f} GiB, {:.1f} GiB available, load {:.2f}\n", double(machine.memory_bytes) / 1073741824,
             double(machine.available_bytes) / 1073741824, machine.load_1min);
  print_gpus(gpus);
  for (const WeightFormat& format : weight_formats())
    fmt::print("weights   {:<8} {:>6.4g} bits, group {}{}\n", format.name, format.bits_per_weight(), format.group,
               format.encode ? "" : ", read only");
  for (const KvFormat& format : kv_formats())
    fmt::print("kv        {:<8} {:>6.4g} bits at head_dim {}, group {}\n", format.name, format.bits_per_value(kHeadDim),
               kHeadDim, format.group);
  print_kernels("kernels", kernel_tables());
  print_kernels("on a gpu", device_kernel_tables());
  if (!row.contains("model")) return;
  for (const auto& [name, value] : row["model"].items())
    if (!value.is_object())
      fmt::print("model     {:<20} {}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  for (const auto& [name, value] : row["model"]["kv_bytes_per_token"].items())
    fmt::print("model     KV bytes/token {:<8} {}\n", name, value.is_null() ? "not for this head_dim" : value.dump());
}

int info(const InfoFlags& flags) {
  check_device(flags.model.device);
  const gpu::DeviceReport gpus = gpu::query_devices();
  lab::Row row{{"build", build_row()},     {"machine", machine_row()}, {"gpu", gpu_row(gpus)},
               {"formats", formats_row()}, {"kernels", kernels_row()}, {"device_kernels", device_kernels_row()}};
  if (!flags.model.model.empty()) row["model"] = model_row(load_model(flags.model));
  if (flags.output.json) fmt::print("{}\n", lab::json_text(row, 2));
  else print_text(row, gpus);
  return 0;
}

}  // namespace

static Action declare_info(CLI::App& app) {
  const auto flags = std::make_shared<InfoFlags>();
  add_model_flag(app, flags->model, false);
  add_device_flags(app, flags->model);
  add_output_flags(app, flags->output, false);
  return [flags] { return info(*flags); };
}

extern const Command info_command = {
    "info", "what this build, this machine and a model are",
    R"(Build, processor, caches, memory, formats and kernels; with -m also the model's facts and the cost of its
cache.)",
    R"(ridge info
ridge info -m model.gguf --json)",
    declare_info};

}  // namespace ridge::cli
