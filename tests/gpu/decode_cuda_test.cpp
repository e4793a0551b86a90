// Decode attention over tiles against softmax in double over the values the tiles stand for.
#include "op/attn/decode_cuda.h"

#include <bit>
#include <cmath>
#include <numeric>

#include "base/f16.h"
#include "format/kv_rotor.h"
#include "gpu/device_data.h"
#include "model/kv_cache.h"
#include "op/cache/kv_rows_cuda.h"

namespace ridge {
namespace {

constexpr TileKind kKinds[] = {TileKind::f16, TileKind::bf16,   TileKind::int8_blocks, TileKind::int8_row,
                               TileKind::q4,  TileKind::rotor4, TileKind::rotor3};

/// What a code and its scale stand for.
double value_of(TileKind kind, uint32_t code, double scale) {
  switch (kind) {
    case TileKind::f16: return f16_to_f32(uint16_t(code));
    case TileKind::bf16: return bf16_to_f32(uint16_t(code));
    case TileKind::int8_blocks:
    case TileKind::int8_row: return int8_t(code) * scale;
    case TileKind::q4: return (int(code) - 8) * scale;
    case TileKind::rotor4: return double(tile_level4(int(code))) * scale;
    case TileKind::rotor3: return double(tile_level3(int(code))) * scale;
  }
  return 0;
}

uint32_t random_code(TileKind kind, Rng& rng) {
  if (kind == TileKind::f16) return f32_to_f16(float(rng.normal()));
  if (kind == TileKind::bf16) return f32_to_bf16(float(rng.normal()));
  const TileShape shape(kind, 64);
  const uint32_t code = uint32_t(rng.next() >> 40) & ((1u << shape.bits) - 1);
  return shape.bits == 8 && code == 128 ? 0 : code;
}

/// Tiles on the host: n_lists of n_tiles, filled with random codes. value(list, position, channel) is what they hold.
struct HostTiles {
  HostTiles(uint64_t seed, TileKind kind_, bool is_k, int head_dim, int n_lists, int n_tiles_)
      : kind(kind_), dim(head_dim), n_tiles(n_tiles_), shape(kind_, head_dim) {
    Rng rng(seed);
    bytes.resize(size_t(n_lists) * size_t(n_tiles) * size_t(shape.bytes));
    values.resize(size_t(n_lists) * size_t(n_tiles) * size_t(kTilePositions * dim));
    for (int i = 0; i < n_lists * n_tiles; ++i) {
      std::byte* const tile = bytes.data() + size_t(i) * size_t(shape.bytes);
      const auto load = [&](int at) {
        uint32_t word;
        std::memcpy(&word, tile + at, 4);
        return word;
      };
      const auto store = [&](int at, uint32_t word) { std::memcpy(tile + at, &word, 4); };
      for (int p = 0; p < kTilePositions; ++p) {
        // Rows of very different sizes: what is wrong with one place shows.
        const double sign = kind == TileKind::q4 && rng.next() >> 63 ? -1 : 1;  // its scales may be negative
        const double size = sign * std::exp(rng.normal()) /
                            (shape.bits == 8                           ? 60
                             : shape.bits == 4 && kind == TileKind::q4 ? 4
                                                                       : 1);
        for (int d = 0; d < dim; ++d) {
          const uint16_t scale = f32_to_f16(float(size * (1 + 0.1 * (d / 32))));
          if (shape.scale_blocks > 0) {
            const int block = shape.scale_blocks > 1 ? d / 32 : 0;
            if (shape.scale_blocks > 1 || d == 0) std::memcpy(tile + shape.scale_at(block, p), &scale, 2);
          }
          uint16_t kept = scale;
          if (shape.scale_blocks == 1) std::memcpy(&kept, tile + shape.scale_at(0, p), 2);
          const uint32_t code = random_code(kind, rng);
          set_tile_code(kind, shape, tile_place(is_k, p, d), code, load, store);
          values[(size_t(i) * kTilePositions + size_t(p)) * size_t(dim) + size_t(d)] =
              value_of(kind, code, f16_to_f32(kept));
        }
      }
    }
  }
  const double* row(int list, int position) const {
    return &values[(size_t(list) * size_t(n_tiles) * kTilePositions + size_t(position)) * size_t(dim)];
  }
  TileKind kind;
  int dim, n_tiles;
  TileShape shape;
  std::vector<std::byte> bytes;
  std::vector<double> values;
};

TEST(KvTile, EveryElementHasItsOwnPlace) {
  for (const TileKind kind : kKinds)
    for (const int dim : {64, 128, 256})
      for (const bool is_k : {true, false}) {
        const TileShape shape(kind, dim);
        // Codes made of their place survive all others being written.
        std::vector<std::byte> tile(size_t(shape.code_bytes), std::byte(0xFF));
        const auto load = [&](int at) {
          uint32_t word;
          std::memcpy(&word, &tile[size_t(at)], 4);
          return word;
        };
        const auto store = [&](int at, uint32_t word) { std::memcpy(&tile[size_t(at)], &word, 4); };
        const uint32_t mask = (1u << shape.bits) - 1;
        const auto code = [&](int p, int d) { return uint32_t(p * 2654435761u + unsigned(d) * 40503u) >> 7 & mask; };
        for (int p = 0; p < kTilePositions; ++p)
          for (int d = 0; d < dim; ++d) set_tile_code(kind, shape, tile_place(is_k, p, d), code(p, d), load, store);
        for (int p = 0; p < kTilePositions; ++p)
          for (int d = 0; d < dim; ++d)
            ASSERT_EQ(tile_code(kind, shape, tile_place(is_k, p, d), load), code(p, d))
                << int(kind) << " " << p << " " << d;
        EXPECT_EQ(shape.code_bytes, kTilePositions * dim * shape.bits / 8);
        std::vector<int> scales(size_t(shape.scale_blocks * kTilePositions));
        for (int s = 0; s < shape.scale_blocks; ++s)
          for (int p = 0; p < kTilePositions; ++p) ++scales[size_t(shape.scale_at(s, p) - shape.code_bytes) / 2];
        for (const int count : scales) EXPECT_EQ(count, 1);
      }
}

TEST(KvTile, LevelsAreNearTheFormats) {
  for (int code = 0; code < 8; ++code)
    EXPECT_NEAR(tile_level3(code), LloydMax<3>::kLevels[size_t(code)],
                0.0024 * std::abs(LloydMax<3>::kLevels[size_t(code)]));
  double error = 0;
  for (int code = 0; code < 16; ++code) {
    const double level = LloydMax<4>::kLevels[size_t(code)];
    EXPECT_NEAR(tile_level4(code), level, 0.024 * std::abs(level));
    error += (tile_level4(code) - level) * (tile_level4(code) - level) / 16;
  }
  EXPECT_LT(error, 0.009501 / 400);
}

struct Case {
  TileKind k = TileKind::f16, v = TileKind::f16;
  int head_dim = 128, n_heads = 4, n_kv_heads = 2;
  std::vector<int> lengths = {70};
  KvRetention k_retention, v_retention;
  TileKind k_recent = TileKind::f16, v_recent = TileKind::f16;
  int k_sinks = 0, v_sinks = 0;
  Rotation rotation = Rotation::none;
  bool centre = false, paged = false;
};

class DecodeAttn : public OnDevice {
 protected:
  void check(const Case& c, std::span<const int> block_counts) {
    const int n_seq = int(c.lengths.size()), lists = n_seq * c.n_kv_heads, dim = c.head_dim;
    const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    const int n_tiles = (longest + 2 * kTilePositions - 1) / (2 * kTilePositions) * 2;
    struct Side {
      HostTiles coded, ring, sinks;
      KvRetention retention;
      int n_sinks;
      const double* row(int list, int position, int n) const {
        if (position < n_sinks) return sinks.row(list, position);
        if (position < retention.coded_end(n)) return coded.row(list, position);
        return ring.row(list, position % (ring.n_tiles * kTilePositions));
      }
    };
    const int ring_tiles = 7;
    const Side k{{1, c.k, true, dim, lists, n_tiles},
                 {2, c.k_recent, true, dim, lists, ring_tiles},
                 {3, TileKind::f16, true, dim, lists, 1},
                 c.k_retention,
                 c.k_sinks};
    const Side v{{4, c.v, false, dim, lists, n_tiles},
                 {5, c.v_recent, false, dim, lists, ring_tiles},
                 {6, TileKind::f16, false, dim, lists, 1},
                 c.v_retention,
                 c.v_sinks};
    const auto q = normal_floats(7, int64_t(n_seq) * c.n_heads * dim, 1.5);
    const auto centre = normal_floats(8, int64_t(lists) * dim);
    const float scale = 1 / std::sqrt(float(dim));

    const RowRotation k_rotation(c.rotation, 1, dim), v_rotation(c.rotation, 2, dim);
    const gpu::Buffer k_table = gpu::to_device(stream(), k_rotation.table()),
                      v_table = gpu::to_device(stream(), v_rotation.table());

    // The page table scatters pages; without one lists lie one behind another.
    const int pages_per_seq = n_tiles / kPageTiles;
    std::vector<int32_t> pages(size_t(n_seq * pages_per_seq));
    std::iota(pages.begin(), pages.end(), 0);
    if (c.paged)
      for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[(i * 7919) % i]);
    const auto laid_out = [&](const HostTiles& tiles) {
      if (!c.paged) return tiles.bytes;
      std::vector<std::byte> out(tiles.bytes.size());
      const auto bytes = size_t(tiles.shape.bytes);
      for (int s = 0; s < n_seq; ++s)
        for (int h = 0; h < c.n_kv_heads; ++h)
          for (int t = 0; t < n_tiles; ++t) {
            const auto page = size_t(pages[size_t(s * pages_per_seq + t / kPageTiles)]);
            std::memcpy(&out[((page * size_t(c.n_kv_heads) + size_t(h)) * kPageTiles + size_t(t % kPageTiles)) * bytes],
                        &tiles.bytes[size_t((s * c.n_kv_heads + h) * n_tiles + t) * bytes], bytes);
          }
      return out;
    };
    const gpu::Buffer kc = up(laid_out(k.coded)), kr = up(k.ring.bytes), ks = up(k.sinks.bytes);
    const gpu::Buffer vc = up(laid_out(v.coded)), vr = up(v.ring.bytes), vs = up(v.sinks.bytes);
    const gpu::Buffer dq = up(q), dcentre = up(centre), dpages = up(pages), dlengths = up(c.lengths);
    const auto side = [&](const Side& from, const gpu::Buffer& coded, const gpu::Buffer& ring, const gpu::Buffer& sinks,
                          const RowRotation& rotation, const gpu::Buffer& table) {
      const int64_t head_stride = int64_t(c.paged ? kPageTiles : n_tiles) * from.coded.shape.bytes;
      TileSide s{.kind = from.coded.kind,
                 .coded = coded.as<std::byte>(),
                 .seq_stride = head_stride * c.n_kv_heads,
                 .head_stride = head_stride,
                 .recent = from.ring.kind,
                 .ring = ring.as<std::byte>(),
                 .ring_tiles = ring_tiles,
                 .sinks = sinks.as<std::byte>(),
                 .n_sinks = from.n_sinks,
                 .retention = from.retention,
                 .rotation = rotation.view()};
      s.rotation.table = table.as<float>();
      return s;
    };
    const int64_t n_out = int64_t(q.size());

    std::vector<float> first;
    for (const int blocks : block_counts) {
      const gpu::Buffer scratch(tile_attn_scratch_bytes(n_seq, c.n_heads, c.n_kv_heads, dim, blocks));
      TileAttn a{.n_seq = n_seq,
                 .n_heads = c.n_heads,
                 .n_kv_heads = c.n_kv_heads,
                 .head_dim = dim,
                 .scale = scale,
                 .n_keys = dlengths.as<int32_t>(),
                 .pages = c.paged ? dpages.as<int32_t>() : nullptr,
                 .pages_per_seq = pages_per_seq,
                 .q = dq.as<float>(),
                 .k = side(k, kc, kr, ks, k_rotation, k_table),
                 .v = side(v, vc, vr, vs, v_rotation, v_table),
                 .scratch = scratch.as<std::byte>()};
      if (c.centre) a.v.centre = dcentre.as<float>();
      // Twice: the second launch finds the scratch of the first.
      std::vector<std::vector<float>> outs;
      for (int repeat = 0; repeat < 2; ++repeat) {
        const gpu::Buffer guarded = up(std::vector<float>(size_t(n_out + 2 * 64), 12345.0f));
        a.out = guarded.as<float>() + 64;
        tile_attn(stream(), a, {.blocks = blocks});
        auto all = down(guarded.as<float>(), n_out + 2 * 64);
        for (int i = 0; i < 64; ++i) ASSERT_TRUE(all[size_t(i)] == 12345.0f && all[size_t(n_out + 64 + i)] == 12345.0f);
        outs.emplace_back(all.begin() + 64, all.end() - 64);
      }
      ASSERT_EQ(outs[0], outs[1]) << "not the same bits, " << blocks << " blocks";
      first = outs[0];

      for (int s = 0; s < n_seq; ++s)
        for (int h = 0; h < c.n_heads; ++h) {
          const int n = c.lengths[size_t(s)], list = s * c.n_kv_heads + h / (c.n_heads / c.n_kv_heads);
          const size_t at = size_t((s * c.n_heads + h) * dim);
          std::vector<float> query(q.begin() + int64_t(at), q.begin() + int64_t(at) + dim);
          k_rotation.forward(query.data());
          double q_top = 0;
          for (const float x : query) q_top = std::max(q_top, double(std::abs(x)));
          // A score is off by half a step of the 15-bit query in every channel, and by float sums.
          std::vector<double> weights(static_cast<size_t>(n)), off(static_cast<size_t>(n));
          double top = -1e300, total = 0;
          for (int p = 0; p < n; ++p) {
            const double* row = k.row(list, p, n);
            double dot = 0, size = 0;
            for (int d = 0; d < dim; ++d) dot += query[size_t(d)] * row[d], size += std::abs(row[d]);
            weights[size_t(p)] = dot * scale;
            off[size_t(p)] = size * q_top * scale * (0x1p-15 + 16 * 0x1p-23);
            top = std::max(top, weights[size_t(p)]);
          }
          for (double& w : weights) total += w = std::exp(w - top);
          std::vector<float> expected(size_t(dim), 0.0f);
          double bound2 = 0;
          std::vector<double> bound(static_cast<size_t>(dim));
          for (int d = 0; d < dim; ++d) {
            double sum = 0, far = 0, coarse = 0, largest = 0;
            for (int p = 0; p < n; ++p) sum += weights[size_t(p)] / total * v.row(list, p, n)[d];
            for (int p = 0; p < n; ++p) {
              const double x = v.row(list, p, n)[d], w = weights[size_t(p)] / total;
              far += w * std::expm1(off[size_t(p)]) * std::abs(x - sum);
              // Weights of a tile have 14 bits under its largest, which counts the row's size.
              double size = 0;
              for (int e = 0; e < dim; ++e) size = std::max(size, std::abs(v.row(list, p, n)[e]));
              largest = std::max(largest, w * size);
              if (p % kTilePositions == kTilePositions - 1 || p == n - 1)
                coarse += kTilePositions * largest * 0x1p-15, largest = 0;
            }
            expected[size_t(d)] = float(sum) + (c.centre ? centre[size_t(list * dim + d)] : 0.0f);
            bound[size_t(d)] = far + coarse + 1e-5 * (1 + std::abs(sum));
            bound2 += bound[size_t(d)] * bound[size_t(d)];
          }
          v_rotation.backward(expected.data());
          if (c.rotation != Rotation::none) std::fill(bound.begin(), bound.end(), std::sqrt(bound2));
          for (int d = 0; d < dim; ++d)
            ASSERT_NEAR(first[at + size_t(d)], expected[size_t(d)], bound[size_t(d)])
                << "kinds " << int(c.k) << "/" << int(c.v) << ", head_dim " << dim << ", sequence " << s
                << " of length " << n << ", head " << h << ", channel " << d << ", " << blocks << " blocks";
        }
    }
  }
};

TEST_F(DecodeAttn, EveryPairOfKinds) {
  for (const TileKind k : kKinds)
    for (const TileKind v : kKinds) check({.k = k, .v = v}, std::array{3});
}

TEST_F(DecodeAttn, EveryHeadDimAndGroup) {
  for (const TileKind kind : kKinds)
    for (const int dim : {64, 256})
      check({.k = kind, .v = kind, .head_dim = dim, .n_heads = 3, .n_kv_heads = 1}, std::array{2});
  for (const auto& [n_heads, n_kv_heads] : {std::pair{5, 5}, {8, 1}, {12, 1}, {18, 2}})
    check({.k = TileKind::rotor3, .v = TileKind::int8_blocks, .n_heads = n_heads, .n_kv_heads = n_kv_heads},
          std::array{3});
}

TEST_F(DecodeAttn, LengthsAndBlocks) {
  for (const int n : {1, 31, 32, 33, 64, 321})
    check({.k = TileKind::rotor3, .v = TileKind::rotor3, .lengths = {n}}, std::array{1, 2, 4, 7, 23});
  // More tiles than a block's rings hold.
  check({.k = TileKind::f16, .v = TileKind::f16, .n_heads = 2, .n_kv_heads = 1, .lengths = {1500}}, std::array{1, 3});
  check({.k = TileKind::int8_blocks, .v = TileKind::q4, .n_heads = 2, .n_kv_heads = 1, .lengths = {1700}},
        std::array{1});
}

TEST_F(DecodeAttn, WindowsAndSinks) {
  const KvRetention window{96, 32, 64}, plain;
  for (const int n : {1, 4, 5, 40, 96, 127, 128, 129, 193}) {
    Case c{.k = TileKind::rotor3, .v = TileKind::rotor3, .lengths = {n}};
    c.k_retention = c.v_retention = window;
    c.k_recent = c.v_recent = TileKind::int8_row;
    c.k_sinks = c.v_sinks = 4;
    check(c, std::array{3});
    c.v = TileKind::f16;  // a side without policy
    c.v_retention = plain;
    c.v_sinks = 0;
    check(c, std::array{2});
    c.v_retention = {32, 32, 0};
    c.k_recent = TileKind::f16;
    c.k_sinks = 0;
    check(c, std::array{2});
  }
}

TEST_F(DecodeAttn, SequencesOfDifferentLengthsOnPages) {
  for (const bool paged : {false, true}) {
    Case c{.k = TileKind::int8_blocks, .v = TileKind::rotor4, .lengths = {130, 1, 64, 257, 33}, .paged = paged};
    check(c, std::array{1, 4, 132});
    c.k = c.v = TileKind::rotor3;
    c.k_retention = c.v_retention = {96, 32, 64};
    c.k_recent = c.v_recent = TileKind::int8_row;
    c.k_sinks = c.v_sinks = 4;
    check(c, std::array{4});
  }
}

TEST_F(DecodeAttn, TurnsQueriesAndOutputs) {
  for (const int dim : {64, 128, 256})
    for (const Rotation rotation : {Rotation::hadamard, Rotation::planar}) {
      Case c{.k = TileKind::rotor3, .v = TileKind::rotor4, .head_dim = dim, .rotation = rotation, .centre = true};
      check(c, std::array{3});
    }
}

/// One scratch for any number of sequences: what a launch leaves is as the next one needs it.
TEST_F(DecodeAttn, ScratchOfMoreSequences) {
  constexpr int kDim = 64, kMost = 40, kBlocks = 7, kHeads = 8;
  const int64_t sequence = 4 * TileShape(TileKind::f16, kDim).bytes;
  const gpu::Buffer tiles(kMost * sequence), scratch(tile_attn_scratch_bytes(kMost, kHeads, 1, kDim, kBlocks));
  device_fill_tiles(stream(), TileKind::f16, kDim, kMost * 4, 5, tiles.as<std::byte>());
  const gpu::Buffer q = up(normal_floats(1, kMost * kHeads * kDim)), lengths = up(std::vector<int32_t>(kMost, 128));
  const TileSide side{
      .kind = TileKind::f16, .coded = tiles.as<std::byte>(), .seq_stride = sequence, .head_stride = sequence};
  const auto run = [&](int n_seq, const gpu::Buffer& with) {
    const gpu::Buffer out(4 * n_seq * kHeads * kDim);
    tile_attn(stream(),
              {.n_seq = n_seq,
               .n_heads = kHeads,
               .n_kv_heads = 1,
               .head_dim = kDim,
               .scale = 0.1f,
               .n_keys = lengths.as<int32_t>(),
               .q = q.as<float>(),
               .k = side,
               .v = side,
               .out = out.as<float>(),
               .scratch = with.as<std::byte>()},
              {.blocks = kBlocks});
    return down(out.as<float>(), n_seq * kHeads * kDim);
  };
  for (const int n_seq : {1, kMost, 3, kMost})
    EXPECT_EQ(run(n_seq, scratch), run(n_seq, gpu::Buffer(scratch.bytes()))) << n_seq << " sequences";
}

/// The last of many long sequences, whose tiles begin beyond 2^32 bytes and 2^31 halves, against the same tiles in a
/// small buffer. Only with memory for it.
TEST_F(DecodeAttn, OffsetsBeyond32Bits) {
  if (gpu::free_bytes() < int64_t(12) << 30) GTEST_SKIP() << "needs 12 GiB of device memory";
  constexpr int kDim = 128, kTiles = 4096, kKvHeads = 2, kMany = 5, kHeads = 8;  // 32 MiB a side and head
  const int64_t tile = TileShape(TileKind::f16, kDim).bytes, head = kTiles * tile, sequence = kKvHeads * head;
  const int64_t gap = int64_t(1) << 30;  // between sequences
  const gpu::Buffer k(kMany * (sequence + gap)), v(kMany * (sequence + gap)), few_k(sequence), few_v(sequence);
  const auto at = [&](const gpu::Buffer& buffer) { return buffer.as<std::byte>() + (kMany - 1) * (sequence + gap); };
  for (const gpu::Buffer* small : {&few_k, &few_v})
    device_fill_tiles(stream(), TileKind::f16, kDim, kKvHeads * kTiles, 5, small->as<std::byte>());
  device_fill_tiles(stream(), TileKind::f16, kDim, kKvHeads * kTiles, 5, at(k));
  device_fill_tiles(stream(), TileKind::f16, kDim, kKvHeads * kTiles, 5, at(v));
  const auto q = normal_floats(1, int64_t(kMany) * kHeads * kDim);
  std::vector<int32_t> lengths(kMany, 1);
  lengths.back() = kTiles * kTilePositions - 5;
  const gpu::Buffer dq = up(q), dlengths = up(lengths);
  const auto run = [&](int n_seq, const std::byte* k_tiles, const std::byte* v_tiles, int64_t stride, int first) {
    const int blocks = tile_attn_blocks();
    const gpu::Buffer out(4 * n_seq * kHeads * kDim),
        scratch(tile_attn_scratch_bytes(n_seq, kHeads, kKvHeads, kDim, blocks));
    TileSide side{.kind = TileKind::f16, .seq_stride = stride, .head_stride = head};
    TileAttn a{.n_seq = n_seq,
               .n_heads = kHeads,
               .n_kv_heads = kKvHeads,
               .head_dim = kDim,
               .scale = 0.1f,
               .n_keys = dlengths.as<int32_t>() + first,
               .q = dq.as<float>() + first * kHeads * kDim,
               .k = side,
               .v = side,
               .out = out.as<float>(),
               .scratch = scratch.as<std::byte>()};
    a.k.coded = k_tiles;
    a.v.coded = v_tiles;
    tile_attn(stream(), a, {});
    return down(out.as<float>() + (n_seq - 1) * kHeads * kDim, kHeads * kDim);
  };
  const auto many = run(kMany, k.as<std::byte>(), v.as<std::byte>(), sequence + gap, 0);
  const auto one = run(1, few_k.as<std::byte>(), few_v.as<std::byte>(), sequence, kMany - 1);
  for (size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(many[i], one[i], 1e-4) << i;  // split elsewhere: sums round apart
}

}  // namespace
}  // namespace ridge
