// A model that knows one thing: (5 token + 3) mod kFakeVocab comes next. All pointers in device memory.
#pragma once

#include "gpu/device.h"

namespace ridge {

inline constexpr int kFakeVocab = 97;

/// logits [n_seq, kFakeVocab]: 1 for the token that comes after tokens [n_seq], 0 for the rest.
void fake_step(gpu::StreamHandle stream, int n_seq, const int32_t* tokens, float* logits);
/// tokens [n_seq] become those that come after.
void fake_draw(gpu::StreamHandle stream, int n_seq, int32_t* tokens);

}  // namespace ridge
