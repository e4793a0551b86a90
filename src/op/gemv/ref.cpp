// The oracle of every linear kernel: decode a row, accumulate in double.
#include "op/kernels.h"

namespace ridge {

void linear_ref(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  float* decoded = context.scratch[0].ensure<float>(context.pool.size() * w.n_in);
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
