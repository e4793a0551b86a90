// The form of a metric that the search of a trellis code takes (format/trellis.h).
#pragma once

namespace ridge {

/// Replaces a metric [dim, dim], symmetric and positive definite, its channels in the row's order, by its factor as
/// CodeTrellis takes it, in the order of the chain; dim a multiple of 32. About dim^3 / 3 steps in double.
void factor_metric(int dim, float* metric);

}  // namespace ridge
