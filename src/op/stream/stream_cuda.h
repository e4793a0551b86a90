// Streams over device memory and the smallest kernel there is: what a GPU gives when nothing is computed. `read` is the
// memory bandwidth of everything that decodes, the empty kernel the least a step's edge from kernel to kernel can cost.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gpu/device.h"

namespace ridge {

/// Sizes are multiples of this, pointers aligned to 16.
inline constexpr int64_t kDeviceStreamUnit = 64 << 10;

/// Fills `data` with 32-bit words, word i being i * 0x9E3779B9 (wrapping).
void device_write(gpu::StreamHandle stream, void* data, int64_t bytes);
/// Sum (wrapping) of the words that device_write() leaves.
uint32_t device_written_sum(int64_t bytes);

/// Names of the ways to read: threads of a block x 16-byte loads a thread has under way, then blocks per processor, or
/// "all" for a block per part of the buffer.
std::span<const std::string_view> device_read_variants();
/// Partial sums of one read, so that blocks do not queue up for one word.
inline constexpr int kDeviceReadSums = 256;
/// Loads every byte; adds to sums [kDeviceReadSums] what in total is the sum (wrapping) of the words.
void device_read(gpu::StreamHandle stream, int variant, const void* data, int64_t bytes, uint32_t* sums);

void device_copy(gpu::StreamHandle stream, void* to, const void* from, int64_t bytes);
/// out = a + 3 b, of 32-bit words (wrapping).
void device_triad(gpu::StreamHandle stream, void* out, const void* a, const void* b, int64_t bytes);

/// A block of 32 threads that does nothing. `overlap`: it may start while the grid before it drains
/// (gpu::Grid::overlap).
void device_nothing(gpu::StreamHandle stream, bool overlap);

}  // namespace ridge
