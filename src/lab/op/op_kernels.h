// Parts of the table of benched kernels: rows of a GPU, one file op_bench_NAME_cuda.cpp each, defined in builds with
// RIDGE_CUDA only; and rows of the CPU, made from the tables of its ops.
#pragma once

#include "lab/op/op_bench.h"
#include "op/linear.h"

namespace ridge::lab {

std::vector<OpKernel> gpu_attention_kernels();  // op_bench_attention_cuda.cpp
std::vector<OpKernel> gpu_append_kernels();     // op_bench_append_cuda.cpp
// op_bench_bricks_cuda.cpp
extern const OpKernel kGemvBricks, kGemvBricksOverlap, kGemvBricksInt8, kGemvBricksInt8Overlap, kGemmBricks;
// op_bench_int_cuda.cpp
extern const OpKernel kGemvInt1Plane, kGemvInt2Planes, kGemvIntOverlap, kGemvTernary, kGemvTernaryOverlap, kGemmInt4,
    kGemmTernary;
extern const OpKernel kGemvTiles;                // op_bench_gemm_cuda.cpp
extern const OpKernel kGemvLibrary, kGemvTwoOp;  // op_bench_library_cuda.cpp
/// All of these (gpu_bench_cuda.cpp); none in a build without CUDA.
std::span<const OpKernel> gpu_op_kernels();

std::vector<OpKernel> cpu_attention_kernels();  // op_bench_attention_cpu.cpp
std::vector<OpKernel> cpu_append_kernels();     // op_bench_append_cpu.cpp
/// The tables that matmuls are benched from.
struct LinearTables {
  std::span<const LinearVariant> gemv = gemv_variants(), gemm = gemm_variants();
};
std::vector<OpKernel> cpu_gemv_kernels(const LinearTables& tables = {});  // op_bench_gemv_cpu.cpp

}  // namespace ridge::lab
