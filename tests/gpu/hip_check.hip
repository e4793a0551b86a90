// Compiled for RDNA3, never run: the score of one query against n_rows rotor-3 keys, one row a lane. tools/hip_check.py
// looks for v_dot4_i32_iu8 and v_perm_b32 in its assembly, so the portable helpers cannot lose their instructions.
#include <hip/hip_runtime.h>

#include "gpu/rotor3_levels.h"

/// scores[row] = q . levels(codes[row]); q is [head_dim] signed bytes, codes [n_rows, 3 * head_dim / 8].
extern "C" __global__ void rotor3_scores(const unsigned char* codes, const uint32_t* q, int head_dim, int n_rows,
                                         int32_t* scores) {
  const int row = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= n_rows) return;
  scores[row] = ridge::gpu::rotor3_dot(codes + size_t(row) * 3 * size_t(head_dim) / 8, q, head_dim);
}
