// ridge explain: every kernel of an op, which one is chosen, and why not the others.
#include <memory>

#include "base/closest.h"
#include "cli/options.h"
#include "engine/device_name.h"
#include "format/list.h"
#include "lab/rows/results.h"
#include "op/attn/attn.h"
#include "op/attn/device_attention.h"
#include "op/cache/rounding.h"
#include "op/delta/delta.h"
#include "op/device_linear.h"
#include "op/gemv/ternary.h"
#include "op/kernel_tables.h"
#include "op/norm_rope/norm_rope.h"
#include "op/stream/stream.h"

namespace ridge::cli {
namespace {

struct ExplainFlags {
  OutputFlags output;
  std::string op, shape, format, isa, device = "cpu";
  int n_keys = 4096, n_tokens = 1;

  bool on_device() const { return !parse_devices(device).empty(); }
};

struct Verdict {
  std::string_view name, isa;  // of a device's kernels: none
  Support support;
  bool chosen = false;
};

struct Explanation {
  std::string problem;
  std::optional<Work> work;
  std::vector<Verdict> kernels;  ///< worst to best
};

/// Chooses as select_row() does: the last supported row wins.
template <class Variant, class Judge>
std::vector<Verdict> verdicts_of(std::span<const Variant> variants, const Judge& judge_one) {
  std::vector<Verdict> verdicts;
  for (const Variant& variant : variants) verdicts.push_back(judge_one(variant));
  const auto best = std::find_if(verdicts.rbegin(), verdicts.rend(), [](const Verdict& v) { return v.support.ok; });
  if (best != verdicts.rend()) best->chosen = true;
  return verdicts;
}

template <class Variant, class... Problem>
std::vector<Verdict> judge(Isa limit, std::span<const Variant> variants, const Problem&... problem) {
  const Isa isa = std::min(limit, detect_isa());
  return verdicts_of(variants, [&](const Variant& variant) -> Verdict {
    const Support support = variant.isa > isa
                                ? Support{false, fmt::format("needs {}, this processor or --isa allows {}",
                                                             isa_name(variant.isa), isa_name(isa))}
                                : variant.supports(problem...);
    return {variant.name, isa_name(variant.isa), support};
  });
}

template <class Variant, class Problem>
std::vector<Verdict> judge_device(std::span<const Variant> variants, const Problem& problem) {
  return verdicts_of(variants, [&](const Variant& v) -> Verdict { return {v.name, "", v.supports(problem)}; });
}

/// "8960x1536" or "12/2/128" in whole numbers, exactly n of them.
std::vector<int> parse_shape(const std::string& text, char separator, size_t n, std::string_view expected) {
  const std::vector<std::string> words = split(text, separator);
  if (words.size() != n) bad_flag("--shape", fmt::format("expects {}, found '{}'", expected, text));
  std::vector<int> numbers;
  for (const std::string& word : words) numbers.push_back(int(parse_whole("--shape", word, 1, 1 << 24)));
  return numbers;
}

Explanation explain_linear(const ExplainFlags& flags, Isa limit) {
  const auto shape = parse_shape(flags.shape.empty() ? "8960x1536" : flags.shape, 'x', 2, "N_OUTxN_IN");
  const WeightFormat& format = *find_weight_format(flags.format.empty() ? "q4_0" : flags.format).or_throw();
  if (shape[1] % format.group != 0)
    bad_flag("--shape", fmt::format("{} groups {} inputs, {} does not divide", format.name, format.group, shape[1]));
  // Kernels are asked about a matrix as the loader leaves it: rows in the file's mapping, panels where some kernel
  // wants them. They look at the pointers, not at the bytes.
  static constexpr std::byte kPresent{};
  Linear w{.format = &format,
           .n_out = shape[0],
           .n_in = shape[1],
           .rows = &kPresent,
           .int8_activations = format.name == "i2_s"};
  const Isa isa = std::min(limit, detect_isa());
  if (wants_ternary_panels(w, isa) || wants_panels(format, w.n_in, isa)) w.panels = &kPresent;
  const bool one = flags.op == "gemv";
  return {fmt::format("{} x {} {}, {}", w.n_out, w.n_in, format.name, one ? "1 token" : "a batch of tokens"),
          linear_work(w, 1),
          flags.on_device() ? judge_device(device_linear_variants(), DeviceLinearProblem{w, one ? 1 : kFewTokens + 1})
                            : judge(limit, one ? gemv_variants() : gemm_variants(), w)};
}

Explanation explain_attention(const ExplainFlags& flags, Isa limit) {
  const auto shape = parse_shape(flags.shape.empty() ? "12/2/128" : flags.shape, '/', 3, "HEADS/KV_HEADS/HEAD_DIM");
  if (shape[0] % shape[1] != 0)
    bad_flag("--shape", fmt::format("{} KV heads do not divide {} heads", shape[1], shape[0]));
  const KvChoice kv = parse_kv_choice(flags.format.empty() ? "f16" : flags.format).or_throw();
  const auto format_of = [&](const KvSideOptions& side) {
    const KvFormat* format = find_kv_format(side.format).or_throw();
    if (shape[2] % format->group != 0)
      bad_flag("--shape",
               fmt::format("{} groups {} values, head_dim {} does not divide", format->name, format->group, shape[2]));
    return format;
  };
  const KvFormat *k = format_of(kv.k), *v = format_of(kv.v);
  const std::string problem = fmt::format("{} heads, {} KV heads of {}, K {} V {}, {} keys", shape[0], shape[1],
                                          shape[2], k->name, v->name, flags.n_keys);
  const KvLayerConfig layer{default_kv_side(*k, KvSide::k), default_kv_side(*v, KvSide::v), shape[1], shape[2]};
  const AttentionProblem a(layer, shape[0], flags.n_keys);
  return {problem, attention_work(a.get()),
          flags.on_device() ? judge_device(device_attention_variants(), DeviceAttentionProblem{layer, flags.n_tokens})
                            : judge(limit, attention_variants(), a.get())};
}

Explanation explanation_of(const ExplainFlags& flags) {
  const Isa limit = find_isa(flags.isa).or_throw();
  if (flags.op == "gemv" || flags.op == "gemm") return explain_linear(flags, limit);
  if (flags.op == "attention") return explain_attention(flags, limit);
  if (flags.on_device())
    bad_flag("OP", fmt::format("a device has no kernels of '{}'", flags.op), "gemv, gemm, attention");
  if (flags.op == "norm_rope") return {"rows of floats", std::nullopt, judge(limit, norm_rope_variants())};
  if (flags.op == "kv_round") return {"rows of 128 values", std::nullopt, judge(limit, kv_round_variants(), 128)};
  if (flags.op == "delta") return {"heads of a token", std::nullopt, judge(limit, delta_variants())};
  if (flags.op == "stream") return {"plain memory", std::nullopt, judge(limit, stream_variants())};
  bad_flag("OP", fmt::format("unknown operation '{}'", flags.op), choices_text(flags.op, op_names(kernel_tables())));
}

lab::Row to_row(const std::string& op, const Explanation& e) {
  lab::Row row{{"op", op}, {"problem", e.problem}, {"kernels", lab::Row::array()}};
  if (e.work)
    row["work"] = {{"read_bytes", e.work->read_bytes}, {"write_bytes", e.work->write_bytes}, {"flops", e.work->flops}};
  for (const Verdict& v : e.kernels)
    row["kernels"].push_back({{"name", v.name},
                              {"isa", v.isa},
                              {"supported", v.support.ok},
                              {"why_not", v.support.why_not},
                              {"chosen", v.chosen}});
  return row;
}

int explain(const ExplainFlags& flags) {
  const Explanation e = explanation_of(flags);
  if (flags.output.json) {
    fmt::print("{}\n", to_row(flags.op, e).dump(2));
    return 0;
  }
  fmt::print("{}: {}\n", flags.op, e.problem);
  if (e.work)
    fmt::print("least work: reads {} bytes, writes {}, {} flops, {:.2f} flops per byte\n", e.work->read_bytes,
               e.work->write_bytes, e.work->flops,
               double(e.work->flops) / double(std::max<int64_t>(1, e.work->read_bytes + e.work->write_bytes)));
  for (auto v = e.kernels.rbegin(); v != e.kernels.rend(); ++v)
    fmt::print("  {} {:<16} {:<7} {}\n", v->chosen ? "*" : " ", v->name, v->isa,
               v->chosen       ? "chosen"
               : v->support.ok ? "supported; a better one is"
                               : v->support.why_not);
  return 0;
}

}  // namespace

static Action declare_explain(CLI::App& app) {
  const auto flags = std::make_shared<ExplainFlags>();
  ExplainFlags& f = *flags;
  add_text(app, "OP", f.op, "TEXT", fmt::format("{}", fmt::join(op_names(kernel_tables()), ", ")))->required();
  add_text(app, "--shape", f.shape, "SHAPE", "N_OUTxN_IN, or HEADS/KV_HEADS/HEAD_DIM for attention");
  add_text(app, "--format", f.format, "FORMAT", "weight format, or KV format (K/V) for attention");
  add_whole(app, "--keys", f.n_keys, 1, 1 << 26, "cached tokens, for attention");
  add_whole(app, "--tokens", f.n_tokens, 1, 1 << 26, "new tokens of a sequence, for attention on a device");
  add_text(app, "--device", f.device, "NAME", "cpu or cuda[:N]: whose kernels");
  add_text(app, "--isa", f.isa, "NAME", "highest instruction set to consider: " + isa_names());
  add_output_flags(app, f.output, false);
  return [flags] { return explain(*flags); };
}

extern const Command explain_command = {
    "explain", "which kernel runs an operation here, and why not the others",
    R"(Lists every kernel of an operation with what it needs, and marks the one that is chosen for the shape and
format.)",
    R"(ridge explain gemv --shape 8960x1536 --format q4_0
ridge explain attention --shape 12/2/128 --keys 4096 --format q8_0/rotor-3 --isa avx2)",
    declare_explain};

}  // namespace ridge::cli
