// Attention in vectors. Included once per ISA after its Simd struct, its decode_rows() and its integer kernels.
//
// Queries are cut into blocks of up to kBlockRows tokens of a sequence, keys into splits of kSplit positions, whole
// tiles of kKeyTile each. A block reads each cached row of a split once for all its queries and the heads that share
// it, and leaves a partial softmax: its top score, its sum and its weighted values. Partial results of a query are put
// together in order of position. Cuts depend on positions alone, so a query's result does not depend on what runs
// beside it.
//
// Rows become floats (decode_rows) unless the ISA's file has integer kernels for their format: `Integers` below.
#pragma once

#include <algorithm>

#include "op/attn/tile_simd.h"
#include "op/cache/append.h"

namespace ridge {
namespace {

constexpr int kKeyTile = 64, kSplit = 512;
constexpr int kBlockRows = 8;
constexpr int kScoreStride =
    kSplit + 16;  // floats; a power of two would put all heads' scores into the same cache sets
/// How far ahead of a tile memory is asked for: one tile of a small format takes less time than memory needs to answer.
constexpr int kTilesAhead = 2;
/// Partial results that wait to be put together, at most: so many splits of every query.
constexpr int kMostSplitsAtOnce = 64;
constexpr float kNothingSeen = -1;  // as the sum of a partial result: the query sees no key of the split

/// Consecutive queries of a span.
struct Block {
  const KvSpan* span;
  int first, count;  // rows of the span
  int query;         // number of the first one among all queries of the call
  const Attention* of;

  int n_keys(int i) const { return span->n_past + first + i + 1; }  // up to query i of the block
  int first_key(int i) const { return of->first_key(n_keys(i)); }   // that query i sees
  int n_keys() const { return n_keys(count - 1); }
};

/// Rows of the 64 positions of a key tile: two runs of 32.
struct TileRows64 {
  const std::byte* half[2];
  int64_t row_bytes;
  const std::byte* row(int i) const { return half[i / kTilePositions] + i % kTilePositions * row_bytes; }
};

/// Where a query reads a position: positions [begin, end) of a key tile, relative to its first.
struct Live {
  int begin, end;
  bool empty() const { return begin >= end; }
};

enum Source : int { kCoded, kRecent, kSources };

/// One side as the queries of a block read it.
struct SideOfBlock {
  const KvTiles& tiles;
  const KvSpan& span;
  int kv_head;
  const Block& block;
  DecodeRows decode[kSources];
  int coded_end[kBlockRows];  // of each query

  SideOfBlock(const KvTiles& of, const Block& queries, int head)
      : tiles(of),
        span(*queries.span),
        kv_head(head),
        block(queries),
        decode{decode_rows(format(kCoded), of.head_dim), decode_rows(format(kRecent), of.head_dim)} {
    for (int i = 0; i < block.count; ++i) coded_end[i] = of.retention.coded_end(block.n_keys(i));
  }
  int n_sinks() const { return tiles.n_sinks; }
  Live live(Source source, int base, int i) const {
    const int coded = coded_end[i], n = block.n_keys(i);
    const int begin = std::max({base, tiles.n_sinks, block.first_key(i), source == kCoded ? 0 : coded});
    return {begin - base, std::min(base + kKeyTile, source == kCoded ? coded : n) - base};
  }
  /// Positions of the tile that any query of the block sees.
  Live live(Source source, int base) const {
    Live any{kKeyTile, 0};
    for (int i = 0; i < block.count; ++i)
      if (const Live one = live(source, base, i); !one.empty())
        any = {std::min(any.begin, one.begin), std::max(any.end, one.end)};
    return any;
  }
  TileRows64 rows(Source source, int base) const {
    const int t = base / kTilePositions;
    if (source == kCoded) {
      const std::byte* const first = tiles.coded_tile(span.pages[base / kPagePositions], kv_head, t);
      return {{first, first + tiles.tile_bytes}, tiles.row_bytes};
    }
    return {{tiles.ring_tile(span.slot, kv_head, t), tiles.ring_tile(span.slot, kv_head, t + 1)},
            tiles.recent_row_bytes};
  }
  const KvFormat& format(Source source) const {
    return kv_formats()[size_t(source == kCoded ? tiles.format : tiles.recent)];
  }
  KvCoding coding(Source source) const { return source == kCoded ? tiles.coding(span.slot, kv_head) : KvCoding{}; }
  /// The coded rows of a key tile, to ask for.
  Ahead ahead(int base) const {
    const int count = std::min(kKeyTile, coded_end[block.count - 1] - base);
    if (count <= 0) return {nullptr, 0};
    return {rows(kCoded, base).half[0], count * tiles.row_bytes};
  }
};

/// Stands for kernels of integers where there are none. An object belongs to a block and kv head on one thread.
struct NoIntegers {
  static constexpr int64_t query_bytes(const Attention&) { return 0; }
  static constexpr int64_t thread_bytes(int) { return 0; }
  static void round(const Attention&, const float*, int64_t, std::byte*, int64_t) {}
  NoIntegers(const Attention&, std::byte*, int64_t, int64_t, std::byte*) {}
  void begin() {}
  bool scores(const SideOfBlock&, Source, int, Ahead&, float*) { return false; }
  bool values(const SideOfBlock&, Source, int, Ahead&, const float*) { return false; }
  void add_to(int, int, float*, int64_t) {}
};

/// Memory of a thread for one block and kv head; `pairs` are its (query, head)s.
struct ThreadScratch {
  float* rows;     // [kTile, stride]
  float* scores;   // [pairs, kScoreStride]
  float* out;      // [pairs, stride]: weighted values of a split
  float* top;      // [pairs]
  float* total;    // [pairs]
  float* running;  // [pairs, stride + 2]: of all splits so far; top and total behind the values

  static int64_t floats(int pairs, int stride) {
    return int64_t(kTile) * stride + int64_t(pairs) * (kScoreStride + stride + 2 + stride + 2);
  }
  ThreadScratch(float* memory, int pairs, int stride)
      : rows(memory),
        scores(rows + int64_t(kTile) * stride),
        out(scores + int64_t(pairs) * kScoreStride),
        top(out + int64_t(pairs) * stride),
        total(top + pairs),
        running(total + pairs) {}
};

/// Calls whole(first, last) for the queries that see all of [0, n) of a tile's rows, which are consecutive, and part(i,
/// live) for those that see some.
template <class LiveOf, class Whole, class Part>
inline void for_each_query(const Block& block, int n, const LiveOf& live_of, const Whole& whole, const Part& part) {
  int first = 0, last = 0;
  for (int i = 0; i < block.count; ++i) {
    const Live live = live_of(i);
    if (live.empty()) continue;
    if (live.begin <= 0 && live.end >= n) {
      if (last == 0) first = i;
      last = i + 1;
    } else {
      part(i, live);
    }
  }
  if (last > first) whole(first, last);
}

/// Scores of a tile of `count` decoded rows at `offset` of the split.
template <class LiveOf>
inline void float_scores(const Attention& a, const Block& block, const float* q, const float* rows, int stride,
                         int offset, const LiveOf& live_of, Ahead& ahead, float* scores) {
  const int group = a.group();
  for_each_query(
      block, kTile, live_of,
      [&](int first, int last) {
        for (int pair = first * group; pair < last * group; ++pair)
          tile_scores(q + int64_t(pair) * stride, rows, stride, a.scale, ahead,
                      scores + int64_t(pair) * kScoreStride + offset);
      },
      [&](int i, Live live) {
        for (int pair = i * group; pair < (i + 1) * group; ++pair) {
          float some[kTile];
          tile_scores(q + int64_t(pair) * stride, rows, stride, a.scale, ahead, some);
          std::copy(some + live.begin, some + live.end, scores + int64_t(pair) * kScoreStride + offset + live.begin);
        }
      });
}

template <class LiveOf>
inline void float_values(const Attention& a, const Block& block, const float* rows, int count, int stride, int offset,
                         const LiveOf& live_of, Ahead& ahead, const float* scores, float* out) {
  const int group = a.group();
  for_each_query(
      block, count, live_of,
      [&](int first, int last) {
        const int64_t pair = int64_t(first) * group;
        tile_values((last - first) * group, scores + pair * kScoreStride + offset, kScoreStride, rows, count, stride,
                    ahead, out + pair * stride);
      },
      [&](int i, Live live) {
        // Rows that the query does not see are left out: a sink's coded place may hold anything, NaN too.
        const int64_t pair = int64_t(i) * group;
        tile_values(group, scores + pair * kScoreStride + offset + live.begin, kScoreStride,
                    rows + int64_t(live.begin) * stride, std::min(live.end, count) - live.begin, stride, ahead,
                    out + pair * stride);
      });
}

/// Calls body(live_of, offset, rows, count) for the decoded rows of a key tile of one side: its sinks, then 32
/// positions at a time of each source that `skip` does not take.
template <class Skip, class Body>
inline void for_each_float_tile(const SideOfBlock& side, int base, int split_begin, float* rows, int stride,
                                const Skip& skip, const Body& body) {
  const int dim = side.tiles.head_dim;
  const auto decode = [&](DecodeRows run, const KvFormat& format, const KvCoding& coding, const std::byte* from,
                          int64_t row_bytes, int count) {
    run(format, coding, from, row_bytes, count, dim, rows);
    widen_rows(rows, count, dim, stride);
  };
  if (base == 0 && side.n_sinks() > 0) {
    const int count = std::min(side.n_sinks(), side.block.n_keys());
    const KvFormat& f16 = sink_format();
    decode(decode_rows(f16, dim), f16, {}, side.tiles.sink_row(side.span.slot, side.kv_head, 0), 2 * int64_t(dim),
           count);
    body(
        [&](int i) {
          return Live{side.block.first_key(i), std::min(count, side.block.n_keys(i))};
        },
        -split_begin, rows, count);
  }
  for (const Source source : {kCoded, kRecent}) {
    const Live any = side.live(source, base);
    if (any.empty() || skip(source)) continue;
    const TileRows64 from = side.rows(source, base);
    for (int half = 0; half < 2; ++half) {
      const int begin = half * kTilePositions, count = std::min(any.end - begin, kTilePositions);
      if (count <= 0 || any.begin >= begin + kTilePositions) continue;
      decode(side.decode[source], side.format(source), side.coding(source), from.half[half], from.row_bytes, count);
      body(
          [&](int i) {
            const Live live = side.live(source, base, i);
            return Live{std::max(0, live.begin - begin), std::min(kTilePositions, live.end - begin)};
          },
          base + begin - split_begin, rows, count);
    }
  }
}

/// Queries of a block and kv head.
struct BlockQueries {
  const float* rows;  ///< [pairs, stride], in cache space
  int stride;
  const float* weights;  ///< [pairs, pitch of K's turn]: of a tile's angles (centre.h)
};

/// Adds to the scores of pairs [first, pairs) in a split what the centre of each tile takes from them.
inline void add_centre_scores(const KvTiles& k, int split, int first, int pairs, const float* weights, float* scores) {
  static_assert(kSplit / kTilePositions == kTurnTiles);
  if (k.turn.n_pairs == 0) return;
  const int pitch = k.turn.pitch();
  const float* const angles = k.turn.tile(split * kTurnTiles);
  Ahead nothing{nullptr, 0};
  for (int pair = first; pair < pairs; ++pair) {
    float of_tile[kTurnTiles];
    tile_scores<kTurnTiles>(weights + int64_t(pair) * pitch, angles, pitch, 1, nothing, of_tile);
    float* score = scores + int64_t(pair) * kScoreStride;
    for (int t = 0; t < kTurnTiles; ++t, score += kTilePositions)
      for (int i = 0; i < kTilePositions; i += Simd::kLanes)
        Simd::store(score + i, Simd::add(Simd::load(score + i), Simd::set1(of_tile[t])));
  }
}

/// Partial softmax of one split for all pairs of a block and kv head that see any of it: the pairs from the returned
/// one on.
template <class Integers>
inline int attend_split(const Attention& a, const Block& block, int kv_head, int split, const BlockQueries& q,
                        const ThreadScratch& scratch, Integers& integers) {
  const int stride = q.stride;
  const int group = a.group(), begin = split * kSplit, end = std::min(begin + kSplit, block.n_keys());
  if (end <= block.first_key(0)) return block.count * group;
  const SideOfBlock k(a.k, block, kv_head), v(a.v, block, kv_head);
  int first_query = 0;
  while (block.n_keys(first_query) <= begin) ++first_query;
  const int first = first_query * group, pairs = block.count * group;

  // Memory is read in this order: keys of the split, its values, keys of the next one.
  const int end_tile = (end + kKeyTile - 1) / kKeyTile * kKeyTile;
  for (int base = begin; base < end; base += kKeyTile) {
    const int next = base + kTilesAhead * kKeyTile;
    Ahead ahead = next < end_tile ? k.ahead(next) : v.ahead(begin + next - end_tile);
    const auto integer = [&](Source source) {
      return integers.scores(k, source, base, ahead, scratch.scores + base - begin);
    };
    for_each_float_tile(k, base, begin, scratch.rows, stride, integer,
                        [&](const auto& live_of, int offset, const float* rows, int) {
                          float_scores(a, block, q.rows, rows, stride, offset, live_of, ahead, scratch.scores);
                        });
    ahead.ask(1, 1);
  }

  add_centre_scores(a.k, split, first, pairs, q.weights, scratch.scores);
  for (int pair = first; pair < pairs; ++pair) {
    float* const score = scratch.scores + int64_t(pair) * kScoreStride;
    const int n = std::min(end, block.n_keys(pair / group)) - begin;
    const int padded = (n + Simd::kLanes - 1) / Simd::kLanes * Simd::kLanes;
    std::fill(score, score + std::clamp(block.first_key(pair / group) - begin, 0, n), kMasked);
    for (int i = n; i < padded; ++i) score[i] = kMasked;
    scratch.top[pair] = largest(score, padded);
    scratch.total[pair] = exponentials(score, padded, scratch.top[pair]);
  }

  std::fill(scratch.out + int64_t(first) * stride, scratch.out + int64_t(pairs) * stride, 0.0f);
  integers.begin();
  for (int base = begin; base < end; base += kKeyTile) {
    const int next = base + kTilesAhead * kKeyTile;
    Ahead ahead = next < end_tile ? v.ahead(next) : k.ahead(next);
    const auto integer = [&](Source source) {
      return integers.values(v, source, base, ahead, scratch.scores + base - begin);
    };
    for_each_float_tile(v, base, begin, scratch.rows, stride, integer,
                        [&](const auto& live_of, int offset, const float* rows, int count) {
                          float_values(a, block, rows, count, stride, offset, live_of, ahead, scratch.scores,
                                       scratch.out);
                        });
    ahead.ask(1, 1);
  }
  integers.add_to(first, pairs, scratch.out, stride);
  return first;
}

/// running = running and the next partial result: out = sum_i w_i o_i, total = sum_i w_i l_i, w_i = exp(top_i - top).
inline void put_together(float* running, float top, float total, const float* out, int stride) {
  const float new_top = std::max(running[stride], top);
  const float fade = __builtin_expf(running[stride] - new_top), weight = __builtin_expf(top - new_top);
  running[stride] = new_top;
  running[stride + 1] = running[stride + 1] * fade + total * weight;
  for (int d = 0; d < stride; d += Simd::kLanes)
    Simd::store(running + d, Simd::fma(Simd::set1(weight), Simd::load(out + d),
                                       Simd::mul(Simd::set1(fade), Simd::load(running + d))));
}

/// The outputs of a pair's query and head, out of cache space.
inline void finish(const Attention& a, const Block& block, int kv_head, int pair, const float* running, int stride) {
  const int group = a.group(), dim = a.k.head_dim, head = kv_head * group + pair % group;
  float* const out = &a.out(block.span->first_row + block.first + pair / group, int64_t(head) * dim);
  for (int d = 0; d < dim; ++d) out[d] = running[d] / running[stride + 1];
  a.v.rotation.backward(out);
  a.v.add_still_centre(block.span->slot, kv_head, out);
}

/// Nothing seen yet but the head's sink, if there is one.
inline void start(const Attention& a, int kv_head, int pair, float* running, int stride) {
  std::fill(running, running + stride + 2, 0.0f);
  running[stride] = kMasked;
  if (!a.sink_logits) return;
  running[stride] = a.sink_logits[kv_head * a.group() + pair % a.group()];
  running[stride + 1] = 1;
}

/// Sizes of what a call works in.
template <class Integers>
struct AttentionScratch {
  int n_threads, stride, most_pairs;     // pairs of a query and a head in a block
  int64_t n_pairs = 0;                   // of the call
  int64_t n_items = 0;                   // blocks times kv heads
  int n_splits = 0;                      // of the longest block
  int64_t query_bytes;                   // of a pair
  int64_t scratch_floats, thread_bytes;  // of a thread: its ThreadScratch, and all
  int64_t state_floats, item_floats;     // partial results of a pair, and of an item

  AttentionScratch(const Attention& a, int64_t n_times, int threads)
      : n_threads(threads),
        stride(padded_dim(a.k.head_dim)),
        most_pairs(kBlockRows * a.group()),
        query_bytes(4 * (stride + a.k.turn.pitch()) + Integers::query_bytes(a)),
        scratch_floats((ThreadScratch::floats(most_pairs, stride) + 15) / 16 * 16),
        thread_bytes(4 * scratch_floats + (Integers::thread_bytes(most_pairs) + 63) / 64 * 64),
        state_floats((stride + 2 + 15) / 16 * 16),
        item_floats(most_pairs * state_floats) {
    for (const KvSpan& span : a.spans) {
      n_pairs += n_times * span.n_rows * a.n_heads;
      n_items += n_times * ((span.n_rows + kBlockRows - 1) / kBlockRows) * a.k.n_kv_heads;
      n_splits = std::max(n_splits, (span.n_keys() + kSplit - 1) / kSplit);
    }
  }
  /// Too few blocks for all threads: splits of a block are spread over them.
  bool spreads() const { return n_items < 2 * n_threads && n_splits > 1; }
  /// Queries as floats, as weights of angles and as integers; memory of the threads; partial results of all items.
  ScratchBytes bytes() const {
    return {n_pairs * query_bytes, n_threads * thread_bytes,
            spreads() ? 4 * n_items * (1 + kMostSplitsAtOnce) * item_floats : 0};
  }
};

template <class Integers>
void run_attention(CpuContext& context, const Attention& a) {
  const AttentionScratch<Integers> sizes(a, 1, context.pool.size());
  context.make_scratch(sizes.bytes());
  const int group = a.group(), dim = a.k.head_dim, stride = sizes.stride;
  const int n_kv_heads = a.k.n_kv_heads, most_pairs = sizes.most_pairs;
  std::vector<Block> blocks;
  int n_queries = 0;
  for (const KvSpan& span : a.spans) {
    for (int first = 0; first < span.n_rows; first += kBlockRows)
      blocks.push_back({&span, first, std::min(kBlockRows, span.n_rows - first), n_queries + first, &a});
    n_queries += span.n_rows;
  }
  // The longest work is handed out first.
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Block& x, const Block& y) { return x.n_keys() > y.n_keys(); });

  // Queries in cache space, [kv head, query, head of the group], as floats, as weights of angles and as integers.
  const int64_t n_pairs = sizes.n_pairs;
  const int pitch = a.k.turn.pitch();
  float *const queries = context.scratch[0].as<float>(), *const weights = queries + n_pairs * stride;
  auto* const integer_queries = reinterpret_cast<std::byte*>(weights + n_pairs * pitch);
  const auto first_pair = [&](int kv_head, int query) { return (int64_t(kv_head) * n_queries + query) * group; };
  context.pool.for_each(int64_t(n_kv_heads) * int64_t(blocks.size()), [&](int64_t item, int) {
    const Block& block = blocks[size_t(item) / size_t(n_kv_heads)];
    const int kv_head = int(item % n_kv_heads);
    for (int i = 0; i < block.count; ++i)
      for (int j = 0; j < group; ++j) {
        const int64_t pair = first_pair(kv_head, block.query + i) + j;
        float* const to = queries + pair * stride;
        const float* const from = &a.q(block.span->first_row + block.first + i, (int64_t(kv_head) * group + j) * dim);
        std::copy(from, from + dim, to);
        if (pitch > 0)
          centre_weights(a.k.turn, from, a.k.centre_of(block.span->slot, kv_head), a.scale, weights + pair * pitch);
        a.k.rotation.forward(to);
        std::fill(to + dim, to + stride, 0.0f);
        Integers::round(a, to, pair, integer_queries, n_pairs);
      }
  });

  std::byte* const memory = context.scratch[1].as<std::byte>();
  const auto with_block = [&](int64_t item, int thread, const auto& body) {
    const Block& block = blocks[size_t(item) / size_t(n_kv_heads)];
    const int kv_head = int(item % n_kv_heads);
    const int64_t pair = first_pair(kv_head, block.query);
    std::byte* const own = memory + thread * sizes.thread_bytes;
    const ThreadScratch scratch(reinterpret_cast<float*>(own), most_pairs, stride);
    Integers integers(a, integer_queries, n_pairs, pair, own + 4 * sizes.scratch_floats);
    body(block, kv_head, BlockQueries{queries + pair * stride, stride, weights + pair * pitch}, scratch, integers);
  };
  const auto splits_of = [](const Block& block) { return (block.n_keys() + kSplit - 1) / kSplit; };

  // Enough blocks for all threads: each goes through its splits.
  if (!sizes.spreads()) {
    context.pool.for_each(sizes.n_items, [&](int64_t item, int thread) {
      with_block(item, thread,
                 [&](const Block& block, int kv_head, const BlockQueries& q, const ThreadScratch& scratch,
                     Integers& integers) {
                   const int pairs = block.count * group;
                   const auto running = [&](int pair) { return scratch.running + int64_t(pair) * (stride + 2); };
                   for (int pair = 0; pair < pairs; ++pair) start(a, kv_head, pair, running(pair), stride);
                   for (int split = 0; split < splits_of(block); ++split)
                     for (int pair = attend_split(a, block, kv_head, split, q, scratch, integers); pair < pairs; ++pair)
                       put_together(running(pair), scratch.top[pair], scratch.total[pair],
                                    scratch.out + int64_t(pair) * stride, stride);
                   for (int pair = 0; pair < pairs; ++pair) finish(a, block, kv_head, pair, running(pair), stride);
                 });
    });
    return;
  }

  // Few blocks: their splits are spread over the threads, and put together in the same order.
  float* const states = context.scratch[2].as<float>();
  const auto state_of = [&](int64_t item, int slot, int pair) {  // slot 0: of all splits so far
    return states + (item * (1 + kMostSplitsAtOnce) + slot) * sizes.item_floats + pair * sizes.state_floats;
  };
  for (int from = 0; from < splits_of(blocks[0]); from += kMostSplitsAtOnce) {
    context.pool.for_each(sizes.n_items * kMostSplitsAtOnce, [&](int64_t task, int thread) {
      const int64_t item = task / kMostSplitsAtOnce;
      const int slot = int(task % kMostSplitsAtOnce);
      if (from + slot >= splits_of(blocks[size_t(item) / size_t(n_kv_heads)])) return;
      with_block(item, thread,
                 [&](const Block& block, int kv_head, const BlockQueries& q, const ThreadScratch& scratch,
                     Integers& integers) {
                   const int first = attend_split(a, block, kv_head, from + slot, q, scratch, integers);
                   for (int pair = 0; pair < block.count * group; ++pair) {
                     float* const state = state_of(item, 1 + slot, pair);
                     state[stride + 1] = kNothingSeen;
                     if (pair < first) continue;
                     std::copy_n(scratch.out + int64_t(pair) * stride, stride, state);
                     state[stride] = scratch.top[pair];
                     state[stride + 1] = scratch.total[pair];
                   }
                 });
    });
    for (int64_t item = 0; item < sizes.n_items; ++item) {
      const Block& block = blocks[size_t(item) / size_t(n_kv_heads)];
      const int last = std::min(splits_of(block) - from, kMostSplitsAtOnce);
      for (int pair = 0; pair < block.count * group; ++pair) {
        float* const running = state_of(item, 0, pair);
        if (from == 0) start(a, int(item % n_kv_heads), pair, running, stride);
        for (int slot = 0; slot < last; ++slot) {
          const float* const state = state_of(item, 1 + slot, pair);
          if (state[stride + 1] != kNothingSeen) put_together(running, state[stride], state[stride + 1], state, stride);
        }
        if (from + last == splits_of(block)) finish(a, block, int(item % n_kv_heads), pair, running, stride);
      }
    }
  }
}

}  // namespace
}  // namespace ridge
