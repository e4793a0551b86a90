// Matmuls of panels (op/gemv/panels.h): integer activations, integer dot products, 16 rows at a time. Included once
// per ISA after its Simd struct.
//
// One token and a few: weights become bytes in registers, a unit at a time (few_panel). More tokens: 256 columns of two
// vectors of rows become bytes and float scales in cache, once for all tokens (decode_chunk), and tiles for all formats
// multiply them: DotTiles, or those of processors with matrix instructions (panel_i8mm_neon.cpp). All
// ways have one order of sums: groups of columns in order, in each one product of scales and one fma, then one fma for
// a minimum. So a token's results are the same bits alone and among others.
#pragma once

#include "op/gemv/panel_heads_simd.h"
#include "op/simd/unrolled.h"

namespace ridge {
namespace {

constexpr int kChunkGroups = kPanelChunk / kPanelGroup;

/// Rounds 32 activations; equals quantize_group_ref bit for bit where they are finite (same operations in the same
/// order).
template <int kPlanes>
inline void quantize_group(const float* in, int64_t plane_q, int8_t* q, float& scale, int32_t* sum) {
  Simd::F top = Simd::zero();
  for (int i = 0; i < kPanelGroup; i += Simd::kLanes) top = Simd::max(top, Simd::abs(Simd::load(in + i)));
  const float largest = Simd::top(top);
  const Simd::F inverse = Simd::set1(group_inverse(largest, kPlanes));
  float sums[2];
  for (int half = 0; half < 2; ++half) {
    Simd::F total = Simd::zero();
    for (int i = 16 * half; i < 16 * half + 16; i += Simd::kLanes) {
      const Simd::F rounded = Simd::round(Simd::mul(Simd::load(in + i), inverse));
      if constexpr (kPlanes == 1) {
        Simd::store_i8(q + i, rounded);
      } else {
        const Simd::F high = Simd::round(Simd::mul(rounded, Simd::set1(1.0f / 128)));
        Simd::store_i8(q + i, high);
        Simd::store_i8(q + plane_q + i, Simd::fma(high, Simd::set1(-128), rounded));
      }
      total = Simd::add(total, rounded);  // integers far below 2^24: exact in any order
    }
    sums[half] = Simd::sum(total);
  }
  // A NaN or infinity among the activations has made its sum NaN, and a NaN scale carries it into every output.
  const float both = sums[0] + sums[1];
  const bool finite = both == both;
  for (int half = 0; half < 2; ++half) sum[half] = finite ? int32_t(sums[half]) : 0;
  scale = finite ? largest / panel_limit(kPlanes) : __builtin_nanf("");
}

/// Values that one thread rounds in about the time that it takes to hand out work.
constexpr int64_t kValuesAlone = 8192;

template <int kPlanes>
inline QuantizedTokens<kPlanes> quantize_tokens(CpuContext& context, View2<const float> x) {
  context.make_scratch(quantized_bytes(kPlanes, x.rows, x.cols));
  const QuantizedTokens<kPlanes> to{context.scratch[0].as<int8_t>(), context.scratch[1].as<float>(),
                                    context.scratch[2].as<int32_t>(), x.rows};
  const auto one = [&](int64_t token, int) {
    for (int64_t group = 0; group < x.cols / kPanelGroup; ++group) {
      const int64_t chunk = group / kChunkGroups, of_chunk = group % kChunkGroups;
      quantize_group<kPlanes>(&x(token, group * kPanelGroup), to.plane_q(),
                              to.q_of(chunk, token) + of_chunk * kPanelGroup, to.scale_of(chunk, token)[of_chunk],
                              to.sum_of(chunk, token) + 2 * of_chunk);
    }
  };
  if (x.rows > 1 && x.rows * x.cols > kValuesAlone) {
    context.pool.for_each(x.rows, one);
  } else {
    for (int64_t token = 0; token < x.rows; ++token) one(token, 0);
  }
  return to;
}

inline Simd::I broadcast4(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return Simd::iset1(four);
}

template <bool kLarge>
inline Simd::I dot_bytes(Simd::I sum, Simd::I weights, Simd::I activations) {
  if constexpr (kLarge) return Simd::dot4(sum, weights, activations);
  else return Simd::dot4_small(sum, weights, activations);
}
/// With four activations in memory, for one vector of weights.
template <bool kLarge, class S = Simd>
inline Simd::I dot_bytes_at(Simd::I sum, Simd::I weights, const int8_t* q) {
  if constexpr (S::kLanes == 16) return S::dot4_at(sum, weights, q);
  else return dot_bytes<kLarge>(sum, weights, broadcast4(q));
}

/// The exact sum of both planes as float.
template <int kPlanes>
inline Simd::F whole_dot(const Simd::I* dot) {
  if constexpr (kPlanes == 1) return Simd::to_float(dot[0]);
  else return Simd::to_float(Simd::iadd(Simd::shift_left(dot[0], 7), dot[1]));
}

/// The sum of q over the columns of scale `at` of a chunk; kScaled columns have a scale.
template <int kScaled>
inline int32_t sum_of(const int32_t* sum, int64_t at) {
  if constexpr (kScaled == 16) return sum[at];
  else return sum[2 * at] + sum[2 * at + 1];
}

/// total plus the products of a group's columns: `dot` of codes, the scale of the weights and of the activations
/// (of_x), and the minimum times `sum`, the activations' sum. The one order of sums of all matmuls of panels.
template <int kPlanes, bool kMin>
inline Simd::F add_columns(Simd::F total, const Simd::I* dot, Simd::F of_weights, float of_x, Simd::F min,
                           int32_t sum) {
  total = Simd::fma(whole_dot<kPlanes>(dot), Simd::mul(of_weights, Simd::set1(of_x)), total);
  if constexpr (kMin) total = Simd::fma(min, Simd::set1(of_x * float(sum)), total);
  return total;
}

/// How far ahead of a token's dot products the weights are asked for. The hardware prefetcher alone stops at page ends
/// and leaves a fifth of the read bandwidth unused.
constexpr int kPrefetchBytes = 4096;

/// One panel times `kTokens` tokens, straight from the panel's bytes.
template <class F, int kPlanes, int kTokens>
[[gnu::noinline]] void few_panel(const std::byte* panel, int64_t n_units, const QuantizedTokens<kPlanes>& x,
                                 int64_t first_token, float (*y)[kPanelRows]) {
  using Unit = PanelUnit<F>;
  constexpr int kScaled = Unit::kScaled, kParts = kPanelGroup / kScaled;
  constexpr bool kMin = Unit::kMinima != PanelMinima::none;
  Simd::F total[kTokens][kRowVectors];
  for (auto& of_token : total)
    for (Simd::F& value : of_token) value = Simd::zero();
  for (int64_t unit = 0; unit < n_units; ++unit, panel += Unit::kBytes) {
    const PanelHead<F> head(panel);
#pragma GCC unroll 1
    for (int group = 0; group < Unit::kGroups; ++group) {
      for (int line = 0; line < Unit::kBytes / Unit::kGroups; line += 64)
        __builtin_prefetch(panel + kPrefetchBytes + group * (Unit::kBytes / Unit::kGroups) + line);
      const int64_t of_row = unit * Unit::kGroups + group, chunk = of_row / kChunkGroups;
      const int64_t of_chunk = of_row % kChunkGroups;
      const int8_t* q[kTokens][kPlanes];
      float scale[kTokens];
      const int32_t* sum[kTokens];
      for (int t = 0; t < kTokens; ++t) {
        for (int plane = 0; plane < kPlanes; ++plane)
          q[t][plane] = x.q_of(chunk, first_token + t) + plane * x.plane_q() + of_chunk * kPanelGroup;
        scale[t] = x.scale_of(chunk, first_token + t)[of_chunk];
        sum[t] = x.sum_of(chunk, first_token + t) + 2 * of_chunk;
      }
      for (int v = 0; v < kRowVectors; ++v) {
        const std::byte* const codes = panel + Unit::kHeadBytes + group * Unit::kGroupBytes + v * kVectorBytes;
        unrolled<kParts>([&](auto part) {
          Simd::I dot[kTokens][kPlanes];
          for (int t = 0; t < kTokens; ++t) {
            for (int plane = 0; plane < kPlanes - 1; ++plane) dot[t][plane] = Simd::izero();
            dot[t][kPlanes - 1] =
                kDotZero<F> ? Simd::iset1(-kDotZero<F> * sum_of<kScaled>(sum[t], part)) : Simd::izero();
          }
          unrolled<kScaled / 4>([&](auto step) {
            constexpr int k = part * (kScaled / 4) + step;
            const Simd::I weights = panel_weights<F, k>(codes);
            for (int t = 0; t < kTokens; ++t)
              for (int plane = 0; plane < kPlanes; ++plane)
                dot[t][plane] = dot_bytes_at<kLargeWeights<F>>(dot[t][plane], weights, q[t][plane] + 4 * k);
          });
          const int at = group * kParts + part;
          const Simd::F of_weights = head.scale(v, at);
          Simd::F min{};
          if constexpr (kMin) min = head.min(v, at);
          for (int t = 0; t < kTokens; ++t)
            total[t][v] = add_columns<kPlanes, kMin>(total[t][v], dot[t], of_weights, scale[t], min,
                                                     sum_of<kScaled>(sum[t], part));
        });
      }
    }
  }
  for (int t = 0; t < kTokens; ++t)
    for (int v = 0; v < kRowVectors; ++v) Simd::store(&y[t][v * Simd::kLanes], total[t][v]);
}

constexpr int kTileVectors = 2;  // two panels, or both halves of one
constexpr int kTilePanels = kTileVectors / kRowVectors, kTileRows = kTileVectors * Simd::kLanes;
constexpr int64_t kTileTokens = 128;  // whose activations and sums stay in cache while a pair of panels passes

/// A chunk of two vectors of rows: weights [k of 4 columns][vector][byte], scales and minima [at][vector][row].
struct DecodedChunk {
  alignas(64) std::byte weights[kPanelChunk / 4][kTileVectors][kVectorBytes];
  alignas(64) float scale[kPanelChunk / 16][kTileVectors][Simd::kLanes];
  alignas(64) float min[kPanelChunk / 16][kTileVectors][Simd::kLanes];
  int64_t n_groups;
  int zero;  ///< what a weight of 0 is in a dot product
};

/// Properties of a format that tiles depend on; formats that are alike share code.
template <int kPlanes_, int kScaled_, bool kLarge_, bool kZero_, bool kMin_>
struct TileKind {
  static constexpr int kPlanes = kPlanes_, kScaled = kScaled_, kParts = kPanelGroup / kScaled;
  static constexpr bool kLarge = kLarge_, kZero = kZero_, kMin = kMin_;
};

/// Tokens [first, first + n) of a chunk, whose sums are y[n][kTileRows].
template <int kPlanes>
struct ChunkTokens {
  const QuantizedTokens<kPlanes>& x;
  int64_t chunk, first, n;
  float* y;

  const int8_t* q(int64_t t) const { return x.q_of(chunk, first + t); }
  const float* scale(int64_t t) const { return x.scale_of(chunk, first + t); }
  const int32_t* sum(int64_t t) const { return x.sum_of(chunk, first + t); }
  ChunkTokens behind(int64_t t) const { return {x, chunk, first + t, n - t, y + t * kTileRows}; }
};

/// total plus the columns of scale `at` of a chunk, for vector v of rows and token t. `dot` is as in add_columns.
template <class Kind>
inline Simd::F add_scaled(Simd::F total, const DecodedChunk& w, const ChunkTokens<Kind::kPlanes>& tokens, int64_t at,
                          int v, int64_t t, const Simd::I* dot) {
  Simd::F min{};
  if constexpr (Kind::kMin) min = Simd::load(w.min[at][v]);
  return add_columns<Kind::kPlanes, Kind::kMin>(total, dot, Simd::load(w.scale[at][v]),
                                                tokens.scale(t)[at / Kind::kParts], min,
                                                sum_of<Kind::kScaled>(tokens.sum(t), at));
}

/// Start value of a dot product, in every lane: takes away what the weights' zero adds.
template <class Kind>
inline Simd::I zero_dot(const DecodedChunk& w, const ChunkTokens<Kind::kPlanes>& tokens, int64_t at, int64_t t) {
  return Kind::kZero ? Simd::iset1(-w.zero * sum_of<Kind::kScaled>(tokens.sum(t), at)) : Simd::izero();
}

/// y[t][row] += a decoded chunk times the first kTokens tokens.
template <int kTokens, class Kind>
[[gnu::noinline]] void panel_tile(const DecodedChunk& w, const ChunkTokens<Kind::kPlanes>& tokens) {
  constexpr int kScaled = Kind::kScaled, kPlanes = Kind::kPlanes;
  const int8_t* q = tokens.q(0);
  const int64_t plane_q = tokens.x.plane_q();
  Simd::F total[kTokens][kTileVectors];
  const auto each = [](const auto& body) {
    unrolled<kTokens>([&](auto t) { unrolled<kTileVectors>([&](auto v) { body(t, v); }); });
  };
  each([&](auto t, auto v) { total[t][v] = Simd::load(tokens.y + t * kTileRows + v * Simd::kLanes); });
  const std::byte(*weights)[kTileVectors][kVectorBytes] = w.weights;
  for (int64_t at = 0; at < Kind::kParts * w.n_groups; ++at, q += kScaled, weights += kScaled / 4) {
    Simd::I dot[kTokens][kTileVectors][kPlanes];
    each([&](auto t, auto v) {
      if constexpr (kPlanes == 2) dot[t][v][0] = Simd::izero();
      dot[t][v][kPlanes - 1] = zero_dot<Kind>(w, tokens, at, t);
    });
    unrolled<kScaled / 4>([&](auto k) {
      const Simd::I w0 = Simd::iload(weights[k][0]), w1 = Simd::iload(weights[k][1]);
      unrolled<kTokens>([&](auto t) {
        unrolled<kPlanes>([&](auto plane) {
          const Simd::I four = broadcast4(q + plane * plane_q + t * kPanelChunk + 4 * k);
          dot[t][0][plane] = dot_bytes<Kind::kLarge>(dot[t][0][plane], w0, four);
          dot[t][1][plane] = dot_bytes<Kind::kLarge>(dot[t][1][plane], w1, four);
        });
      });
    });
    each([&](auto t, auto v) { total[t][v] = add_scaled<Kind>(total[t][v], w, tokens, at, v, t, dot[t][v]); });
  }
  each([&](auto t, auto v) { Simd::store(tokens.y + t * kTileRows + v * Simd::kLanes, total[t][v]); });
}

/// Tiles of 4-way dot products.
struct DotTiles {
  static constexpr int64_t kFew = 4;  ///< tokens that read weights straight from the panels
  /// Keeps the weights of columns 4 k to 4 k + 7 of a vector of rows.
  template <bool kLarge>
  static void put(Simd::I even, Simd::I odd, std::byte (*weights)[kTileVectors][kVectorBytes], int v) {
    Simd::istore(weights[0][v], even);
    Simd::istore(weights[1][v], odd);
  }
  template <class Kind>
  static void add(const DecodedChunk& w, const ChunkTokens<Kind::kPlanes>& tokens) {
    constexpr int kTokens = (Simd::kLanes == 16 ? 12 : 4) / (Kind::kPlanes + 1);
    int64_t t = 0;
    for (; t + kTokens <= tokens.n; t += kTokens) panel_tile<kTokens, Kind>(w, tokens.behind(t));
    for (; t < tokens.n; ++t) panel_tile<1, Kind>(w, tokens.behind(t));
  }
};

/// Groups 0 .. out.n_groups - 1 of a chunk of vector `to` from the panel's vector v of rows.
template <class F, class Tiles>
void decode_chunk(const std::byte* panel, int v, int64_t first_group, int to, DecodedChunk& out) {
  using Unit = PanelUnit<F>;
  constexpr int kParts = kPanelGroup / Unit::kScaled;
  for (int64_t group = 0; group < out.n_groups;) {
    const std::byte* const unit = panel + (first_group + group) / Unit::kGroups * Unit::kBytes;
    const PanelHead<F> head(unit);
    const int64_t in_unit = (first_group + group) % Unit::kGroups;
    for (int64_t g = in_unit; g < Unit::kGroups && group < out.n_groups; ++g, ++group) {
      const std::byte* const codes = unit + Unit::kHeadBytes + g * Unit::kGroupBytes + v * kVectorBytes;
      unrolled<4>([&](auto pair) {
        Tiles::template put<kLargeWeights<F>>(panel_weights<F, 2 * pair>(codes), panel_weights<F, 2 * pair + 1>(codes),
                                              out.weights + 8 * group + 2 * pair, to);
      });
      for (int part = 0; part < kParts; ++part) {
        const int64_t at = kParts * group + part;
        Simd::store(out.scale[at][to], head.scale(v, int(kParts * g + part)));
        if constexpr (Unit::kMinima != PanelMinima::none)
          Simd::store(out.min[at][to], head.min(v, int(kParts * g + part)));
      }
    }
  }
}

/// kTilePanels panels from row `first` times all tokens.
template <class F, int kPlanes, class Tiles>
void many_tokens(const LinearOutput& out, int64_t panel_size, int64_t first_panel, const QuantizedTokens<kPlanes>& x) {
  const Linear& w = *out.w;
  const View2<float> y = out.y;
  using Unit = PanelUnit<F>;
  using Kind = TileKind<kPlanes, Unit::kScaled, kLargeWeights<F>, kDotZero<F> != 0, Unit::kMinima != PanelMinima::none>;
  const int64_t n_groups = w.n_in / kPanelGroup, n_panels = (w.n_out + kPanelRows - 1) / kPanelRows;
  const int64_t first_row = first_panel * kPanelRows, n_rows = std::min<int64_t>(kTileRows, w.n_out - first_row);
  DecodedChunk decoded;
  decoded.zero = kDotZero<F>;
  alignas(64) float sums[kTileTokens][kTileRows];
  for (int64_t first = 0; first < y.rows; first += kTileTokens) {
    const int64_t n_tokens = std::min(kTileTokens, y.rows - first);
    std::fill_n(&sums[0][0], n_tokens * kTileRows, 0.0f);
    for (int64_t group = 0; group < n_groups; group += kChunkGroups) {
      decoded.n_groups = std::min<int64_t>(kChunkGroups, n_groups - group);
      for (int v = 0; v < kTileVectors; ++v) {  // past the last panel it is read again
        const int64_t panel = std::min(n_panels - 1, first_panel + v / kRowVectors);
        decode_chunk<F, Tiles>(w.panels + panel * panel_size, v % kRowVectors, group, v, decoded);
      }
      Tiles::template add<Kind>(decoded, {x, group / kChunkGroups, out.first + first, n_tokens, sums[0]});
    }
    for (int64_t t = 0; t < n_tokens; ++t)
      __builtin_memcpy(&y(first + t, first_row), sums[t], sizeof(float) * size_t(n_rows));
  }
}

/// Panels [first, last) times a few tokens.
template <class F, int kPlanes>
void few_tokens(const LinearOutput& out, int64_t panel_size, int64_t first, int64_t last,
                const QuantizedTokens<kPlanes>& x) {
  const Linear& w = *out.w;
  const View2<float> y = out.y;
  for (int64_t p = first; p < last; ++p) {
    int64_t token = 0;
    const auto tokens_of = [&]<int kTokens>() {
      for (; token + kTokens <= y.rows; token += kTokens) {
        float sums[kTokens][kPanelRows];
        few_panel<F, kPlanes, kTokens>(w.panels + p * panel_size, w.n_in / F::kGroup, x, out.first + token, sums);
        const size_t bytes = sizeof(float) * size_t(std::min<int64_t>(kPanelRows, y.cols - p * kPanelRows));
        for (int t = 0; t < kTokens; ++t) __builtin_memcpy(&y(token + t, p * kPanelRows), sums[t], bytes);
      }
    };
    tokens_of.template operator()<4>();
    tokens_of.template operator()<2>();
    tokens_of.template operator()<1>();
  }
}

constexpr int64_t kTaskBytes = 65536;  // of a few tokens' weights: amortises the hand-out, small enough to balance

/// One matrix of a parallel region: panels in tasks of per_task.
template <int kPlanes>
struct PanelTasks {
  const LinearOutput* out;
  int64_t panel_size, n_panels, per_task;
  void (*run)(const PanelTasks& own, const QuantizedTokens<kPlanes>& x, int64_t task);
  int64_t n_tasks() const { return (n_panels + per_task - 1) / per_task; }
};

template <class F, int kPlanes, class Tiles>
void run_task(const PanelTasks<kPlanes>& own, const QuantizedTokens<kPlanes>& x, int64_t task) {
  const int64_t first = task * own.per_task, last = std::min(own.n_panels, first + own.per_task);
  if constexpr (Tiles::kFew > 0)
    if (own.out->y.rows <= Tiles::kFew) return few_tokens<F, kPlanes>(*own.out, own.panel_size, first, last, x);
  many_tokens<F, kPlanes, Tiles>(*own.out, own.panel_size, first, x);
}

template <int kPlanes, class Tiles, class... F>
PanelTasks<kPlanes> panel_tasks(const LinearOutput& out, int n_threads, PanelFormatList<F...>) {
  const Linear& w = *out.w;
  PanelTasks<kPlanes> tasks{&out, panel_bytes(*w.format, kPanelRows, w.n_in), (w.n_out + kPanelRows - 1) / kPanelRows,
                            kTilePanels, nullptr};
  ((w.format->name == F::kName && (tasks.run = run_task<F, kPlanes, Tiles>)) || ...);
  RIDGE_CHECK(tasks.run, "{} has no panels", w.format->name);
  // A thread's share of a small matrix is one task.
  const int64_t share = (tasks.n_panels + n_threads - 1) / n_threads;
  if (out.y.rows <= Tiles::kFew) tasks.per_task = std::max<int64_t>(1, std::min(share, kTaskBytes / tasks.panel_size));
  return tasks;
}

template <int kPlanes, class Tiles = DotTiles>
void run_panels(CpuContext& context, View2<const float> x_in, std::span<const LinearOutput> all) {
  const auto x = quantize_tokens<kPlanes>(context, x_in);
  std::vector<PanelTasks<kPlanes>> matrices;
  int64_t n_tasks = 0;
  for (const LinearOutput& one : all) {
    matrices.push_back(panel_tasks<kPlanes, Tiles>(one, context.pool.size(), PanelFormats{}));
    n_tasks += matrices.back().n_tasks();
  }
  context.pool.for_each(n_tasks, [&](int64_t task, int) {
    auto own = matrices.begin();
    for (; task >= own->n_tasks(); ++own) task -= own->n_tasks();
    own->run(*own, x, task);
  });
}

}  // namespace
}  // namespace ridge
