#include "op/gemm/cublaslt_cuda.h"

#include <type_traits>

#include "format/int4_g128.h"
#include "gpu/tensor.h"
#include "ridge/error.h"

#if defined(__CUDACC__) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>
#define RIDGE_HAS_CUBLASLT
#endif

namespace ridge {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) to_f16_kernel(const float* x, int64_t n, uint16_t* out) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) out[i] = gpu::float_to_f16(x[i]);
}

/// A warp a block: each lane four weights.
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const uint16_t* blocks, int64_t n, uint2* out) {
  constexpr int kHalves = int(sizeof(Int4G128::Block)) / 2;
  const int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = int(threadIdx.x % 32);
  if (i >= n) return;
  const uint16_t* block = blocks + i * kHalves;
  const float scale = gpu::f16_to_float(block[0]);
  const uint32_t codes = block[1 + lane];
  const auto value = [&](int t) { return float(int(codes >> (4 * t) & 0xF) - 8) * scale; };
  out[i * 32 + lane] = make_uint2(gpu::pack_f16(value(0), value(1)), gpu::pack_f16(value(2), value(3)));
}

}  // namespace

void device_to_f16(gpu::StreamHandle stream, const float* x, int64_t n, uint16_t* out) {
  gpu::launch("to_half", to_f16_kernel, {unsigned(gpu::ceil_div(n, kThreads)), kThreads, 0, stream}, x, n, out);
}

void device_dequantize_int4(gpu::StreamHandle stream, const void* blocks, int64_t n_blocks, uint16_t* out) {
  gpu::launch("dequantize_int4", dequantize_kernel,
              {unsigned(gpu::ceil_div(n_blocks, kThreads / 32)), kThreads, 0, stream},
              static_cast<const uint16_t*>(blocks), n_blocks, reinterpret_cast<uint2*>(out));
}

#ifdef RIDGE_HAS_CUBLASLT
namespace {

/// The library's functions, or why there are none.
struct Library {
  Library() {
    const std::string name = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      why_not = name + " is not installed";
      return;
    }
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
      if (!function) why_not = name + " has no " + symbol;
    };
    find(create, "cublasLtCreate");
    find(layout_create, "cublasLtMatrixLayoutCreate");
    find(layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(desc_create, "cublasLtMatmulDescCreate");
    find(desc_set, "cublasLtMatmulDescSetAttribute");
    find(desc_destroy, "cublasLtMatmulDescDestroy");
    find(preference_create, "cublasLtMatmulPreferenceCreate");
    find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(matmul, "cublasLtMatmul");
  }
  std::string why_not;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
};
const Library& library() {
  static const Library loaded;
  return loaded;
}

void check_library(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ErrorKind::failure, std::string("cuBLASLt ") + what + ": status " + std::to_string(int(status)));
}

cublasLtHandle_t library_handle() {
  static const cublasLtHandle_t handle = [] {
    cublasLtHandle_t made = nullptr;
    check_library(library().create(&made), "create");
    return made;
  }();
  return handle;
}

}  // namespace

struct LibraryGemm::Impl {
  ~Impl() {
    for (const cublasLtMatrixLayout_t layout : {w, x, y})
      if (layout) library().layout_destroy(layout);
    if (product) library().desc_destroy(product);
  }
  // Column-major: y^T [n_out, n_tokens] = (w as [n_in, n_out])^T times (x as [n_in, n_tokens]).
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  gpu::Buffer workspace;
};

std::string LibraryGemm::why_not() { return library().why_not; }

LibraryGemm::LibraryGemm(int n_tokens, int n_out, int n_in) : impl_(std::make_unique<Impl>()) {
  if (!why_not().empty()) throw Error(ErrorKind::no_device, "cuBLASLt: " + why_not());
  constexpr size_t kWorkspaceBytes = size_t(32) << 20;
  const Library& lib = library();
  Impl& m = *impl_;
  const auto tokens = uint64_t(n_tokens), outputs = uint64_t(n_out), inputs = uint64_t(n_in);
  check_library(lib.layout_create(&m.w, CUDA_R_16F, inputs, outputs, n_in), "layout");
  check_library(lib.layout_create(&m.x, CUDA_R_16F, inputs, tokens, n_in), "layout");
  check_library(lib.layout_create(&m.y, CUDA_R_32F, outputs, tokens, n_out), "layout");
  check_library(lib.desc_create(&m.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check_library(lib.desc_set(m.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "matmul");
  cublasLtMatmulPreference_t preference = nullptr;
  check_library(lib.preference_create(&preference), "preference");
  lib.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes, sizeof kWorkspaceBytes);
  cublasLtMatmulHeuristicResult_t found = {};
  int n_found = 0;
  const cublasStatus_t status =
      lib.heuristic(library_handle(), m.product, m.w, m.x, m.y, m.y, preference, 1, &found, &n_found);
  lib.preference_destroy(preference);
  check_library(status, "heuristic");
  if (n_found == 0) throw Error(ErrorKind::failure, "cuBLASLt has no kernel for this shape");
  m.algorithm = found.algo;
  if (found.workspaceSize > 0) m.workspace = gpu::Buffer(int64_t(found.workspaceSize));
}

void LibraryGemm::run(gpu::StreamHandle stream, const uint16_t* x, const uint16_t* w, float* y) const {
  const float one = 1, zero = 0;
  check_library(library().matmul(library_handle(), impl_->product, &one, w, impl_->w, x, impl_->x, &zero, y, impl_->y,
                                 y, impl_->y, &impl_->algorithm, impl_->workspace.as<void>(),
                                 size_t(impl_->workspace.bytes()), stream),
                "matmul");
}

#else

struct LibraryGemm::Impl {};
std::string LibraryGemm::why_not() {
  return gpu::kIsHip ? "cuBLASLt is NVIDIA's and left out of a build for AMD"
                     : "this program was built without cublasLt.h";
}
LibraryGemm::LibraryGemm(int, int, int) { throw Error(ErrorKind::no_device, "cuBLASLt: " + why_not()); }
void LibraryGemm::run(gpu::StreamHandle, const uint16_t*, const uint16_t*, float*) const {}

#endif

LibraryGemm::~LibraryGemm() = default;

}  // namespace ridge
