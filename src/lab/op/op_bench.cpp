// The parts of an op bench that know no device: problems, declared work, the choice of kernels and buffers.
#include "lab/op/op_bench.h"

#include <algorithm>
#include <limits>

#include "engine/kv_options.h"
#include "lab/op/op_bench_loop.h"
#include "lab/rows/int_list.h"
#include "op/attn/attn.h"
#include "op/cache/append.h"
#include "op/linear.h"

namespace ridge::lab {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int kMaxDimension = 1 << 24;

/// The two sides of a cache of one layer, as a model of this shape would have them; centred where that is asked for.
void resolve_kv(OpProblem& p) {
  ModelPlan plan;
  plan.layers.resize(1);
  plan.layers[0].attention.n_heads = p.n_heads;
  plan.layers[0].attention.n_kv_heads = p.n_kv_heads;
  plan.layers[0].attention.head_dim = p.head_dim;
  const KvLayerConfig layer = layer_configs(session_options(p.kv, p.n_keys + p.n_new, 1), plan).at(0);
  p.k = layer.k;
  p.v = layer.v;
  p.k.policy.centre = p.kv.k.centre.value_or(false);
  p.v.policy.centre = p.kv.v.centre.value_or(false);
}

struct Batch {
  int n_seq, n_keys;
};
std::vector<Batch> batches(const OpBenchParams& params) {
  std::vector<Batch> list;
  if (params.op == Op::append) {
    const std::vector<int> batch = params.batch.empty() ? std::vector<int>{1, 8} : params.batch;
    const std::vector<int> seq = params.seq.empty() ? std::vector<int>{8192} : params.seq;
    for (const int n_seq : batch)
      for (const int n_keys : seq) list.push_back({n_seq, n_keys});
    return list;
  }
  if (params.seq.empty() && params.batch.empty())
    return {{1, 512}, {1, 4096}, {1, 8192}, {1, 16384}, {1, 32768}, {1, 131072}, {8, 8192}, {8, 32768}};
  const std::vector<int> batch = params.batch.empty() ? std::vector<int>{1} : params.batch;
  const std::vector<int> seq = params.seq.empty() ? std::vector<int>{8192, 32768} : params.seq;
  for (const int n_seq : batch)
    for (const int n_keys : seq) list.push_back({n_seq, n_keys});
  return list;
}

std::vector<OpProblem> cache_problems(const OpBenchParams& params) {
  const std::string_view standard =
      params.op == Op::append ? "f32,f16,q8_0,p8/q4_0,rotor-3" : "f32,f16,p8/q8_0,p8/q4_0,rotor-3";
  const std::vector<KvChoice> kv = params.kv.empty() ? parse_kv_list(standard).or_throw() : params.kv;
  std::vector<OpProblem> problems;
  for (const OpShape heads : params.heads) {
    if (heads.first % heads.second != 0)
      throw_wrong_field("heads", "{} KV heads do not divide {} heads", heads.second, heads.first);
    for (const KvChoice& choice : kv) {
      if (!choice.layers.empty()) throw_wrong_field("kv", "'{}': an op has no layers of their own", kv_text(choice));
      for (const Batch batch : batches(params))
        for (const int count : params.n_new) {
          if (params.op == Op::attention && count > batch.n_keys)
            throw_error(ErrorKind::usage, "--new {}: more new tokens than the {} positions of --seq", count,
                        batch.n_keys);
          OpProblem p{.op = params.op,
                      .n_heads = heads.first,
                      .n_kv_heads = heads.second,
                      .head_dim = params.head_dim,
                      .n_seq = batch.n_seq,
                      .n_keys = batch.n_keys,
                      .n_new = count,
                      .kv = choice};
          resolve_kv(p);
          problems.push_back(std::move(p));
        }
    }
  }
  return problems;
}

std::vector<OpProblem> matrix_problems(const OpBenchParams& params) {
  std::vector<const WeightFormat*> weights = params.weights;
  if (weights.empty())
    for (const char* name : {"f32", "f16", "int4_g128", "i2_s"}) weights.push_back(find_weight_format(name).or_throw());
  const std::vector<int> batch = params.batch.empty() ? std::vector<int>{1, 2, 4, 8, 16, 32, 64} : params.batch;
  std::vector<OpProblem> problems;
  for (const OpShape shape : params.shapes)
    for (const WeightFormat* format : weights) {
      if (shape.second % format->group != 0)
        throw_wrong_field("shapes", "{}x{}: {} groups {} inputs, {} does not divide", shape.first, shape.second,
                          format->name, format->group, shape.second);
      for (const int n_tokens : batch)
        problems.push_back(
            {.op = Op::gemv, .n_out = shape.first, .n_in = shape.second, .n_tokens = n_tokens, .weights = format});
    }
  return problems;
}

}  // namespace

std::string_view op_name(Op op) {
  constexpr std::string_view kNames[] = {"attention", "gemv", "append"};
  return kNames[size_t(op)];
}

std::string OpProblem::shape_text() const {
  switch (op) {
    case Op::attention: {
      const std::string queries = n_new == 1 ? "" : fmt::format(", {} queries", n_new);
      return fmt::format("{}/{}/{}, {} x {} keys{}", n_heads, n_kv_heads, head_dim, n_seq, n_keys, queries);
    }
    case Op::gemv: return fmt::format("{}x{}, {} token{}", n_out, n_in, n_tokens, n_tokens == 1 ? "" : "s");
    case Op::append: return fmt::format("{}/{}, {} x {} tokens at {}", n_kv_heads, head_dim, n_seq, n_new, n_keys);
  }
  return "?";
}

KvLayerConfig OpProblem::nearest_layer() const {
  KvLayerConfig nearest = layer();
  nearest.k.policy.rounding = nearest.v.policy.rounding = KvRounding::nearest;
  return nearest;
}

std::string OpProblem::format_text() const { return op == Op::gemv ? std::string(weights->name) : kv_text(kv); }

Work op_work(const OpProblem& p) {
  Work work;
  switch (p.op) {
    case Op::attention: {
      const Work one = attention_work(AttentionProblem(p.layer(), p.n_heads, p.n_keys, p.n_new).get());
      for (int seq = 0; seq < p.n_seq; ++seq) work += one;
      return work;
    }
    case Op::gemv: return linear_work({.format = p.weights, .n_out = p.n_out, .n_in = p.n_in}, p.n_tokens);
    case Op::append: {
      const AttentionProblem problem(p.layer(), p.n_heads, p.n_keys);
      return kv_append_work(problem.get().k, problem.get().v, int64_t(p.n_seq) * p.n_new);
    }
  }
  return work;
}

OpCheck check_nmse(std::span<const float> actual, std::span<const float> expected, double bound, std::string what) {
  const Comparison comparison = compare(actual, expected);
  return {.metric = "NMSE",
          .error = comparison.nmse,
          .bound = bound,
          .comparison = comparison,
          .has_comparison = true,
          .what = std::move(what)};
}

Result<std::vector<OpShape>> parse_op_shapes(std::string_view flag, std::string_view text, char separator) {
  std::vector<OpShape> shapes;
  for (const std::string& item : split(text, ',')) {
    const std::vector<std::string> sides = split(item, separator);
    OpShape shape;
    for (size_t i = 0; i < sides.size(); ++i) {
      const auto number = parse_int_list(flag, sides[i], 1, kMaxDimension);
      if (sides.size() != 2 || !number || number->size() != 1)
        return fail(ErrorKind::usage, "{}: '{}' is not a pair like {}", flag, item,
                    separator == '/' ? "64/8" : "8960x1536");
      (i == 0 ? shape.first : shape.second) = (*number)[0];
    }
    if (sides.size() != 2)
      return fail(ErrorKind::usage, "{}: '{}' is not a pair like {}", flag, item,
                  separator == '/' ? "64/8" : "8960x1536");
    shapes.push_back(shape);
  }
  return shapes;
}

std::vector<OpProblem> op_problems(const OpBenchParams& params) {
  return params.op == Op::gemv ? matrix_problems(params) : cache_problems(params);
}

KernelChoice choose_kernels(const OpBenchParams& params, const OpProblem& problem, std::span<const OpKernel> table,
                            const OpDevice& device) {
  const auto& asked = params.kernels;
  const bool all = asked.size() == 1 && asked[0] == "all";
  std::vector<const OpKernel*> rows;
  std::string names;
  for (const OpKernel& kernel : table) {
    if (kernel.op != problem.op || kernel.on_cpu() != device.is_cpu()) continue;
    rows.push_back(&kernel);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kernel.name);
  }
  for (const std::string& name : asked)
    if (!all && std::ranges::none_of(rows, [&](const OpKernel* k) { return k->name == name; }))
      throw_wrong_field("kernels", "{} has no kernel '{}' (there are: {})", op_name(problem.op), name,
                        names.empty() ? "none" : names);
  KernelChoice choice;
  for (const OpKernel* kernel : rows) {
    if (asked.empty() ? kernel->is_baseline : !all && std::ranges::find(asked, kernel->name) == asked.end()) continue;
    const Support support = kernel->supports(problem, device);
    if (support.ok) choice.kernels.push_back(kernel);
    else choice.why_none += fmt::format("{}{}: {}", choice.why_none.empty() ? "" : "; ", kernel->name, support.why_not);
  }
  if (asked.empty() && choice.kernels.size() > 1)
    choice.kernels.erase(choice.kernels.begin(), choice.kernels.end() - 1);
  if (!choice.kernels.empty()) choice.why_none.clear();
  else if (choice.why_none.empty()) choice.why_none = "the table has no row for this op";
  return choice;
}

BufferSets choose_buffer_sets(int64_t set_bytes, int64_t cache_bytes, int64_t budget_bytes, int most) {
  constexpr int kFewest = 2;
  const int64_t enough = std::max<int64_t>(kFewest, (4 * cache_bytes + set_bytes - 1) / set_bytes);
  const int n = int(std::min({enough, int64_t(most), budget_bytes / set_bytes}));
  // Between two calls on a set all others pass through the cache.
  return {n, cache_bytes > 0 && n >= kFewest && (n - 1) * set_bytes >= cache_bytes};
}

void CpuOpRun::prepare(int, int) {}
int CpuOpRun::most_calls() const { return std::numeric_limits<int>::max(); }
int CpuOpRun::calls_multiple() const { return 1; }

Spread spread_us(const std::vector<double>& seconds) {
  std::vector<double> samples;
  for (const double s : seconds) samples.push_back(s > 0 ? s * 1e6 : kNaN);
  if (samples.empty()) return {kNaN, kNaN, kNaN, kNaN, kNaN};
  return spread(std::move(samples));
}
std::vector<double> Timed::samples_us() const {
  std::vector<double> us;
  for (const double s : seconds) us.push_back(s * 1e6);
  return us;
}
double OpRow::gb_s() const { return bytes() / us().median / 1e3; }
double OpRow::pct_of_roof() const { return roof_gb_s > 0 ? 100 * gb_s() / roof_gb_s : kNaN; }
int64_t moved_bytes_of(const OpKernel& kernel, const OpProblem& problem) {
  if (kernel.moved_bytes) return kernel.moved_bytes(problem);
  const Work work = op_work(problem);
  return work.read_bytes + work.write_bytes;
}

double OpRow::predicted_us() const { return roof_gb_s > 0 ? double(moved_bytes) / roof_gb_s / 1e3 : kNaN; }

std::vector<std::pair<OpProblem, KernelChoice>> plan_op_bench(const OpBenchParams& params,
                                                              std::span<const OpKernel> table, const OpDevice& device,
                                                              const OpBenchHooks& hooks) {
  std::vector<std::pair<OpProblem, KernelChoice>> work;
  for (OpProblem& problem : op_problems(params)) {
    KernelChoice choice = choose_kernels(params, problem, table, device);
    if (!choice.kernels.empty()) work.emplace_back(std::move(problem), std::move(choice));
    else if (params.formats_given())
      throw_error(ErrorKind::usage, "no kernel of {} takes {}, {} ({})", op_name(problem.op), problem.shape_text(),
                  problem.format_text(), choice.why_none);
    else if (hooks.on_skipped) hooks.on_skipped(problem, choice.why_none);
  }
  return work;
}

int run_op_bench(const OpBenchParams& params, std::span<const OpKernel> table, const OpBenchHooks& hooks) {
  return params.device == OpDevice::kCpu ? run_op_bench_on_cpu(params, table, hooks)
                                         : run_op_bench_on_gpu(params, table, hooks);
}

}  // namespace ridge::lab
