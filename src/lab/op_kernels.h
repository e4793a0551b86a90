// What the rows of the table of benched kernels are made of: one file op_bench_NAME_cuda.cpp each. Defined in builds
// with RIDGE_CUDA only.
#pragma once

#include "lab/op_bench.h"

namespace ridge::lab {

extern const OpKernel kAttentionPlain;                             // op_bench_attention_cuda.cpp
extern const OpKernel kAttentionTiles, kAttentionTilesOverlap;     // op_bench_tiles_cuda.cpp
extern const OpKernel kGemvBricks, kGemvBricksOverlap;             // op_bench_bricks_cuda.cpp
extern const OpKernel kGemvInt, kGemvInt2Planes, kGemvIntOverlap;  // op_bench_int_cuda.cpp
extern const OpKernel kGemvTernary;                                // op_bench_ternary_cuda.cpp
extern const OpKernel kGemvTiles;                                  // op_bench_gemm_cuda.cpp
extern const OpKernel kAppendRows;                                 // op_bench_append_cuda.cpp
extern const OpKernel kAppendStep;                                 // op_bench_step_cuda.cpp

}  // namespace ridge::lab
