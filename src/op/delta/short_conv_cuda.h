// The gated short convolution of short_conv.h on a device: same definition, all pointers in device memory.
#pragma once

#include "op/delta/delta_cuda.h"

namespace ridge {

struct DeviceShortConv {
  int kernel = 0;  ///< at most kMostDeltaTaps
  int64_t channels = 0;
  const float* weights = nullptr;  ///< [kernel, channels]
  const DeltaSpan* spans = nullptr;
  int n_spans = 0;
  int most = 0;                ///< rows of one span, at most
  LayerStates states;          ///< [kernel - 1, channels] each, read and written
  const float* bcx = nullptr;  ///< [rows of the step, 3 channels]
  float* out = nullptr;        ///< [rows of the step, channels]
};
/// Results of a token are the same bits however a prompt is cut.
void device_short_conv(gpu::StreamHandle stream, const DeviceShortConv& d);

}  // namespace ridge
