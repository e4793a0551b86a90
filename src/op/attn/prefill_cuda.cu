#include <string>
#include <type_traits>

#include "gpu/tensor.h"
#include "op/attn/prefill_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr float kNever = -1e30f;  // below any score: where a running maximum begins
constexpr float kLog2E = 1.44269504f;

/// How the work is cut. A warp has kTiles x 16 rows: every fragment of K and V it loads meets kTiles products, and
/// shared memory could not feed the tensor cores with one.
template <int kDim_, int kPlanes_, int kWarps_, class Row_>
struct Cut {
  using Row = Row_;
  static constexpr int kDim = kDim_, kPlanes = kPlanes_, kWarps = kWarps_;
  static constexpr bool kFloats = std::is_same_v<Row, float>;
  static constexpr int kTiles = kDim == 256 ? 1 : 2;  // outputs of 16 x 256 fill the registers
  static constexpr int kKeys = kDim == 256 ? 32 : 64;
  static constexpr int kThreads = 32 * kWarps, kWarpRows = 16 * kTiles, kRows = kWarpRows * kWarps;
  static constexpr int kBlocks = kWarps <= 4 ? 2 : 1;  // on a multiprocessor, by registers

  static constexpr int kRowBytes = 2 * kDim, kSideBytes = kKeys * kRowBytes, kStageBytes = 2 * kSideBytes;
  static constexpr int kQueryBytes = kRows * kRowBytes * kPlanes;
  static constexpr int kLandingBytes = kFloats ? 2 * kStageBytes : 0;  // floats on their way to halves
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStageBytes + kLandingBytes;
};

/// Which of a side's rows the queries of a block need.
struct Reach {
  int coded_min = 0, coded_max = 0;  // coded_end() of the first and the last query
  bool has_exact = false;            // some query may see a position exact
};
template <class Row>
__device__ Reach reach_of(const DeviceKvRows<Row>& side, int first_n, int last_n) {
  const KvRetention& r = side.retention;
  return {r.coded_end(first_n), r.coded_end(last_n), r.window > 0 || r.tile > 1 || first_n < r.calibration};
}
/// Whether positions [first, end) may be seen there.
__device__ bool reads(const Reach& reach, bool coded, int first, int end) {
  return coded ? first < reach.coded_max : reach.has_exact && end > reach.coded_min;
}
/// Whether every query sees all of [first, end) there (or not at all).
__device__ bool reads_all(const Reach& reach, bool coded, int first, int end) {
  return coded ? end <= reach.coded_min : first >= reach.coded_max;
}

/// Keys [first, first + kKeys), from one source a side: source & 1 is K coded, source & 2 V coded.
struct Step {
  int first = 0, source = 0;
  __device__ bool k_coded() const { return source & 1; }
  __device__ bool v_coded() const { return source & 2; }
};

/// The steps of a block in order.
struct Steps {
  Reach k, v;
  int n_keys = 0, keys = 0;   // positions [0, n_keys), `keys` a step
  bool always_alike = false;  // K and V are coded at the same positions

  __device__ bool is_read(const Step& s) const {
    return reads(k, s.k_coded(), s.first, s.first + keys) && reads(v, s.v_coded(), s.first, s.first + keys) &&
           !(always_alike && s.k_coded() != s.v_coded());
  }
  /// The first step to be read at or after s; one with first >= n_keys is the end.
  __device__ Step from(Step s) const {
    while (s.first < n_keys && !is_read(s)) s = after(s);
    return s;
  }
  __device__ Step after(Step s) const { return s.source == 3 ? Step{s.first + keys, 0} : Step{s.first, s.source + 1}; }
  __device__ Step next(Step s) const { return from(after(s)); }
};

/// Rows of one side of a (sequence, kv head); row 0 is position `begin`.
template <class Row>
struct Source {
  const Row* rows;
  int begin, end;
};
template <class Row>
__device__ Source<Row> source_of(const DeviceKvRows<Row>& side, bool coded, int64_t seq_head, int n_keys, int dim) {
  if (coded) return {side.coded + seq_head * side.n_coded * dim, 0, side.n_coded};
  return {side.exact + seq_head * (n_keys - side.exact_first) * dim, side.exact_first, n_keys};
}

/// Where 16-byte chunk `chunk` of row `row` of a tile is: eight rows of a column of chunks are in different banks.
template <class C>
__device__ __forceinline__ int tile_at(int row, int chunk) {
  return row * C::kRowBytes + ((chunk ^ (row & 7)) << 4);
}

/// Starts to copy keys [first, first + kKeys) of a side. Positions that the source lacks take its nearest row: weights
/// are zero there, and rows that exist are numbers.
/// Halves go to their places in `to`; floats land in `landing`, where the thread that asked for them finds them again.
template <class C>
__device__ __forceinline__ void start_side(const Source<typename C::Row>& from, int first, std::byte* to,
                                           std::byte* landing) {
  constexpr int kPer = 16 / sizeof(typename C::Row), kPerRow = C::kDim / kPer;  // values of a copy; copies of a row
  static_assert(C::kThreads % kPerRow == 0 && C::kKeys * kPerRow % C::kThreads == 0);
  const int column = int(threadIdx.x) % kPerRow;
#pragma unroll
  for (int i = 0; i < C::kKeys * kPerRow / C::kThreads; ++i) {
    const int key = int(threadIdx.x) / kPerRow + i * (C::kThreads / kPerRow);
    const int position = min(max(first + key, from.begin), from.end - 1);
    const auto* row = from.rows + int64_t(position - from.begin) * C::kDim + column * kPer;
    if constexpr (C::kFloats) gpu::copy_async16(landing + (i * C::kThreads + int(threadIdx.x)) * 16, row);
    else gpu::copy_async16(to + tile_at<C>(key, column), row);
  }
}

/// The floats this thread asked for, landed, to their places as halves.
template <class C>
__device__ __forceinline__ void narrow_side(const std::byte* landing, std::byte* to) {
  constexpr int kPerRow = C::kDim / 4;
  const int column = int(threadIdx.x) % kPerRow;
#pragma unroll
  for (int i = 0; i < C::kKeys * kPerRow / C::kThreads; ++i) {
    const int key = int(threadIdx.x) / kPerRow + i * (C::kThreads / kPerRow);
    const float4 x = *reinterpret_cast<const float4*>(landing + (i * C::kThreads + int(threadIdx.x)) * 16);
    *reinterpret_cast<uint2*>(to + tile_at<C>(key, column / 2) + column % 2 * 8) =
        make_uint2(gpu::pack_f16(x.x, x.y), gpu::pack_f16(x.z, x.w));
  }
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(gpu::kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(gpu::kAllLanes, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(gpu::kAllLanes, x, 1);
  return x + __shfl_xor_sync(gpu::kAllLanes, x, 2);
}

/// The rows of a warp: row i of (sequence, kv head) is head i % group of token i / group. Those past the last one
/// repeat it and are not stored.
struct Rows {
  int first, n, group;  // the warp's first; all of the (sequence, kv head)

  __device__ int row(int i) const { return min(first + i, n - 1); }
  __device__ int token(int i) const { return row(i) / group; }
};

/// Lane 4 r + c has rows 16 t + r + 8 h of the warp: state [t][h], scores [t][key / 8][2 h + p] of keys 8 .. + 2c + p,
/// outputs [t][channel / 8][2 h + p] likewise.
template <class C>
struct WarpState {
  float top[C::kTiles][2], total[C::kTiles][2];
  float out[C::kTiles][C::kDim / 8][4];
};

/// The warp's queries, times `factor`, as A operands of this lane: [t][step of 16 channels][plane][lane][16 bytes].
template <class C>
__device__ void put_queries(std::byte* to, const float* q, int64_t token_stride, const Rows& rows, float factor,
                            int lane) {
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t) {
    const float* row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = rows.row(16 * t + r + 8 * h);
      row[h] = q + at / rows.group * token_stride + at % rows.group * C::kDim + 2 * c;
    }
#pragma unroll 4
    for (int s = 0; s < C::kDim / 16; ++s) {
      uint32_t words[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = *reinterpret_cast<const float2*>(row[i % 2] + 16 * s + 8 * (i / 2));
        const float x = pair.x * factor, y = pair.y * factor;
        words[0][i] = gpu::pack_f16(x, y);
        words[1][i] = gpu::pack_f16(x - gpu::half_to_float(uint16_t(words[0][i])),
                                    y - gpu::half_to_float(uint16_t(words[0][i] >> 16)));
      }
#pragma unroll
      for (int p = 0; p < C::kPlanes; ++p)
        *reinterpret_cast<uint4*>(to + (((t * (C::kDim / 16) + s) * C::kPlanes + p) * 32 + lane) * 16) =
            make_uint4(words[p][0], words[p][1], words[p][2], words[p][3]);
    }
  }
}

/// Scores of a tile, in powers of two.
template <class C>
__device__ __forceinline__ void tile_scores(const std::byte* queries, const std::byte* tile, int lane,
                                            float (&scores)[C::kTiles][C::kKeys / 8][4]) {
  constexpr int kSteps = C::kDim / 16;
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t)
#pragma unroll
    for (int n = 0; n < C::kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][n][i] = 0;
  // Matrices of a load: keys 0-7 and 8-15, each with two chunks of channels.
  const int key = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    uint32_t a[C::kPlanes][C::kTiles][4];
#pragma unroll
    for (int p = 0; p < C::kPlanes; ++p)
#pragma unroll
      for (int t = 0; t < C::kTiles; ++t) {
        const uint4 words =
            *reinterpret_cast<const uint4*>(queries + ((t * kSteps + s) * C::kPlanes + p) * 512 + lane * 16);
        a[p][t][0] = words.x, a[p][t][1] = words.y, a[p][t][2] = words.z, a[p][t][3] = words.w;
      }
#pragma unroll
    for (int n = 0; n < C::kKeys / 16; ++n) {
      uint32_t b[4];
      gpu::load_matrices(b, tile + 16 * n * C::kRowBytes + tile_at<C>(key, 2 * s + chunk));
#pragma unroll
      for (int p = C::kPlanes - 1; p >= 0; --p)
#pragma unroll
        for (int t = 0; t < C::kTiles; ++t)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            gpu::mma_f16(scores[t][2 * n + half], a[p][t], b[2 * half], b[2 * half + 1]);
    }
  }
}

/// Scores of what a row does not see, or not in this step, become -infinity.
template <class C>
__device__ void mask(const DeviceAttnOver<typename C::Row>& a, const Rows& rows, const Step& step, int lane,
                     float (&scores)[C::kTiles][C::kKeys / 8][4]) {
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = a.n_keys - a.n_tokens + rows.token(16 * t + lane / 4 + 8 * h) + 1;
      const int k_coded = a.k.retention.coded_end(n), v_coded = a.v.retention.coded_end(n);
      const int begin = max(step.k_coded() ? 0 : k_coded, step.v_coded() ? 0 : v_coded) - step.first;
      const int end = min(step.k_coded() ? k_coded : n, step.v_coded() ? v_coded : n) - step.first;
#pragma unroll
      for (int i = 0; i < C::kKeys / 4; ++i) {
        const int key = 8 * (i / 2) + 2 * (lane % 4) + i % 2;
        if (key < begin || key >= end) scores[t][i / 2][2 * h + i % 2] = -INFINITY;
      }
    }
}

/// Takes a tile's scores into the running softmax, and its values into the outputs.
template <class C>
__device__ __forceinline__ void take_tile(float (&scores)[C::kTiles][C::kKeys / 8][4], const std::byte* tile, int lane,
                                          WarpState<C>& state) {
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t) {
    float shrink[2];
    bool rose = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = state.top[t][h];
#pragma unroll
      for (int i = 0; i < C::kKeys / 4; ++i) top = fmaxf(top, scores[t][i / 2][2 * h + i % 2]);
      top = quad_max(top);
      shrink[h] = gpu::fast_exp2(state.top[t][h] - top);
      rose = rose || top != state.top[t][h];
      state.top[t][h] = top;
      state.total[t][h] *= shrink[h];
    }
    if (__any_sync(gpu::kAllLanes, rose)) {
#pragma unroll
      for (int e = 0; e < C::kDim / 8; ++e)
#pragma unroll
        for (int i = 0; i < 4; ++i) state.out[t][e][i] *= shrink[i / 2];
    }
  }
  // Matrices of a load: keys 0-7 and 8-15 of a chunk of channels, then of the next.
  const int key = lane % 16, chunk = lane / 16;
#pragma unroll
  for (int n = 0; n < C::kKeys / 16; ++n) {
    uint32_t weights[C::kTiles][4];
#pragma unroll
    for (int t = 0; t < C::kTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // row half i % 2, keys 8 (i / 2) ..
        const float(&of_tile)[4] = scores[t][2 * n + i / 2];
        const float x = gpu::fast_exp2(of_tile[2 * (i % 2)] - state.top[t][i % 2]);
        const float y = gpu::fast_exp2(of_tile[2 * (i % 2) + 1] - state.top[t][i % 2]);
        state.total[t][i % 2] += x + y;
        weights[t][i] = gpu::pack_f16(x, y);
      }
#pragma unroll
    for (int e = 0; e < C::kDim / 16; ++e) {
      uint32_t b[4];
      gpu::load_matrices_transposed(b, tile + 16 * n * C::kRowBytes + tile_at<C>(key, 2 * e + chunk));
#pragma unroll
      for (int t = 0; t < C::kTiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          gpu::mma_f16(state.out[t][2 * e + half], weights[t], b[2 * half], b[2 * half + 1]);
    }
  }
}

template <class C>
__device__ void store(const WarpState<C>& state, float* out, int64_t token_stride, const Rows& rows, int lane) {
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = quad_sum(state.total[t][h]);
      const int i = 16 * t + lane / 4 + 8 * h, at = rows.row(i);
      if (rows.first + i >= rows.n) continue;
      float* to = out + at / rows.group * token_stride + at % rows.group * C::kDim + 2 * (lane % 4);
#pragma unroll
      for (int e = 0; e < C::kDim / 8; ++e)
        *reinterpret_cast<float2*>(to + 8 * e) =
            make_float2(state.out[t][e][2 * h] / total, state.out[t][e][2 * h + 1] / total);
    }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) prefill_kernel(DeviceAttnOver<typename C::Row> a) {
  std::byte* const shared = gpu::dynamic_shared<std::byte>();
  std::byte* const stages = shared + C::kQueryBytes;
  std::byte* const landing = stages + 2 * C::kStageBytes;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int group = a.n_heads / a.n_kv_heads, n_rows = a.n_tokens * group, n_past = a.n_keys - a.n_tokens;
  // The blocks that see most keys begin first.
  const int first_row = int(gridDim.y - 1 - blockIdx.y) * C::kRows;
  const int64_t seq = blockIdx.z, seq_head = seq * a.n_kv_heads + blockIdx.x;
  const Rows rows{first_row + warp * C::kWarpRows, n_rows, group};

  const int first_n = n_past + first_row / group + 1;
  const int last_n = n_past + (min(first_row + C::kRows, n_rows) - 1) / group + 1;
  const int warp_keys = n_past + rows.token(C::kWarpRows - 1) + 1;  // no row of the warp sees more
  const KvRetention &kr = a.k.retention, &vr = a.v.retention;
  const Steps steps{.k = reach_of(a.k, first_n, last_n),
                    .v = reach_of(a.v, first_n, last_n),
                    .n_keys = last_n,
                    .keys = C::kKeys,
                    .always_alike = kr.window == vr.window && kr.tile == vr.tile && kr.calibration == vr.calibration};

  const auto start = [&](const Step& s, int stage) {
    std::byte* const to = stages + stage * C::kStageBytes;
    start_side<C>(source_of(a.k, s.k_coded(), seq_head, a.n_keys, C::kDim), s.first, to, landing);
    start_side<C>(source_of(a.v, s.v_coded(), seq_head, a.n_keys, C::kDim), s.first, to + C::kSideBytes,
                  landing + 2 * C::kSideBytes);
    gpu::copy_commit();
  };

  Step step = steps.from({});
  start(step, 0);

  // Each lane reads back what it put there itself.
  std::byte* const queries = shared + warp * (C::kQueryBytes / C::kWarps);
  const int64_t token_stride = int64_t(a.n_heads) * C::kDim;
  const int64_t first_value = seq * a.n_tokens * token_stride + int64_t(blockIdx.x) * group * C::kDim;
  put_queries<C>(queries, a.q + first_value, token_stride, rows, a.scale * kLog2E, lane);

  WarpState<C> state;
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) state.top[t][h] = kNever, state.total[t][h] = 0;
#pragma unroll
    for (int e = 0; e < C::kDim / 8; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i) state.out[t][e][i] = 0;
  }

  // One barrier a step: past it, everyone has done with the step before, whose stage is filled next. Floats are put
  // into the stage of this step ahead of the barrier: everyone is past the step that used it.
  for (int stage = 0; step.first < last_n; stage ^= 1) {
    std::byte* const tile = stages + stage * C::kStageBytes;
    const Step next = steps.next(step);
    gpu::copy_wait<0>();
    if constexpr (C::kFloats) {
      narrow_side<C>(landing, tile);
      narrow_side<C>(landing + 2 * C::kSideBytes, tile + C::kSideBytes);
    }
    if (!C::kFloats) __syncthreads();
    if (next.first < last_n) start(next, stage ^ 1);
    if (C::kFloats) __syncthreads();

    if (step.first < warp_keys) {
      float scores[C::kTiles][C::kKeys / 8][4];
      tile_scores<C>(queries, tile, lane, scores);
      const int end = step.first + C::kKeys;
      if (end > first_n || !reads_all(steps.k, step.k_coded(), step.first, end) ||
          !reads_all(steps.v, step.v_coded(), step.first, end))
        mask<C>(a, rows, step, lane, scores);
      take_tile<C>(scores, tile + C::kSideBytes, lane, state);
    }
    step = next;
  }
  store<C>(state, a.out + first_value, token_stride, rows, lane);
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  gpu::check(cudaGetDevice(&device), "device");
  gpu::check(cudaDeviceGetAttribute(&value, attribute, device), "attribute of the device");
  return value;
}

/// The cut that needs the least room.
template <int kDim, class Row>
using Small = Cut<kDim, 1, 4, Row>;

template <class C>
void launch(gpu::StreamHandle stream, const DeviceAttnOver<typename C::Row>& a) {
  gpu::check(cudaFuncSetAttribute(prefill_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes),
             "shared memory of prefill attention");
  const int64_t n_rows = int64_t(a.n_tokens) * (a.n_heads / a.n_kv_heads);
  const dim3 grid(unsigned(a.n_kv_heads), unsigned(gpu::ceil_div(n_rows, C::kRows)), unsigned(a.n_seq));
  gpu::launch("prefill attention", prefill_kernel<C>, {grid, C::kThreads, size_t(C::kSharedBytes), stream}, a);
}

template <int kDim, class Row>
void launch(gpu::StreamHandle stream, const DeviceAttnOver<Row>& a, const PrefillPlan& plan) {
  if (plan.planes == 2) return launch<Cut<kDim, 2, 4, Row>>(stream, a);
  using Large = Cut<kDim, 1, 8, Row>;
  int warps = plan.warps;
  if (warps == 0) {
    // Two small blocks of halves hide each other's barriers. Floats take too much room for two blocks and want to be
    // narrowed for as many rows as possible, unless that leaves processors idle. One sequence decides: side by side
    // they give the bits of each alone.
    const int64_t n_rows = int64_t(a.n_tokens) * (a.n_heads / a.n_kv_heads);
    const int64_t blocks = gpu::ceil_div(n_rows, Large::kRows) * a.n_kv_heads;
    const bool large = Large::kFloats && blocks >= device_attribute(cudaDevAttrMultiProcessorCount) &&
                       Large::kSharedBytes <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    warps = large ? 8 : 4;
  }
  if (warps == 8) launch<Large>(stream, a);
  else launch<Small<kDim, Row>>(stream, a);
}

template <class Row>
int least_shared_bytes(int head_dim) {
  return head_dim == 64    ? Small<64, Row>::kSharedBytes
         : head_dim == 128 ? Small<128, Row>::kSharedBytes
                           : Small<256, Row>::kSharedBytes;
}

template <class Row>
void run(gpu::StreamHandle stream, const DeviceAttnOver<Row>& a, const PrefillPlan& plan) {
  const char* why = prefill_attn_unsupported(a.head_dim, sizeof(Row));
  if (!why && a.n_heads % a.n_kv_heads != 0) why = "heads are no multiple of kv heads";
  if (!why && plan.planes != 1 && plan.planes != 2) why = "a query has 1 or 2 planes";
  if (!why && plan.warps != 0 && plan.warps != 4 && (plan.warps != 8 || plan.planes == 2))
    why = "a block has 4 warps, or 8 with one plane";
  if (why) throw Error(ErrorKind::failure, std::string("prefill_attn: ") + why);
  if (a.head_dim == 64) launch<64>(stream, a, plan);
  else if (a.head_dim == 128) launch<128>(stream, a, plan);
  else launch<256>(stream, a, plan);
}

}  // namespace

const char* prefill_attn_unsupported(int head_dim, int value_bytes) {
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) return "head_dim must be 64, 128 or 256";
  const int bytes = value_bytes == 4 ? least_shared_bytes<float>(head_dim) : least_shared_bytes<uint16_t>(head_dim);
  if (bytes > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))
    return "the device has too little shared memory for rows of this size";
  return nullptr;
}

void prefill_attn(gpu::StreamHandle stream, const DeviceAttnOver<float>& a, const PrefillPlan& plan) {
  run(stream, a, plan);
}
void prefill_attn(gpu::StreamHandle stream, const DeviceAttnOver<uint16_t>& a, const PrefillPlan& plan) {
  run(stream, a, plan);
}

}  // namespace ridge
