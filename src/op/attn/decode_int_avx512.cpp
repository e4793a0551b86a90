// Decode attention on the integers of coded rows (op/attn/int_tiles_avx512.h); segments in other formats, the exact
// rows of a window among them, go through floats as in split-avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/attn/kernels.h"

namespace ridge {
namespace {
inline DecodeRows decode_rows(const KvFormat& format, int head_dim) { return decode_rows_avx512(format, head_dim); }
}  // namespace
}  // namespace ridge

#include "op/attn/decode_simd.h"
#include "op/attn/int_tiles_avx512.h"

namespace ridge {
namespace {

/// Memory of a thread: an IntScratch, then a query and sums for each head of the group.
class Avx512Integers {
 public:
  static int64_t thread_bytes(int group) {
    return int64_t(sizeof(IntScratch)) + group * int64_t(sizeof(IntQuery) + sizeof(IntSums));
  }
  Avx512Integers(std::byte* memory, const AttnDecode& a, int kv_head)
      : a_(a),
        kv_head_(kv_head),
        group_(a.n_heads / a.n_kv_heads),
        scratch_(*reinterpret_cast<IntScratch*>(memory)),
        queries_(reinterpret_cast<IntQuery*>(memory + sizeof(IntScratch))),
        sums_(reinterpret_cast<IntSums*>(queries_ + group_)) {}

  /// Scores of the positions of [begin, end) in the segment, if its format has integer kernels.
  bool scores(const KvSegment& segment, int begin, int end, const float* q, float* scores, int64_t stride) {
    const IntKernels* kernels = int_kernels(*segment.format, a_.head_dim);
    if (!kernels) return false;
    for (int j = 0; j < group_; ++j) kernels->round_query(q + j * a_.head_dim, a_.scale, queries_[j]);
    for_each_tile(segment, kv_head_, begin, end, kIntTile,
                  [&](const std::byte* rows, int position, int count, Ahead& ahead) {
                    kernels->scores(segment, kv_head_, rows, count, group_, queries_, ahead, scratch_,
                                    scores + position - begin, stride);
                  });
    return true;
  }

  bool values(const KvSegment& segment, int begin, int end, const float* p, int64_t stride) {
    const IntKernels* kernels = int_kernels(*segment.format, a_.head_dim);
    if (!kernels) return false;
    if (!any_) __builtin_memset(static_cast<void*>(sums_), 0, size_t(group_) * sizeof(IntSums));
    any_ = true;
    for_each_tile(
        segment, kv_head_, begin, end, kIntTile, [&](const std::byte* rows, int position, int count, Ahead& ahead) {
          kernels->values(segment, kv_head_, rows, count, group_, p + position - begin, stride, ahead, scratch_, sums_);
        });
    return true;
  }

  /// Adds the sums of values to out [group, stride], in the order of values.
  void add_to(float* out, int64_t stride) const {
    if (!any_) return;
    for (int j = 0; j < group_; ++j)
      for (int d = 0; d < a_.head_dim; d += 64)
        for (int lane = 0; lane < 4; ++lane)
          for (int k = 0; k < 4; ++k)
            for (int i = 0; i < 4; ++i)
              out[j * stride + d + 16 * lane + 4 * k + i] += sums_[j].out[d + 16 * k + 4 * lane + i];
  }

 private:
  const AttnDecode& a_;
  const int kv_head_, group_;
  IntScratch& scratch_;
  IntQuery* queries_;
  IntSums* sums_;
  bool any_ = false;
};

}  // namespace

void attn_decode_int_avx512(CpuContext& context, const AttnDecode& a) { run_attn_decode<Avx512Integers>(context, a); }

}  // namespace ridge
