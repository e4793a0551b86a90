// Every kernel of gemv, gemm and decode attention over every format it supports, at shapes of real models.
//
// bytes_per_second counts the declared work of the op (linear_work, attn_decode_work), so it compares with the read
// bandwidth of the machine; weights of one product (1 to 55 MB here) may be served from cache, which `ridge bench` is
// for telling apart. Correctness is tests/op's job; --benchmark_filter chooses, e.g. 'gemv/.*/q4_0'.
#include <benchmark/benchmark.h>

#include <cmath>

#include "cases/attn_data.h"
#include "cases/linear_cases.h"
#include "op/gemv/panels.h"

namespace ridge {
namespace {

CpuContext& bench_context() {
  static CpuContext context(0);
  return context;
}

void report(benchmark::State& state, const Work& work) {
  const double runs = double(state.iterations());
  state.SetBytesProcessed(int64_t(runs) * (work.read_bytes + work.write_bytes));
  state.counters["flops"] = benchmark::Counter(double(work.flops) * runs, benchmark::Counter::kIsRate);
}

void bench_linear(benchmark::State& state, const LinearVariant& variant, const WeightFormat& format,
                  const LinearCase& c) {
  const std::vector<float> x = random_floats(1, int64_t(c.n_tokens) * c.n_in), weights = random_floats(2, c.n_in);
  AlignedBuffer rows(c.n_out * format.row_bytes(c.n_in));
  for (int64_t r = 0; r < c.n_out; ++r)
    format.encode(weights.data(), c.n_in, rows.data() + r * format.row_bytes(c.n_in));  // equal rows cost the same
  AlignedBuffer panels(has_panels(format) ? panel_bytes(format, c.n_out, c.n_in) : 0);
  if (has_panels(format)) pack_panels(bench_context(), format, c.n_out, c.n_in, rows.data(), panels.data());
  const Linear w{.format = &format, .n_out = c.n_out, .n_in = c.n_in, .rows = rows.data(), .panels = panels.data()};
  if (const Support s = variant.supports(w); !s.ok) return state.SkipWithError(s.why_not.c_str());
  std::vector<float> y(size_t(c.n_tokens) * size_t(c.n_out));
  for (auto _ : state) {
    variant.run(bench_context(), w, {x.data(), c.n_tokens, c.n_in}, {y.data(), c.n_tokens, c.n_out});
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  report(state, linear_work(w, c.n_tokens));
}

void bench_attn_decode(benchmark::State& state, const AttnDecodeVariant& variant, const KvFormat& format,
                       const AttnCase& c) {
  CachedSide k(c.heads.n_kv_heads, c.n_keys, c.head_dim, 1), v(c.heads.n_kv_heads, c.n_keys, c.head_dim, 2);
  k.add(format, 0, c.n_keys);
  v.add(format, 0, c.n_keys);
  const std::vector<float> q = random_floats(3, int64_t(c.heads.n_heads) * c.head_dim);
  std::vector<float> out(q.size());
  const AttnDecode a{.n_heads = c.heads.n_heads,
                     .n_kv_heads = c.heads.n_kv_heads,
                     .head_dim = c.head_dim,
                     .n_keys = c.n_keys,
                     .scale = float(1 / std::sqrt(double(c.head_dim))),
                     .q = q.data(),
                     .k = k.side(),
                     .v = v.side(),
                     .out = out.data()};
  if (const Support s = variant.supports(a); !s.ok) return state.SkipWithError(s.why_not.c_str());
  for (auto _ : state) {
    variant.run(bench_context(), a);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  report(state, attn_decode_work(a));
}

/// The oracle is slow on purpose and would take most of the time.
template <class Variant>
bool is_benched(const Variant& variant) {
  return variant.name != "ref" && variant.isa <= bench_context().isa;
}

void register_linear(std::string_view op, std::span<const LinearVariant> variants,
                     const std::vector<LinearCase>& cases) {
  for (const LinearCase& c : cases)
    for (const LinearVariant& variant : variants)
      for (const WeightFormat& format : weight_formats()) {
        if (!is_benched(variant) || c.n_in % format.group != 0) continue;
        if (variant.name.starts_with("panel") && !has_panels(format)) continue;
        const std::string name = fmt::format("{}/{}/{}/{}", op, variant.name, format.name, c.name());
        benchmark::RegisterBenchmark(name.c_str(), bench_linear, std::cref(variant), std::cref(format), c)
            ->UseRealTime();
      }
}

void register_all() {
  // Qwen2.5-1.5B: output projection, gate, down.
  register_linear("gemv", gemv_variants(), {{1536, 1536, 1}, {8960, 1536, 1}, {1536, 8960, 1}});
  register_linear("gemm", gemm_variants(), {{1536, 1536, 8}, {1536, 1536, 64}});
  for (const AttnCase& c : {AttnCase{{12, 2}, 128, 1024}, AttnCase{{12, 2}, 128, 8192}, AttnCase{{32, 8}, 64, 4096}})
    for (const AttnDecodeVariant& variant : attn_decode_variants())
      for (const KvFormat& format : kv_formats()) {
        if (!is_benched(variant)) continue;
        const std::string name = fmt::format("attn_decode/{}/{}/heads{}_{}/dim{}/keys{}", variant.name, format.name,
                                             c.heads.n_heads, c.heads.n_kv_heads, c.head_dim, c.n_keys);
        benchmark::RegisterBenchmark(name.c_str(), bench_attn_decode, std::cref(variant), std::cref(format), c)
            ->UseRealTime();
      }
}

}  // namespace
}  // namespace ridge

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  ridge::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
