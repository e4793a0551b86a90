#include "format/trellis_factor.h"

#include <algorithm>
#include <vector>

#include "format/trellis.h"

namespace ridge {

void factor_metric(int dim, float* metric) {
  const size_t n = size_t(dim);
  std::vector<double> left(n * n);  // what is left of the metric, in the order of the chain
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j)
      left[i * n + j] = metric[trellis_channel(int(i), dim) * dim + trellis_channel(int(j), dim)];
  std::fill_n(metric, n * n, 0.0f);
  for (size_t k = n; k-- > 0;) {
    const double* const row = &left[k * n];
    // Rounding alone can bring a positive definite form to 0.
    const double pivot = std::max(row[k], 1.0 / double(kMostMetric));
    metric[k * n + k] = float(pivot);
    for (size_t i = 0; i < k; ++i) {
      const double part = row[i] / pivot;
      metric[i * n + k] = float(part);
      for (size_t j = 0; j < k; ++j) left[i * n + j] -= part * row[j];
    }
  }
}

}  // namespace ridge
