// Attention on the integers of coded rows (op/attn/int_tiles_avx512.h); rows in other formats, sinks among them, go
// through floats as in float-avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/attn/kernels.h"

namespace ridge {
namespace {
inline DecodeRows decode_rows(const KvFormat& format, int head_dim) { return decode_rows_avx512(format, head_dim); }
}  // namespace
}  // namespace ridge

#include "op/attn/attn_simd.h"
#include "op/attn/int_tiles_avx512.h"

namespace ridge {
namespace {

/// Memory of a call: for every pair a query in integers as K's coded rows want it, then one as its recent rows do.
/// Memory of a thread: an IntScratch, then sums of each pair.
class Avx512Integers {
 public:
  static int64_t query_bytes(const Attention&) { return kSources * int64_t(sizeof(IntQuery)); }
  static int64_t thread_bytes(int pairs) { return int64_t(sizeof(IntScratch)) + pairs * int64_t(sizeof(IntSums)); }
  static void round(const Attention& a, const float* q, int64_t pair, std::byte* memory, int64_t n_pairs) {
    for (const Source source : {kCoded, kRecent})
      if (const IntKernels* kernels = kernels_of(a.k, source))
        kernels->round_query(q, a.scale, queries_of(memory, n_pairs, source)[pair]);
  }

  Avx512Integers(const Attention& a, std::byte* queries, int64_t n_pairs, int64_t first_pair, std::byte* memory)
      : a_(a),
        k_{kernels_of(a.k, kCoded), kernels_of(a.k, kRecent)},
        v_{kernels_of(a.v, kCoded), kernels_of(a.v, kRecent)},
        queries_{queries_of(queries, n_pairs, kCoded) + first_pair, queries_of(queries, n_pairs, kRecent) + first_pair},
        scratch_(*reinterpret_cast<IntScratch*>(memory)),
        sums_(reinterpret_cast<IntSums*>(memory + sizeof(IntScratch))) {}

  /// Values of a new split are to come.
  void begin() { any_ = false; }

  /// Scores of the positions of a tile that a source has, if its format has integer kernels; `scores` are the tile's.
  bool scores(const SideOfBlock& side, Source source, int base, Ahead& ahead, float* scores) {
    const IntKernels* const kernels = k_[source];
    if (!kernels) return false;
    const int group = a_.group(), count = side.live(source, base).end;
    kernels->turn_keys(side.rows(source, base), side.coding(source).fixed, count, ahead, scratch_);
    const IntQuery* const q = queries_[source];
    for_each_query(
        side.block, kKeyTile, [&](int i) { return side.live(source, base, i); },
        [&](int first, int last) {
          kernels->scores(q + first * group, (last - first) * group, count, scratch_, ahead,
                          scores + int64_t(first) * group * kScoreStride, kScoreStride);
        },
        [&](int i, Live live) {
          for (int pair = i * group; pair < (i + 1) * group; ++pair) {
            float some[kKeyTile];
            kernels->scores(q + pair, 1, count, scratch_, ahead, some, kKeyTile);
            std::copy(some + live.begin, some + live.end, scores + int64_t(pair) * kScoreStride + live.begin);
          }
        });
    return true;
  }

  bool values(const SideOfBlock& side, Source source, int base, Ahead& ahead, const float* p) {
    const IntKernels* const kernels = v_[source];
    if (!kernels) return false;
    const int group = a_.group(), count = side.live(source, base).end;
    if (!any_) __builtin_memset(static_cast<void*>(sums_), 0, size_t(side.block.count * group) * sizeof(IntSums));
    any_ = true;
    kernels->turn_values(side.rows(source, base), side.coding(source).fixed, count, ahead, scratch_);
    const int pairs = side.block.count * group;
    for (int i = 0; i < side.block.count; ++i) {
      const Live live = side.live(source, base, i);
      if (live.empty()) continue;
      for (int pair = i * group; pair < (i + 1) * group; ++pair) {
        kernels->add_values(p + int64_t(pair) * kScoreStride, live, count, scratch_, sums_[pair]);
        ahead.ask(pairs + 3 * (pair + 1), 4 * pairs);  // the first quarter when values were turned
      }
    }
    return true;
  }

  /// Adds the sums of pairs [first, last) to out [pairs, stride], in the order of values.
  void add_to(int first, int last, float* out, int64_t stride) const {
    if (!any_) return;
    for (int pair = first; pair < last; ++pair)
      for (int d = 0; d < a_.v.head_dim; d += 64)
        for (int k = 0; k < 4; ++k) {  // word 4 l + i of vector k is value d + 16 l + 4 k + i
          const float* const from = sums_[pair].out + d + 16 * k;
          for (int lane = 0; lane < 4; ++lane) {
            float* const to = out + pair * stride + d + 16 * lane + 4 * k;
            _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), _mm_loadu_ps(from + 4 * lane)));
          }
        }
  }

 private:
  static const IntKernels* kernels_of(const KvTiles& t, Source source) {
    return int_kernels(kv_formats()[size_t(source == kCoded ? t.format : t.recent)], t.head_dim);
  }
  static IntQuery* queries_of(std::byte* memory, int64_t n_pairs, Source source) {
    return reinterpret_cast<IntQuery*>(memory) + (source == kCoded ? 0 : n_pairs);
  }

  const Attention& a_;
  const IntKernels *k_[kSources], *v_[kSources];
  const IntQuery* queries_[kSources];
  IntScratch& scratch_;
  IntSums* sums_;
  bool any_ = false;
};

}  // namespace

void attention_int_avx512(CpuContext& context, const Attention& a) { run_attention<Avx512Integers>(context, a); }
ScratchBytes attention_int_avx512_scratch(const Attention& a, int64_t n_times, int n_threads) {
  return AttentionScratch<Avx512Integers>(a, n_times, n_threads).bytes();
}

}  // namespace ridge
