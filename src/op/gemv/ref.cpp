// The oracle of every linear kernel: decode a row, accumulate in double.
#include "op/kernels.h"

namespace ridge {

/// A decoded row of each thread.
ScratchBytes linear_ref_scratch(const Linear& w, int64_t, int n_threads) { return {4 * n_threads * w.n_in}; }

void linear_ref(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  context.make_scratch(linear_ref_scratch(w, x.rows, context.pool.size()));
  float* decoded = context.scratch[0].as<float>();
  context.pool.for_each(w.n_out, [&](int64_t r, int thread) {
    float* row = decoded + thread * w.n_in;
    w.format->decode(w.rows + r * w.format->row_bytes(w.n_in), w.n_in, row);
    for (int64_t t = 0; t < y.rows; ++t) {
      double sum = 0;
      for (int64_t i = 0; i < w.n_in; ++i) sum += double(row[i]) * x(t, i);
      y(t, r) = float(sum);
    }
  });
}

}  // namespace ridge
