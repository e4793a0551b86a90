// Integer products on a device: time of the plan that is chosen, and of others beside it.
//
//   int_gemv_bench [plan | sweep] [int4 | ternary] [planes1 | planes2] [norm] [store | add | glu] [n_out x n_in ...]
//                  [-b tokens ...]
//
// glu: gate and up of n_out rows in all, silu (int4_g128) or squared ReLU (ternary). A line a plan, key=value words.
// Weights are rotated through several copies, together four times the L2, in a graph of launches that overlap as they
// do in a decode step; a row is the median of repeated graphs, per launch. Percent is of the read bandwidth measured
// on an H200, 4563 GB/s. Correctness is tests/gpu's job.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/rng.h"
#include "gpu/graph.h"
#include "op/gemv/int_gemv_cuda.h"
#include "program.h"

namespace ridge {
namespace {

constexpr double kReadBandwidth = 4563e9;

struct Shape {
  int64_t n_out, n_in;
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Bench {
  gpu::Stream stream;
  IntDevice device;
  int64_t l2_bytes = 0;
  IntScratch scratch;
  std::vector<IntWeights> copies;
  gpu::Buffer x, y, norm_weight;
  bool norm = false;
  IntOutput output = IntOutput::store;

  void prepare(IntKind kind, Shape shape, int most_tokens);
  double microseconds(const IntCall& call, const IntPlan& plan);
  void run(IntKind kind, Shape shape, int n_tokens, int planes, bool sweep);
  void print(IntKind kind, Shape shape, int n_tokens, int planes, const char* what, const IntPlan& p, double us);
};

/// Random codes with scales of 1/16; the copies differ in place only.
void Bench::prepare(IntKind kind, Shape shape, int most_tokens) {
  copies.clear();
  Rng rng(1);
  std::vector<uint8_t> tiles(size_t(4096) * size_t(int_tile_bytes(kind)));
  for (uint8_t& byte : tiles) byte = uint8_t(rng.next() >> 24);
  for (size_t tile = 0; tile < 4096 && kind == IntKind::int4_g128; ++tile)
    for (size_t i = 1024; i < 1056; ++i) tiles[tile * 1056 + i] = i % 2 ? 0x2C : 0;
  int64_t bytes = 0;
  while (copies.empty() || bytes < 4 * l2_bytes) {
    IntWeights& w = copies.emplace_back(IntWeights{});
    w.kind = kind, w.n_in = shape.n_in;
    w.gated = output == IntOutput::silu_glu;
    w.n_out = w.gated ? shape.n_out / 2 : shape.n_out;
    w.tiles = gpu::Buffer(w.n_row_tiles() * w.n_groups() * int_tile_bytes(kind));
    if (kind == IntKind::ternary) w.row_scale = gpu::Buffer(4 * kIntTileRows * w.n_row_tiles());
    for (int64_t at = 0; at < w.tiles.bytes(); at += int64_t(tiles.size()))
      gpu::upload(stream, w.tiles.as<uint8_t>() + at, tiles.data(),
                  std::min(int64_t(tiles.size()), w.tiles.bytes() - at));
    bytes += w.bytes();
  }
  std::vector<float> values(size_t(most_tokens * shape.n_in), 0.0f);
  for (float& v : values) v = float(rng.normal());
  x = gpu::to_device(stream, std::span<const float>(values));
  y = gpu::Buffer(4 * most_tokens * shape.n_out);
  norm_weight = gpu::to_device(stream, std::span<const float>(values).first(size_t(shape.n_in)));
  stream.synchronize();
}

double Bench::microseconds(const IntCall& call, const IntPlan& plan) {
  device_int_gemv(stream, copies[0], call, plan, scratch);  // allocates
  const int n_launches = std::max<int>(int(copies.size()), 20);
  const gpu::Graph graph(stream, [&] {
    for (int i = 0; i < n_launches; ++i)
      device_int_gemv(stream, copies[size_t(i) % copies.size()], call, plan, scratch);
  });
  return median_microseconds(stream, 7, [&] { graph.launch(stream); }) / n_launches;
}

void Bench::print(IntKind kind, Shape shape, int n_tokens, int planes, const char* what, const IntPlan& p, double us) {
  const char* const outputs[] = {"store", "add", "glu", "glu"};
  fmt::print(
      "{}={:.2f} us  percent={:.1f}  kind={} shape={}x{} tokens={} planes={} norm={} output={}  rows={} blocks={} "
      "warps={} row_warps={} depth={} inside={} eights={}\n",
      what, us, 100 * double(copies[0].bytes()) / kReadBandwidth / (us * 1e-6),
      kind == IntKind::ternary ? "ternary" : "int4", shape.n_out, shape.n_in, n_tokens, planes, int(norm),
      outputs[int(output)], p.rows, p.blocks, p.warps, p.row_warps, p.depth, int(p.quantize_inside), p.tiles_of_8);
  std::fflush(stdout);
}

/// Streams around the one that would be chosen: other numbers of blocks and warps, depths, and places to quantise.
std::vector<IntPlan> neighbours(const IntPlan& chosen, int64_t n_row_tiles, int n_processors) {
  std::vector<IntPlan> plans;
  std::vector<int64_t> all_rows = {1, 2, ceil_div(n_row_tiles, 2 * n_processors), ceil_div(n_row_tiles, n_processors),
                                   ceil_div(2 * n_row_tiles, n_processors)};
  std::sort(all_rows.begin(), all_rows.end());
  all_rows.erase(std::unique(all_rows.begin(), all_rows.end()), all_rows.end());
  IntPlan p = chosen;
  for (const int64_t rows : all_rows)
    for (const int warps : {8, 12, 14, 16})
      for (const int depth : {4, 6, 8})
        for (const bool inside : {true, false}) {
          p.rows = int(std::min(rows, n_row_tiles)), p.warps = warps, p.depth = depth, p.quantize_inside = inside;
          p.blocks = int(ceil_div(n_row_tiles, p.rows));
          if (p.blocks <= 4 * n_processors) plans.push_back(p);
        }
  return plans;
}

void Bench::run(IntKind kind, Shape shape, int n_tokens, int planes, bool sweep) {
  const IntWeights& w = copies[0];
  IntCall call = {.n_tokens = n_tokens,
                  .x = x.as<float>(),
                  .norm_weight = norm ? norm_weight.as<float>() : nullptr,
                  .planes = planes,
                  .output = output,
                  .y = y.as<float>(),
                  .overlap = true};
  if (w.gated && kind == IntKind::ternary) call.output = IntOutput::relu2_glu;
  const IntPlan chosen = plan_int_gemv(kind, w.n_row_tiles(), w.n_in, n_tokens, planes, device);
  print(kind, shape, n_tokens, planes, "plan", chosen, microseconds(call, chosen));
  if (!sweep || chosen.row_warps > 0) return;
  struct Row {
    double us;
    IntPlan plan;
  };
  std::vector<Row> rows;
  for (const IntPlan& p : neighbours(chosen, w.n_row_tiles(), device.n_processors))
    if (int_gemv_shared_bytes(kind, p, w.n_in, n_tokens, planes) <= device.shared_bytes)
      rows.push_back({microseconds(call, p), p});
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.us < b.us; });
  for (size_t i = 0; i < std::min<size_t>(6, rows.size()); ++i)
    print(kind, shape, n_tokens, planes, "best", rows[i].plan, rows[i].us);
}

int run(std::span<char*> arguments) {
  bool sweep = false, norm = false;
  IntOutput output = IntOutput::store;
  std::vector<int> all_planes = {1, 2};
  std::vector<IntKind> kinds = {IntKind::int4_g128, IntKind::ternary};
  std::vector<Shape> shapes;
  std::vector<int> batches;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view a = arguments[i];
    long long n_out = 0, n_in = 0;
    if (a == "sweep" || a == "plan") sweep = a == "sweep";
    else if (a == "int4") kinds = {IntKind::int4_g128};
    else if (a == "ternary") kinds = {IntKind::ternary};
    else if (a == "planes1" || a == "planes2") all_planes = {a == "planes1" ? 1 : 2};
    else if (a == "norm") norm = true;
    else if (a == "store") output = IntOutput::store;
    else if (a == "add") output = IntOutput::add;
    else if (a == "glu") output = IntOutput::silu_glu;
    else if (a == "-b")
      while (i + 1 < arguments.size()) batches.push_back(std::atoi(arguments[++i]));
    else if (std::sscanf(arguments[i], "%lldx%lld", &n_out, &n_in) == 2) shapes.push_back({n_out, n_in});
    else return fmt::print(stderr, "int_gemv_bench: {}?\n", a), 2;
  }
  if (shapes.empty())
    shapes = {{1536, 1536}, {2048, 1536}, {8960, 1536},  {17920, 1536}, {1536, 8960},  {2560, 2560}, {13824, 2560},
              {2560, 6912}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {57344, 8192}, {8192, 28672}};
  if (batches.empty()) batches = {1, 2, 4, 8, 16, 32, 64};

  const gpu::Device device = use_first_device();
  Bench bench;
  bench.norm = norm, bench.output = output;
  bench.device.n_processors = device.n_processors;
  bench.l2_bytes = int64_t(device.l2_bytes);
  for (const IntKind kind : kinds)
    for (const Shape& shape : shapes) {
      bench.prepare(kind, shape, *std::max_element(batches.begin(), batches.end()));
      for (const int planes : all_planes)
        for (const int n_tokens : batches)
          if (n_tokens * planes <= kIntColumns && (planes == 1 || kind == IntKind::int4_g128))
            bench.run(kind, shape, n_tokens, planes, sweep);
    }
  return 0;
}

}  // namespace
}  // namespace ridge

int main(int argc, char** argv) { return ridge::run_program("int_gemv_bench", ridge::run, argc, argv); }
