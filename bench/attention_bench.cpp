// Decode attention on a device over caches in tiles: time of the plan that is chosen, and of others beside it.
//
//   attention_bench [plan | sweep] [K/V ...] [heads/kv_heads ...] [-s positions ...] [-n sequences ...] [-d head_dim]
//                   [-w window]
//
// K, V: f16 bf16 q8_0 i8r q4_0 rotor-4 rotor-3. The newest `window` positions lie in exact tiles. Caches are rotated
// through copies, together four times the L2, in a graph of launches; a row is the median of repeated graphs, per
// launch. Percent is of the read bandwidth measured on an H200, 4563 GB/s. Correctness is tests/gpu's job.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "gpu/graph.h"
#include "op/attn/decode_cuda.h"
#include "program.h"

namespace ridge {
namespace {

constexpr double kReadBandwidth = 4563e9;
constexpr std::pair<std::string_view, TileKind> kKinds[] = {
    {"f16", TileKind::f16}, {"bf16", TileKind::bf16},      {"q8_0", TileKind::int8_blocks}, {"i8r", TileKind::int8_row},
    {"q4_0", TileKind::q4}, {"rotor-4", TileKind::rotor4}, {"rotor-3", TileKind::rotor3}};

std::optional<TileKind> kind_of(std::string_view name) {
  for (const auto& [known, kind] : kKinds)
    if (known == name) return kind;
  return std::nullopt;
}
std::string_view name_of(TileKind kind) {
  for (const auto& [name, known] : kKinds)
    if (known == kind) return name;
  return "?";
}

struct Pair {
  TileKind k, v;
};
struct Heads {
  int n, n_kv;
};

/// Tiles of random codes: halves below 2, scales of 1/16.
void fill(const gpu::Stream& stream, TileKind kind, int head_dim, std::byte* to, int64_t bytes) {
  const TileShape shape(kind, head_dim);
  Rng rng(1);
  std::vector<uint8_t> tiles(size_t(61 * shape.bytes));
  for (size_t i = 0; i < tiles.size(); ++i) {
    tiles[i] = uint8_t(rng.next() >> 24);
    if (shape.bits == 16 && i % 2) tiles[i] &= 0xBF;
    if (int(i % size_t(shape.bytes)) >= shape.code_bytes) tiles[i] = i % 2 ? 0x2C : 0;
  }
  for (int64_t at = 0; at < bytes; at += int64_t(tiles.size()))
    gpu::upload(stream, to + at, tiles.data(), std::min(int64_t(tiles.size()), bytes - at));
}

struct Bench {
  gpu::Stream stream;
  int64_t l2_bytes = 0;
  int n_processors = 0, head_dim = 128, window = 0;
  gpu::Buffer k, v, k_ring, v_ring, q, out, keys, scratch;
  int64_t k_bytes = 0, v_bytes = 0;  // of one copy
  int n_copies = 0;
  TileAttn call;

  void prepare(Pair pair, Heads heads, int n_keys, int n_seq);
  double microseconds(const TileAttnPlan& plan);
  void run(Pair pair, Heads heads, int n_keys, int n_seq, bool sweep);
};

void Bench::prepare(Pair pair, Heads heads, int n_keys, int n_seq) {
  const int64_t lists = int64_t(n_seq) * heads.n_kv, tiles = (n_keys + kTilePositions - 1) / kTilePositions;
  const int ring_tiles = window > 0 ? window / kTilePositions + 1 : 0;
  const auto side = [&](TileKind kind, gpu::Buffer& coded, gpu::Buffer& ring, int64_t& bytes) {
    const int64_t tile = TileShape(kind, head_dim).bytes;
    bytes = lists * tiles * tile;
    TileSide s;
    s.kind = kind;
    s.head_stride = tiles * tile, s.seq_stride = heads.n_kv * s.head_stride;
    if (window > 0) {
      ring = gpu::Buffer(lists * ring_tiles * TileShape(TileKind::f16, head_dim).bytes);
      fill(stream, TileKind::f16, head_dim, ring.as<std::byte>(), ring.bytes());
      s.ring = ring.as<std::byte>(), s.ring_tiles = ring_tiles;
      s.retention = {.window = window, .tile = kTilePositions, .calibration = 0};
    }
    coded = {};
    return s;
  };
  call = {};
  call.k = side(pair.k, k, k_ring, k_bytes);
  call.v = side(pair.v, v, v_ring, v_bytes);
  n_copies = int(std::clamp<int64_t>(4 * l2_bytes / (k_bytes + v_bytes) + 1, 2, 400));
  k = gpu::Buffer(n_copies * k_bytes);
  v = gpu::Buffer(n_copies * v_bytes);
  fill(stream, pair.k, head_dim, k.as<std::byte>(), k.bytes());
  fill(stream, pair.v, head_dim, v.as<std::byte>(), v.bytes());
  std::vector<float> queries(size_t(n_seq) * size_t(heads.n * head_dim));
  Rng rng(2);
  for (float& x : queries) x = float(rng.normal());
  q = gpu::to_device(stream, std::span<const float>(queries));
  out = gpu::Buffer(q.bytes());
  const std::vector<int32_t> lengths(size_t(n_seq), n_keys);
  keys = gpu::to_device(stream, std::span<const int32_t>(lengths));
  call.n_seq = n_seq, call.n_heads = heads.n, call.n_kv_heads = heads.n_kv, call.head_dim = head_dim;
  call.scale = 1 / std::sqrt(float(head_dim));
  call.n_keys = keys.as<int32_t>(), call.q = q.as<float>(), call.out = out.as<float>();
  scratch = gpu::Buffer(tile_attn_scratch_bytes(n_seq, heads.n, heads.n_kv, head_dim, 4 * n_processors));
  call.scratch = scratch.as<std::byte>();
  stream.synchronize();
}

double Bench::microseconds(const TileAttnPlan& plan) {
  const int n_launches = std::max(n_copies, 20);
  const gpu::Graph graph(stream, [&] {
    for (int i = 0; i < n_launches; ++i) {
      call.k.coded = k.as<std::byte>() + i % n_copies * k_bytes;
      call.v.coded = v.as<std::byte>() + i % n_copies * v_bytes;
      tile_attn(stream, call, plan);
    }
  });
  return median_microseconds(stream, 7, [&] { graph.launch(stream); }) / n_launches;
}

void Bench::run(Pair pair, Heads heads, int n_keys, int n_seq, bool sweep) {
  const auto print = [&](const char* what, const TileAttnPlan& p, double us) {
    fmt::print(
        "{:>7}/{:<7} {:2}/{:<2} d {:3} {} x {:6}  {:5} {:8.2f} us {:5.1f} %  warps {:2} stages {} blocks {:3} "
        "least {:2}{}\n",
        name_of(pair.k), name_of(pair.v), heads.n, heads.n_kv, head_dim, n_seq, n_keys, what, us,
        100 * double(k_bytes + v_bytes) / kReadBandwidth / (us * 1e-6), p.warps, p.stages, p.blocks, p.least_tiles,
        p.overlap ? " overlap" : "");
    std::fflush(stdout);
  };
  for (const bool overlap : {false, true}) {
    const TileAttnPlan plan = {.overlap = overlap};
    print("plan", plan, microseconds(plan));
  }
  if (!sweep) return;
  struct Row {
    double us;
    TileAttnPlan plan;
  };
  std::vector<Row> rows;
  for (const int warps : {4, 6, 8, 12})
    for (const int stages : {2, 3, 4})
      for (const int blocks : {1, 2})
        for (const int least : {0, 1, 2, 4, 8}) {
          if (least > 0 && int64_t(n_seq) * heads.n_kv * n_keys / kTilePositions > 8 * n_processors) continue;
          const TileAttnPlan p = {
              .blocks = blocks * n_processors, .least_tiles = least, .warps = warps, .stages = stages};
          if (!tile_attn_fits(pair.k, pair.v, head_dim, p, blocks)) continue;
          rows.push_back({microseconds(p), p});
        }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.us < b.us; });
  for (size_t i = 0; i < std::min<size_t>(6, rows.size()); ++i) print("best", rows[i].plan, rows[i].us);
}

int run(std::span<char*> arguments) {
  bool sweep = false;
  std::vector<Pair> pairs;
  std::vector<Heads> all_heads;
  std::vector<int> lengths, sequences, dims, windows;
  std::vector<int>* numbers = nullptr;
  for (char* argument : arguments) {
    const std::string_view a = argument;
    const size_t slash = a.find('/');
    const std::string_view left = a.substr(0, slash), right = slash == a.npos ? left : a.substr(slash + 1);
    int n = 0, n_kv = 0;
    if (a == "sweep" || a == "plan") sweep = a == "sweep";
    else if (a == "-s") numbers = &lengths;
    else if (a == "-n") numbers = &sequences;
    else if (a == "-d") numbers = &dims;
    else if (a == "-w") numbers = &windows;
    else if (kind_of(left) && kind_of(right)) pairs.push_back({*kind_of(left), *kind_of(right)});
    else if (std::sscanf(argument, "%d/%d", &n, &n_kv) == 2) all_heads.push_back({n, n_kv});
    else if (numbers) numbers->push_back(std::atoi(argument));
    else return fmt::print(stderr, "attention_bench: {}?\n", argument), 2;
  }
  if (pairs.empty())
    pairs = {{TileKind::f16, TileKind::f16},
             {TileKind::int8_blocks, TileKind::int8_blocks},
             {TileKind::int8_blocks, TileKind::q4},
             {TileKind::rotor3, TileKind::rotor3}};
  if (all_heads.empty()) all_heads = {{20, 5}, {64, 8}, {12, 2}};
  if (lengths.empty()) lengths = {512, 4096, 8192, 32768, 131072};
  if (sequences.empty()) sequences = {1};

  const gpu::Device device = use_first_device();
  Bench bench;
  bench.n_processors = device.n_processors;
  bench.l2_bytes = int64_t(device.l2_bytes);
  if (!dims.empty()) bench.head_dim = dims[0];
  if (!windows.empty()) bench.window = windows[0];
  for (const Heads& heads : all_heads)
    for (const int n_seq : sequences)
      for (const int length : lengths)
        for (const Pair& pair : pairs) {
          bench.prepare(pair, heads, length, n_seq);
          bench.run(pair, heads, length, n_seq, sweep);
        }
  return 0;
}

}  // namespace
}  // namespace ridge

int main(int argc, char** argv) { return ridge::run_program("attention_bench", ridge::run, argc, argv); }
