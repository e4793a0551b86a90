// Attention on a device against softmax in double over the values that its tiles stand for.
//
// Tiles are filled with random codes: what is coded, exact or a sink at one position differs everywhere, so that a row
// taken from the wrong place shows.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/f16.h"
#include "format/kv_rotor.h"
#include "gpu/device_data.h"
#include "op/attn/attn_cuda.h"
#include "op/attn/wide_prefill.h"
#include "op/cache/append_cuda.h"
#include "op/cache/layout.h"
#include "op/cache/rotation.h"

namespace ridge::attention_cases {

inline constexpr double kF16Error = 0x1p-11;  // how far rounding to f16 moves a value, relative to it
inline constexpr double kFloor = 0x1p-25;     // and at least, where f16 has no exponent left

enum class Kernel { tiles, prefill, rows, rows_f16 };
inline bool reads_rows(Kernel kernel) { return kernel == Kernel::rows || kernel == Kernel::rows_f16; }
/// Rounds queries, keys, weights and values to f16.
inline bool rounds_to_f16(Kernel kernel) { return kernel == Kernel::prefill || kernel == Kernel::rows_f16; }

/// What a code and its scale stand for: decode attention has integers for the levels of rotor formats, prefill f16.
inline double value_of(TileKind kind, uint32_t code, double scale, Kernel kernel) {
  const auto level = [&](double of_tiles, float exact) {
    return (kernel == Kernel::tiles ? of_tiles : f16_to_f32(f32_to_f16(exact))) * scale;
  };
  switch (kind) {
    case TileKind::rows: break;
    case TileKind::f16: return f16_to_f32(uint16_t(code));
    case TileKind::bf16: return bf16_to_f32(uint16_t(code));
    case TileKind::int8_blocks:
    case TileKind::int8_row: return int8_t(code) * scale;
    case TileKind::q4: return (int(code) - 8) * scale;
    case TileKind::rotor4: return level(tile_level4(int(code)), LloydMax<4>::kLevels[code]);
    case TileKind::rotor3: return level(tile_level3(int(code)), LloydMax<3>::kLevels[code]);
  }
  return 0;
}

inline uint32_t random_code(TileKind kind, int bits, Rng& rng) {
  if (kind == TileKind::f16) return f32_to_f16(float(rng.normal()));
  if (kind == TileKind::bf16) return f32_to_bf16(float(rng.normal()));
  const uint32_t code = uint32_t(rng.next() >> 40) & ((1u << bits) - 1);
  return bits == 8 && code == 128 ? 0 : code;
}

/// Tiles of one part of a side (pages, ring or sinks), and what they hold: values [n_tiles, 32, dim].
struct Region {
  TileKind kind = TileKind::rows;
  int dim = 0;
  std::vector<std::byte> bytes;
  std::vector<double> values;
  std::vector<float> scales;  ///< [n_tiles, 32, dim] of the value's block; 0 where there is none
  gpu::Buffer on_device;

  const double* row(int64_t tile, int p) const { return &values[size_t((tile * kTilePositions + p) * dim)]; }
  const float* scale(int64_t tile, int p) const { return &scales[size_t((tile * kTilePositions + p) * dim)]; }

  void fill_tiles(Rng& rng, KvSide side, int64_t n_tiles, Kernel kernel) {
    const TileShape shape(kind, dim);
    resize(n_tiles, shape.bytes);
    for (int64_t i = 0; i < n_tiles; ++i) {
      std::byte* const tile = bytes.data() + i * shape.bytes;
      const auto load = [&](int at) {
        uint32_t word;
        std::memcpy(&word, tile + at, 4);
        return word;
      };
      const auto store = [&](int at, uint32_t word) { std::memcpy(tile + at, &word, 4); };
      for (int p = 0; p < kTilePositions; ++p) {
        // Rows of very different sizes: what is wrong with one place shows. q4's scales may be negative.
        const double unit = shape.bits == 8 ? 1 / 60. : kind == TileKind::q4 ? (rng.next() >> 63 ? -0.25 : 0.25) : 1;
        const double size = std::exp(rng.normal()) * unit;
        for (int d = 0; d < dim; ++d) {
          const int block = shape.scale_blocks > 1 ? d / 32 : 0;
          const uint16_t half = f32_to_f16(float(size * (1 + 0.1 * block)));
          if (shape.scale_blocks > 0) std::memcpy(tile + shape.scale_at(block, p), &half, 2);
          const uint32_t code = random_code(kind, shape.bits, rng);
          set_tile_code(kind, shape, tile_place(side, p, d), code, load, store);
          const auto at = size_t((i * kTilePositions + p) * dim + d);
          if (shape.scale_blocks > 0) scales[at] = f16_to_f32(half);
          values[at] = value_of(kind, code, f16_to_f32(half), kernel);
        }
      }
    }
  }
  /// Tiles of n_rows rows; tile i is of kv head i / of_head % head_scale.size().
  void fill_rows(Rng& rng, const KvFormat& format, int64_t n_tiles, int n_rows, int of_head,
                 std::span<const float> head_scale) {
    const int64_t row_bytes = format.row_bytes(dim);
    resize(n_tiles, n_rows * row_bytes);
    std::vector<float> row(static_cast<size_t>(dim));
    for (int64_t i = 0; i < n_tiles; ++i)
      for (int p = 0; p < n_rows; ++p) {
        const double size = std::exp(0.5 * rng.normal());
        for (float& x : row) x = float(size * rng.normal());
        std::byte* const to = bytes.data() + (i * n_rows + p) * row_bytes;
        const KvCoding coding{.scale = format.policy.scale,
                              .fixed = head_scale[size_t(i / of_head) % head_scale.size()]};
        format.encode(row.data(), dim, coding, to);
        format.decode(to, dim, coding, row.data());
        std::copy(row.begin(), row.end(), values.begin() + (i * kTilePositions + p) * dim);
      }
  }

 private:
  void resize(int64_t n_tiles, int64_t tile_bytes) {
    bytes.resize(size_t(n_tiles * tile_bytes + 64));  // decoders may read a little more
    values.resize(size_t(n_tiles * kTilePositions * dim));
    scales.resize(values.size());
  }
};

struct Sequence {
  int n_past = 0, n_new = 1;
};

struct Case {
  KvSideConfig k, v;
  int dim = 128, n_kv_heads = 2, group = 2;
  std::vector<Sequence> sequences = {{69, 1}};
  int window = 0;   ///< KvTiles::attention_window
  int n_pairs = 0;  ///< by which a centre of K turns
  bool halves = true;
  bool sink_logits = false;
  int padding = 0;     ///< rows of no sequence behind the others
  bool alone = false;  ///< every row in a block of its own, as recorded steps have it
  int row_parts = 3;   ///< then, of rows_f16_attn
  int slots = 0;       ///< at least: cases with as many have the same caches
  TileAttnPlan plan = {.blocks = 3};
  int prefill_shared_bytes = 227 << 10;             ///< of the device that prefill attention is cut for
  bool by_warpgroups = true;                        ///< where the device has them
  bool turned = true;                               ///< their tiles turned in front
  int prefill_blocks = 1, prefill_least_tiles = 8;  ///< PrefillPlan's
};

inline KvSideConfig side(const char* name, KvPolicy policy = {}) {
  KvSideConfig config{find_kv_format(name).or_throw(), policy};
  if (policy.scale == KvScale::none) config.policy.scale = config.format->policy.scale;
  return config;
}

/// One side of a layer: its tiles on the device and what they hold.
struct Side {
  KvTiles tiles;
  Region coded, ring, sinks;
  std::vector<float> centre, head_scale, angles;
  CentreTurn turn;           // on the host
  gpu::Buffer on_device[4];  // centre, head_scale, rotation's table, angles
  std::unique_ptr<RowRotation> rotation;

  Side(const gpu::Stream& stream, const Case& c, KvSide side, Kernel kernel, int n_pages, int n_slots) {
    KvLayerConfig layer{c.k, c.v, c.n_kv_heads, c.dim, c.window};
    layer.rope.halves = c.halves;
    for (int i = 0; i < c.n_pairs; ++i) layer.rope.frequency.push_back(std::pow(1e-4, double(i) / c.n_pairs));
    const KvLayout layout(layer, side, !reads_rows(kernel));
    tiles = layout.tiles;
    Rng rng(side == KvSide::k ? 1 : 2);
    head_scale = normal_floats(rng.next(), tiles.n_kv_heads);
    for (float& scale : head_scale) scale = 1 + 0.3f * std::abs(scale);
    const KvFormat& f16 = *find_kv_format("f16").or_throw();
    const auto fill = [&](Region& region, TileKind kind, const KvFormat& format, int64_t n_heads, int of_head,
                          int rows) {
      region.kind = kind;
      region.dim = c.dim;
      if (kind == TileKind::rows) region.fill_rows(rng, format, n_heads * of_head, rows, of_head, head_scale);
      else region.fill_tiles(rng, side, n_heads * of_head, kernel);
      region.on_device = gpu::to_device(stream, std::span<const std::byte>(region.bytes));
      return region.on_device.as<std::byte>();
    };
    const int64_t heads = tiles.n_kv_heads;
    tiles.pages = fill(coded, tiles.kind, *layout.config.format, n_pages * heads, kPageTiles, kTilePositions);
    if (tiles.ring_tiles > 0)
      tiles.ring =
          fill(ring, tiles.recent_kind, layout.config.recent(), n_slots * heads, tiles.ring_tiles, kTilePositions);
    if (tiles.n_sinks > 0)
      tiles.sinks =
          fill(sinks, reads_rows(kernel) ? TileKind::rows : TileKind::f16, f16, n_slots * heads, 1, tiles.n_sinks);
    if (layout.config.policy.centre) {
      centre = normal_floats(rng.next(), n_slots * heads * c.dim);
      on_device[0] = gpu::to_device(stream, std::span<const float>(centre));
      tiles.centre = on_device[0].as<float>();
    }
    if (layout.config.format->head_scale) {
      std::vector<float> of_slots;
      for (int slot = 0; slot < n_slots; ++slot) of_slots.insert(of_slots.end(), head_scale.begin(), head_scale.end());
      on_device[1] = gpu::to_device(stream, std::span<const float>(of_slots));
      tiles.head_scale = on_device[1].as<float>();
    }
    angles = turn_table(layout.frequency, n_pages * kPageTiles);
    on_device[3] = gpu::to_device(stream, std::span<const float>(angles));
    turn = tiles.turn;
    turn.table = angles.data();
    tiles.turn.table = on_device[3].as<float>();
    rotation = std::make_unique<RowRotation>(layout.config.policy.rotation, 1, c.dim);
    on_device[2] = gpu::to_device(stream, rotation->table());
    tiles.rotation = rotation->view();
    tiles.rotation.table = on_device[2].as<float>();
    stream.synchronize();
  }

  /// What the keys of a tile are stored without, in cache space, as far as it turns.
  std::vector<float> centre_of(int slot, int head, int tile) const {
    std::vector<float> row(static_cast<size_t>(tiles.head_dim));
    if (turn.n_pairs == 0) return row;
    turn.move(turn.tile(tile), of_slot(slot, head), tiles.head_dim, 1, row.data());
    for (int d = 0; d < tiles.head_dim; ++d)
      if (!turn.turns(d)) row[size_t(d)] = 0;
    rotation->forward(row.data());
    return row;
  }
  const float* of_slot(int slot, int head) const {
    return &centre[size_t((int64_t(slot) * tiles.n_kv_heads + head) * tiles.head_dim)];
  }

  struct At {
    const Region* region;
    int64_t tile;
    int p;
  };
  /// The row of a position as a query that sees n positions reads it.
  At at(const StepRow& of, const int32_t* pages, int head, int position, int n) const {
    const int tile = position / kTilePositions, p = position % kTilePositions;
    if (position < tiles.n_sinks) return {&sinks, int64_t(of.slot) * tiles.n_kv_heads + head, position};
    if (position >= tiles.retention.coded_end(n))
      return {&ring, (int64_t(of.ring) * tiles.n_kv_heads + head) * tiles.ring_tiles + tile % tiles.ring_tiles, p};
    return {&coded, (int64_t(pages[tile / kPageTiles]) * tiles.n_kv_heads + head) * kPageTiles + tile % kPageTiles, p};
  }
};

/// Attention of one query in double, and how far a kernel may be from it, element by element (derived in attn_cuda.h's
/// terms).
struct Oracle {
  std::vector<double> out, bound;

  Oracle(Kernel kernel, const float* q, double scale, const Side& k, const Side& v, const StepRow& of,
         const int32_t* pages, int head, int dim, const float* sink)
      : out(size_t(dim)), bound(size_t(dim)) {
    const int n = of.position + 1, first = k.tiles.first_seen(n);
    const auto count = static_cast<size_t>(n);
    double q_top = 0, q_sum = 0, top = sink ? *sink : -1e300, least = sink ? *sink : 1e300, total = 0, most_off = 0;
    for (int d = 0; d < dim; ++d) q_top = std::max(q_top, double(std::abs(q[d]))), q_sum += std::abs(q[d]);
    std::vector<double> weight(count), off(count);
    std::vector<Side::At> values(count);
    std::vector<float> centre;
    for (int p = first; p < n; ++p) {
      if (p == first || p % kTilePositions == 0) centre = k.centre_of(of.slot, head, p / kTilePositions);
      const Side::At at = k.at(of, pages, head, p, n);
      values[size_t(p)] = v.at(of, pages, head, p, n);
      const double* row = at.region->row(at.tile, at.p);
      double dot = 0, size = 0, k_size = 0;
      for (int d = 0; d < dim; ++d) dot += q[d] * row[d], size += std::abs(q[d] * row[d]), k_size += std::abs(row[d]);
      for (int d = 0; d < dim && k.turn.n_pairs > 0; ++d) dot += double(q[d]) * centre[size_t(d)];
      weight[size_t(p)] = dot * scale;
      // Sums of dim products in floats; half a step of 15 bits of the query in every channel, or two roundings to f16.
      double error = size * (dim + 8) * 0x1p-23;
      if (k.turn.n_pairs > 0) {  // its own sum of products, or a part of the keys, rounded with them and before
        double q2 = 0, c2 = 0;
        for (int d = 0; d < dim; ++d) q2 += double(q[d]) * q[d], c2 += double(centre[size_t(d)]) * centre[size_t(d)];
        error += 2 * std::sqrt(q2 * c2) * ((dim + 8) * 0x1p-23 + (rounds_to_f16(kernel) ? 2.01 * kF16Error : 0));
      }
      if (kernel == Kernel::tiles) error += k_size * q_top * 0x1p-15 * 1.01;
      if (rounds_to_f16(kernel)) error += size * 2.01 * kF16Error + kFloor * q_sum;
      off[size_t(p)] = scale * error + (rounds_to_f16(kernel) ? kFloor * k_size : 0);
      top = std::max(top, weight[size_t(p)]);
      least = std::min(least, weight[size_t(p)]);
      most_off = std::max(most_off, off[size_t(p)]);
    }
    for (int p = first; p < n; ++p) total += weight[size_t(p)] = std::exp(weight[size_t(p)] - top);
    if (sink) total += std::exp(*sink - top);
    // Differences of scores are rounded, exp is approximated, once a position and once each time a top rises; sums.
    const int n_units = (n + kTilePositions - 1) / kTilePositions + 1;
    const double floats = 2 * (std::min(top - least, 87.0) * 0x1p-22 + (n_units + 32) * 0x1p-21);
    // The weights of V are integers of 14 bits under the largest of one or two tiles, each with its scale.
    std::vector<double> tops(size_t(n_units) * size_t(dim / 32 + 1));
    const auto top_of = [&](int tile, int block) -> double& { return tops[size_t(tile * (dim / 32 + 1) + block)]; };
    for (int p = first; p < n; ++p)
      for (int d = 0; d < dim; d += 32) {
        double& here = top_of(p / kTilePositions, d / 32);
        here = std::max(here,
                        weight[size_t(p)] / total *
                            std::abs(values[size_t(p)].region->scale(values[size_t(p)].tile, values[size_t(p)].p)[d]));
      }
    for (int d = 0; d < dim; ++d)
      for (int p = first; p < n; ++p) out[size_t(d)] += weight[size_t(p)] / total * value(values[size_t(p)], d);
    for (int d = 0; d < dim; ++d) {
      double far = 0, size = 0, coarse = 0;
      for (int p = first; p < n; ++p) {
        const double x = value(values[size_t(p)], d), w = weight[size_t(p)] / total;
        far += w * std::expm1(off[size_t(p)]) * std::abs(x - out[size_t(d)]);
        size += w * std::abs(x);
        const double x_scale =
            std::abs(values[size_t(p)].region->scale(values[size_t(p)].tile, values[size_t(p)].p)[d]);
        if (rounds_to_f16(kernel)) {
          coarse += w * std::abs(x) * 2.01 * kF16Error + kFloor * (std::abs(x) / total + w);
        } else if (kernel == Kernel::tiles && x_scale > 0) {
          const int tile = p / kTilePositions;
          double most = 0;
          for (int t = std::max(0, tile - 1); t <= tile + 1 && t < n_units; ++t)
            most = std::max(most, top_of(t, d / 32));
          coarse += most / (2 * 16256.0) * 1.01 * std::abs(x) / x_scale;
        } else if (kernel == Kernel::tiles) {
          // Two planes of bf16, or of f16 with its floor under the tile's own largest weight.
          coarse += w * std::abs(x) * 0x1p-16 + kFloor * std::abs(x) / total;
        }
      }
      bound[size_t(d)] = far * std::exp(most_off) + coarse + size * floats + 1e-30;
    }
  }
  static double value(const Side::At& at, int d) { return at.region->row(at.tile, at.p)[d]; }
};

class AttentionCuda : public OnDevice {
 protected:
  static constexpr int kGuard = 64;
  static constexpr float kUnwritten = 12345.0f;

  /// The outputs, held to the oracle: [rows, n_heads, dim] in the order of the list.
  std::vector<float> check(const Case& c, Kernel kernel) {
    if (kernel == Kernel::prefill && c.by_warpgroups && has_wide_prefill(c.dim) &&
        gpu::device_has_warpgroups()) {  // other devices' kernel, too
      Case other = c;
      other.by_warpgroups = false;
      check(other, kernel);
      if (c.turned) {
        other.by_warpgroups = true, other.turned = false;
        run(other, kernel);
      }
    }
    return run(c, kernel);
  }

  std::vector<float> run(const Case& c, Kernel kernel) {
    const auto in_front = [&](const PrefillPlan& plan) { return c.turned && plan.by_warpgroups; };
    // Slots, rings and pages lie anywhere.
    const int n_seqs = int(c.sequences.size()), n_slots = std::max(c.slots, n_seqs + 2);
    int pitch = 1;
    for (const Sequence& s : c.sequences) pitch = std::max(pitch, (s.n_past + s.n_new - 1) / kPagePositions + 1);
    std::vector<int32_t> pages(size_t(n_slots * pitch));
    std::iota(pages.begin(), pages.end(), 0);
    for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[(i * 7919) % i]);
    const Side k(stream(), c, KvSide::k, kernel, int(pages.size()), n_slots),
        v(stream(), c, KvSide::v, kernel, int(pages.size()), n_slots);
    // What no query sees must not be read: pages in front of all windows lie nowhere.
    for (int s = 0; s < n_seqs; ++s)
      for (int page = 0; page < k.tiles.first_seen(c.sequences[size_t(s)].n_past + 1) / kPagePositions; ++page)
        pages[size_t((s + 1) * pitch + page)] = 1 << 24;
    const std::vector<float> sink_logits = normal_floats(99, c.n_kv_heads * c.group, 3);

    std::vector<StepRow> rows;
    std::vector<AttnBlock> blocks;
    PrefillPlan prefill = kernel == Kernel::rows_f16
                              ? rows_f16_attn_plan(c.dim, c.alone ? c.group : 64)
                              : prefill_attn_plan(c.dim, {std::min(c.prefill_shared_bytes, gpu::most_shared_bytes()),
                                                          c.by_warpgroups && gpu::device_has_warpgroups()});
    prefill.blocks = c.prefill_blocks;
    prefill.least_tiles = c.prefill_least_tiles;
    prefill.window = c.window;
    int most = 1, part_rows = 0, n_turned = 0;
    std::vector<AttnBlock> spans;
    for (int s = 0; s < n_seqs; ++s) {
      const auto [n_past, n_new] = c.sequences[size_t(s)];
      const int first = int(rows.size()), n = c.alone ? 1 : n_new, queries = rows_attn_queries(c.dim);
      if (kernel == Kernel::rows_f16 && c.alone)
        for (int row = first; row < first + n_new; ++row)
          part_rows = add_row_blocks(prefill, row, c.group, c.row_parts, part_rows, blocks);
      else if (rounds_to_f16(kernel)) {
        const int of_span = in_front(prefill)
                                ? turned_tiles(prefill, n_past, n_new,
                                               k.tiles.ring_tiles + v.tiles.ring_tiles > 0 ? n_past + n_new
                                                                                           : 0)  // rings are short here
                                : 0;
        part_rows = add_prefill_blocks(prefill, {first, n_new, n_past, n_turned, of_span}, c.group, c.n_kv_heads,
                                       part_rows, blocks);
        if (of_span > 0) spans.push_back({.first = first, .n = n_new, .turned = n_turned, .n_turned = of_span});
        n_turned += of_span;
      } else
        for (int row = first; row < first + n_new; row += n)
          for (int query = (n * c.group - 1) / queries * queries; query >= 0; query -= queries)
            blocks.push_back({.first = row, .n = n, .first_query = query});
      for (int i = 0; i < n_new; ++i)
        rows.push_back({.position = n_past + i, .slot = s + 1, .ring = (s + 2) % n_slots});
      most = std::max(most, n_new);
    }
    const int n_rows = int(rows.size()) + c.padding;
    for (int i = 0; i < c.padding; ++i) {
      blocks.push_back({.first = int(rows.size()), .n = 1});
      rows.push_back({});
    }
    for (int i = 0; i < n_rows; ++i) rows[size_t(i)].row = n_rows - 1 - i;  // matrices in another order than the list

    const int n_heads = c.n_kv_heads * c.group;
    const float scale = 1 / std::sqrt(float(c.dim));
    const int64_t width = int64_t(n_heads) * c.dim;
    std::vector<float> q(size_t(n_rows * width));
    for (int i = 0; i < n_rows; ++i) {
      const auto of_row = normal_floats(uint64_t(i), width, 1.5);
      std::copy(of_row.begin(), of_row.end(), q.begin() + rows[size_t(i)].row * width);
    }
    std::vector<float> weights(q.size()), of_model(static_cast<size_t>(c.dim));
    for (int i = 0; i < n_rows && k.turn.n_pairs > 0; ++i)
      for (int head = 0; head < n_heads && rows[size_t(i)].slot >= 0; ++head) {
        const auto at = size_t((int64_t(rows[size_t(i)].row) * n_heads + head) * c.dim);
        std::copy_n(q.begin() + ptrdiff_t(at), c.dim, of_model.begin());
        k.rotation->backward(of_model.data());
        centre_weights(k.turn, of_model.data(), k.of_slot(rows[size_t(i)].slot, head / c.group), 1, &weights[at]);
      }
    const gpu::Buffer dweights = up(weights), dq = up(q), drows = up(rows), dblocks = up(blocks), dpages = up(pages),
                      dsinks = up(sink_logits), out = up(std::vector<float>(q.size() + 2 * kGuard, kUnwritten));
    const DeviceAttention a{.rows = {.n = n_rows,
                                     .most = most,
                                     .rows = drows.as<StepRow>(),
                                     .pages = dpages.as<int32_t>(),
                                     .page_pitch = pitch},
                            .n_heads = n_heads,
                            .scale = scale,
                            .sink_logits = c.sink_logits ? dsinks.as<float>() : nullptr,
                            .k = k.tiles,
                            .v = v.tiles,
                            .q = dq.as<float>(),
                            .q_weights = dweights.as<float>(),
                            .out = out.as<float>() + kGuard};
    const gpu::Buffer scratch(tile_attn_scratch_bytes(n_rows, n_heads, c.n_kv_heads, c.dim,
                                                      c.plan.blocks > 0 ? c.plan.blocks : tile_attn_blocks())),
        prefill_scratch = up(
            std::vector<float>(size_t(prefill_attn_scratch_bytes(part_rows, c.n_kv_heads, c.dim) / 4), std::nanf("")));
    split_ = part_rows > 0;
    spans.resize(std::max<size_t>(1, spans.size()));
    const gpu::Buffer dspans = up(spans),
                      dturned = up(std::vector<float>(
                          size_t(turned_tile_bytes(std::max(1, n_turned), c.n_kv_heads, c.dim) / 4), std::nanf("")));
    if (n_turned == 0) spans.clear();
    std::vector<float> result;
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second launch finds the scratch of the first
      const PrefillList list{dblocks.as<AttnBlock>(),
                             int(blocks.size()),
                             prefill.queries,
                             part_rows,
                             prefill_scratch.as<std::byte>(),
                             c.alone,
                             prefill.by_warpgroups,
                             dturned.as<std::byte>(),
                             n_turned,
                             dspans.as<AttnBlock>(),
                             int(spans.size())};
      switch (kernel) {
        case Kernel::tiles: tile_attn(stream(), a, scratch.as<std::byte>(), c.plan); break;
        case Kernel::prefill: prefill_attn(stream(), a, list); break;
        case Kernel::rows_f16: rows_f16_attn(stream(), a, list, c.dim); break;
        case Kernel::rows: rows_attn(stream(), a, {list.blocks, list.n, c.dim}); break;
      }
      const auto all = down(out.as<float>(), ssize(q) + 2 * kGuard);
      for (int i = 0; i < kGuard; ++i)
        EXPECT_TRUE(all[size_t(i)] == kUnwritten && all[all.size() - 1 - size_t(i)] == kUnwritten)
            << "around the output";
      const std::vector<float> now(all.begin() + kGuard, all.end() - kGuard);
      EXPECT_TRUE(repeat == 0 || now == result) << "not the same bits twice";
      result = now;
    }

    const std::string what = fmt::format(
        "{}/{}, head_dim {}, {} heads of {}, windows {}/{}, {} blocks, attention window {}", c.k.format->name,
        c.v.format->name, c.dim, c.group, c.n_kv_heads, c.k.policy.window, c.v.policy.window, c.plan.blocks, c.window);
    double worst = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const StepRow& row = rows[i];
      for (int head = 0; head < n_heads; ++head) {
        const float* const got = &result[size_t((int64_t(row.row) * n_heads + head) * c.dim)];
        if (row.slot < 0) {
          for (int d = 0; d < c.dim; ++d) EXPECT_EQ(got[d], kUnwritten) << "padding";
          continue;
        }
        // Of long prompts the first, the last and some in between.
        if (most > 20 && i % 7 != 0 && i + 1 != rows.size()) continue;
        const int kv_head = head / c.group;
        Oracle oracle(kernel, &q[size_t((int64_t(row.row) * n_heads + head) * c.dim)], scale, k, v, row,
                      &pages[size_t(row.slot * pitch)], kv_head, c.dim,
                      c.sink_logits ? &sink_logits[size_t(head)] : nullptr);
        std::vector<float> want(oracle.out.begin(), oracle.out.end());
        double norm2 = 0, bound2 = 0;
        for (int d = 0; d < c.dim; ++d) {
          norm2 += double(want[size_t(d)]) * want[size_t(d)];
          bound2 += oracle.bound[size_t(d)] * oracle.bound[size_t(d)];
        }
        v.rotation->backward(want.data());
        for (int d = 0; d < c.dim && !v.centre.empty(); ++d) {
          want[size_t(d)] += v.of_slot(row.slot, kv_head)[d];
          norm2 += double(want[size_t(d)]) * want[size_t(d)];
        }
        for (int d = 0; d < c.dim; ++d) {
          // A rotation spreads errors; it and the centre round at most once a step of a transform.
          const double bound = (v.tiles.rotation.kind == Rotation::none ? oracle.bound[size_t(d)] : std::sqrt(bound2)) +
                               12 * 0x1p-24 * std::sqrt(norm2);
          worst = std::max(worst, std::abs(got[d] - want[size_t(d)]) / bound);
          if (!(std::abs(got[d] - want[size_t(d)]) <= bound)) {
            ADD_FAILURE() << what << ": row " << i << " at position " << row.position << ", head " << head
                          << ", channel " << d << ": " << got[d] << ", expected " << want[size_t(d)] << " within "
                          << bound;
            return {};
          }
        }
      }
    }
    worst_ = std::max(worst_, worst);
    std::vector<float> in_order;
    for (const StepRow& row : rows)
      in_order.insert(in_order.end(), result.begin() + row.row * width, result.begin() + (row.row + 1) * width);
    return in_order;
  }
  void TearDown() override { RecordProperty("worst_share_of_bound", std::to_string(worst_)); }
  double worst_ = 0;
  bool split_ = false;  // some block's tiles are in parts
};

inline constexpr const char* kTileFormats[] = {"f16", "bf16", "q8_0", "i8r", "q4_0", "rotor-4", "rotor-3"};
/// Rules of the exact rows beside the coded ones.
inline const KvPolicy kPlain{}, kWindow{Rotation::none, false, 32, 0}, kWide{Rotation::none, false, 96, 0},
    kCentred{Rotation::none, true, 64, 4, KvScale::none, KvRounding::nearest, "i8r"},
    kSinks{Rotation::none, false, 0, 4};

}  // namespace ridge::attention_cases
