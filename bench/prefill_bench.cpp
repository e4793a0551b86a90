// Prefill attention on a device: time of every way to cut the work, beside the one that is chosen.
//
//   prefill_bench [head_dim heads kv_heads tokens past] ...
//
// A row is the median of repeated launches. Operations are the two products' over the positions that queries see,
// 4 head_dim for each pair, whatever planes the products take. Correctness is tests/gpu's job.
#include <fmt/format.h>

#include <cmath>

#include "base/rng.h"
#include "gpu/graph.h"
#include "op/attn/prefill_cuda.h"
#include "program.h"

namespace ridge {
namespace {

struct Shape {
  int head_dim, n_heads, n_kv_heads, n_tokens, n_past;
  int n_keys() const { return n_past + n_tokens; }
  double operations() const {
    const double pairs = double(n_tokens) * n_past + double(n_tokens) * (n_tokens + 1) / 2;
    return 4 * pairs * n_heads * head_dim;
  }
};

void print(const Shape& s, const char* rows, std::string_view how, double us) {
  fmt::print("head_dim {:3}  heads {:2}/{:<2}  {:6} + {:5} tokens  {:5} rows  {:18} {:10.1f} us  {:6.1f} TFLOP/s\n",
             s.head_dim, s.n_heads, s.n_kv_heads, s.n_past, s.n_tokens, rows, how, us, s.operations() / us * 1e-6);
  std::fflush(stdout);
}

/// A cache without retention: every row coded.
template <class Row>
void run(const gpu::Stream& stream, const Shape& s) {
  const int64_t n_rows = int64_t(s.n_kv_heads) * s.n_keys() * s.head_dim;
  const int64_t n_queries = int64_t(s.n_tokens) * s.n_heads * s.head_dim;
  Rng rng(1);
  const auto values = [&](int64_t n) {
    std::vector<Row> v(size_t(n), Row{});
    for (Row& x : v) {
      if constexpr (std::is_same_v<Row, float>) x = float(rng.normal());
      else x = Row(0x3000 + (rng.next() >> 52) % 0xC00 + (rng.next() >> 63 << 15));  // 2^-3 .. 1, either sign
    }
    return v;
  };
  const gpu::Buffer k = gpu::to_device(stream, std::span<const Row>(values(n_rows)));
  const gpu::Buffer v = gpu::to_device(stream, std::span<const Row>(values(n_rows)));
  std::vector<float> queries(size_t(n_queries), 0.0f);
  for (float& x : queries) x = float(rng.normal());
  const gpu::Buffer q = gpu::to_device(stream, std::span<const float>(queries)), out(4 * n_queries);
  stream.synchronize();
  DeviceAttnOver<Row> a{.n_seq = 1,
                        .n_heads = s.n_heads,
                        .n_kv_heads = s.n_kv_heads,
                        .head_dim = s.head_dim,
                        .n_tokens = s.n_tokens,
                        .n_keys = s.n_keys(),
                        .scale = 1 / std::sqrt(float(s.head_dim)),
                        .q = q.as<float>(),
                        .k = {.coded = k.as<Row>(), .n_coded = s.n_keys(), .exact_first = s.n_keys()},
                        .v = {.coded = v.as<Row>(), .n_coded = s.n_keys(), .exact_first = s.n_keys()},
                        .out = out.as<float>()};
  const char* rows = sizeof(Row) == 4 ? "float" : "half";
  if (const char* why = prefill_attn_unsupported(s.head_dim, sizeof(Row))) fmt::print("{} rows: {}\n", rows, why);
  else
    for (const PrefillPlan plan : {PrefillPlan{1, 0}, PrefillPlan{1, 4}, PrefillPlan{1, 8}, PrefillPlan{2, 4}})
      print(s, rows, plan.warps == 0 ? "chosen" : fmt::format("{} planes, {} warps", plan.planes, plan.warps),
            median_microseconds(stream, 6, [&] { prefill_attn(stream, a, plan); }));
  if constexpr (std::is_same_v<Row, float>)
    print(s, rows, "float kernel", median_microseconds(stream, 6, [&] { device_attn(stream, a); }));
}

int run(std::span<char*> arguments) {
  if (arguments.size() % 5 != 0) return fmt::print(stderr, "prefill_bench: five numbers make a shape\n"), 2;
  std::vector<Shape> shapes;
  for (size_t i = 0; i < arguments.size(); i += 5) {
    int n[5];
    for (size_t j = 0; j < 5; ++j) n[j] = std::atoi(arguments[i + j]);
    shapes.push_back({n[0], n[1], n[2], n[3], n[4]});
  }
  if (shapes.empty())
    shapes = {{128, 32, 8, 8192, 0},
              {128, 32, 8, 512, 7680},
              {128, 12, 2, 2048, 0},
              {64, 32, 8, 8192, 0},
              {256, 16, 4, 8192, 0}};
  use_first_device();
  const gpu::Stream stream;
  for (const Shape& s : shapes) {
    run<uint16_t>(stream, s);
    run<float>(stream, s);
  }
  return 0;
}

}  // namespace
}  // namespace ridge

int main(int argc, char** argv) {
  return ridge::run_program(
      "prefill_bench", [](std::span<char*> arguments) { return ridge::run(arguments); }, argc, argv);
}
