// FlashInfer's single_decode_with_kv_cache as a C function, for tools/peer_kernels.py: attention of one token over an f16
// cache, head_dim 128, without mask, window, cap of logits or position encoding; scores are scaled by 1 / sqrt(128).
//
// Template arguments, launch code and flags are those of its Python function's own build. DATA is the folder
// flashinfer/data of its wheel:
//
//   nvcc -O3 -std=c++17 -use_fast_math -DNDEBUG -gencode arch=compute_90a,code=sm_90a -shared -cudart shared
//        -Xcompiler -fPIC -I DATA/include -I DATA/cccl/libcudacxx/include -o libflashinfer_decode.so
//        tools/peer_flashinfer.cu
#include <cuda_fp16.h>

#include <cmath>
#include <exception>
#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

namespace fi = flashinfer;

namespace {

constexpr int kHeadDim = 128;
constexpr auto kNoPositions = fi::PosEncodingMode::kNone;
using Plain = fi::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/false,
                                   /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;

/// What the parameters of both ways have.
template <typename Params>
Params params_of(const half* q, const half* k, const half* v, half* o, int n_heads, int n_kv_heads, int n_keys) {
  Params params;
  params.q = const_cast<half*>(q);
  params.k = const_cast<half*>(k);
  params.v = const_cast<half*>(v);
  params.o = o;
  params.kv_len = n_keys;
  params.num_qo_heads = n_heads;
  params.num_kv_heads = n_kv_heads;
  params.q_stride_n = n_heads * kHeadDim;
  params.q_stride_h = kHeadDim;
  params.window_left = -1;
  params.sm_scale = 1 / std::sqrt(float(kHeadDim));
  return params;
}

}  // namespace

/// q, o [n_heads, 128]; k, v [n_keys, n_kv_heads, 128]; tmp: 32 MiB, as the Python function allocates. Returns CUDA's
/// error, or -1 where FlashInfer has no kernel for the number of heads (6 to a KV head without tensor cores).
extern "C" int flashinfer_single_decode(const half* q, const half* k, const half* v, half* tmp, half* o, int n_heads,
                                        int n_kv_heads, int n_keys, int tensor_cores, cudaStream_t stream) try {
  if (!tensor_cores) {
    auto params = params_of<fi::SingleDecodeParams<half, half, half>>(q, k, v, o, n_heads, n_kv_heads, n_keys);
    params.kv_stride_n = n_kv_heads * kHeadDim;
    params.kv_stride_h = kHeadDim;
    return fi::SingleDecodeWithKVCacheDispatched<kHeadDim, kNoPositions, Plain>(params, tmp, stream);
  }
  auto params = params_of<fi::SinglePrefillParams<half, half, half>>(q, k, v, o, n_heads, n_kv_heads, n_keys);
  params.qo_len = 1;
  params.group_size = fi::uint_fastdiv(n_heads / n_kv_heads);
  params.k_stride_n = params.v_stride_n = n_kv_heads * kHeadDim;
  params.k_stride_h = params.v_stride_h = kHeadDim;
  return fi::SinglePrefillWithKVCacheDispatched<kHeadDim, kHeadDim, kNoPositions, /*USE_FP16_QK_REDUCTION=*/false,
                                                fi::MaskMode::kNone, Plain>(params, tmp, stream);
} catch (const std::exception&) {
  return -1;
}
