// Integer products on a device: time of the plan that is chosen, and of others beside it.
//
//   int_gemv_bench [plan | sweep] [int4 | ternary | both] [n_out x n_in ...] [-b tokens ...]
//
// Weights are rotated through several copies, together four times the L2, in a graph of launches that overlap as they
// do in a decode step; a row is the median of repeated graphs, per launch. Percent is of the read bandwidth measured
// on an H200, 4563 GB/s. Correctness is tests/gpu's job.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/rng.h"
#include "gpu/device_query.h"
#include "gpu/graph.h"
#include "op/gemv/int_gemv_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr double kReadBandwidth = 4563e9;

struct Shape {
  int64_t n_out, n_in;
};

struct Bench {
  gpu::Stream stream;
  IntDevice device;
  int64_t l2_bytes = 0;
  IntScratch scratch;
  std::vector<IntWeights> copies;
  gpu::Buffer x, y;

  void prepare(IntKind kind, Shape shape, int most_tokens);
  double microseconds(const IntCall& call, const IntPlan& plan);
  void run(IntKind kind, Shape shape, int n_tokens, int planes, bool sweep);
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
    w.kind = kind, w.n_out = shape.n_out, w.n_in = shape.n_in;
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
  stream.synchronize();
}

double Bench::microseconds(const IntCall& call, const IntPlan& plan) {
  device_int_gemv(stream, copies[0], call, plan, scratch);  // allocates
  const int n_launches = std::max<int>(int(copies.size()), 20);
  const gpu::Graph graph(stream, [&] {
    for (int i = 0; i < n_launches; ++i)
      device_int_gemv(stream, copies[size_t(i) % copies.size()], call, plan, scratch);
  });
  const gpu::Event start, end;
  std::vector<double> times;
  for (int repeat = 0; repeat < 7; ++repeat) {
    start.record(stream);
    graph.launch(stream);
    end.record(stream);
    end.synchronize();
    times.push_back(end.microseconds_since(start) / n_launches);
  }
  std::sort(times.begin() + 1, times.end());  // the first warms up
  return times[4];
}

void print(IntKind kind, Shape shape, int n_tokens, int planes, const char* what, const IntPlan& p, int64_t bytes,
           double us) {
  fmt::print(
      "{:8} {:6} x {:5}  B {:2} planes {}  {:5}  {:7.2f} us  {:5.1f} %   eights {} warps {:2} rows {} depth {:2} "
      "splits {:2} blocks {:3} {}\n",
      kind == IntKind::ternary ? "ternary" : "int4", shape.n_out, shape.n_in, n_tokens, planes, what, us,
      100 * double(bytes) / kReadBandwidth / (us * 1e-6), p.tiles_of_8, p.warps, p.row_warps, p.depth, p.splits,
      p.blocks, p.quantize_inside ? "inside" : "before");
  std::fflush(stdout);
}

void Bench::run(IntKind kind, Shape shape, int n_tokens, int planes, bool sweep) {
  const IntWeights& w = copies[0];
  const IntCall call = {
      .n_tokens = n_tokens, .x = x.as<float>(), .planes = planes, .y = y.as<float>(), .overlap = true};
  const IntPlan chosen = plan_int_gemv(kind, w.n_row_tiles(), w.n_in, n_tokens, planes, false, device);
  print(kind, shape, n_tokens, planes, "plan", chosen, w.bytes(), microseconds(call, chosen));
  if (!sweep) return;
  struct Row {
    double us;
    IntPlan plan;
  };
  std::vector<Row> rows;
  IntPlan p = chosen;
  for (const int splits : {1, 2, 4, 8, 16})
    for (const int row_warps : {1, 2, 4, 8})
      for (const int k_warps : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16})
        for (const int depth : kIntDepths)
          for (const int per_processor : {1, 2})
            for (const bool inside : {true, false}) {
              const int64_t part = (w.n_groups() + splits - 1) / splits;
              if ((w.n_groups() + part - 1) / part != splits) continue;
              p.splits = splits, p.row_warps = row_warps, p.warps = row_warps * k_warps, p.depth = depth;
              p.quantize_inside = inside;
              if (p.warps > kIntMostWarps || p.warps * per_processor < 8 || k_warps > part) continue;
              const int64_t units = (w.n_row_tiles() + row_warps - 1) / row_warps * splits;
              p.blocks = int(std::min<int64_t>(units, device.n_processors * per_processor / splits * splits));
              if (p.blocks == 0 || (per_processor == 2 && p.blocks <= device.n_processors)) continue;
              if (int_gemv_shared_bytes(kind, p, w.n_in, n_tokens, planes) >
                  device.shared_bytes / per_processor - 1024 * (per_processor - 1))
                continue;
              rows.push_back({microseconds(call, p), p});
            }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.us < b.us; });
  for (size_t i = 0; i < std::min<size_t>(5, rows.size()); ++i)
    print(kind, shape, n_tokens, planes, "best", rows[i].plan, w.bytes(), rows[i].us);
}

int run(std::span<char*> arguments) {
  bool sweep = false;
  std::vector<IntKind> kinds = {IntKind::int4_g128, IntKind::ternary};
  std::vector<Shape> shapes;
  std::vector<int> batches;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view a = arguments[i];
    long long n_out = 0, n_in = 0;
    if (a == "sweep" || a == "plan") sweep = a == "sweep";
    else if (a == "int4") kinds = {IntKind::int4_g128};
    else if (a == "ternary") kinds = {IntKind::ternary};
    else if (a == "both") continue;
    else if (a == "-b")
      while (i + 1 < arguments.size()) batches.push_back(std::atoi(arguments[++i]));
    else if (std::sscanf(arguments[i], "%lldx%lld", &n_out, &n_in) == 2) shapes.push_back({n_out, n_in});
    else return fmt::print(stderr, "int_gemv_bench: {}?\n", a), 2;
  }
  if (shapes.empty())
    shapes = {{1536, 1536}, {2048, 1536}, {8960, 1536},  {17920, 1536}, {1536, 8960},  {2560, 2560}, {13824, 2560},
              {2560, 6912}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {57344, 8192}, {8192, 28672}};
  if (batches.empty()) batches = {1, 2, 4, 8, 16, 32, 64};

  const gpu::DeviceReport report = gpu::query_devices();
  if (report.devices.empty()) return fmt::print(stderr, "int_gemv_bench: {}\n", report.why_none), 6;
  gpu::use_device(0);
  Bench bench;
  bench.device.n_processors = report.devices[0].n_processors;
  bench.l2_bytes = int64_t(report.devices[0].l2_bytes);
  for (const IntKind kind : kinds)
    for (const Shape& shape : shapes) {
      bench.prepare(kind, shape, *std::max_element(batches.begin(), batches.end()));
      for (const int planes : {1, 2})
        for (const int n_tokens : batches)
          if (n_tokens * planes <= kIntColumns && (planes == 1 || kind == IntKind::int4_g128))
            bench.run(kind, shape, n_tokens, planes, sweep);
    }
  return 0;
}

}  // namespace
}  // namespace ridge

int main(int argc, char** argv) {
  try {
    return ridge::run(std::span(argv + 1, size_t(argc - 1)));
  } catch (const ridge::Error& error) {
    fmt::print(stderr, "int_gemv_bench: {}\n", error.what());
    return int(error.kind());
  }
}
