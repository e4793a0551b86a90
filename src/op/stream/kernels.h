// Declarations of the stream kernel bodies, for the table.
#pragma once

#include "op/stream/stream.h"

namespace ridge {

using StreamRead = uint64_t(const std::byte* in, int64_t n);
using StreamWrite = void(std::byte* out, int64_t n, uint8_t value);
using StreamCopy = void(const std::byte* in, std::byte* out, int64_t n);
using StreamTriad = void(const std::byte* a, const std::byte* b, std::byte* out, int64_t n);

StreamRead stream_read_ref, stream_read_avx2, stream_read_avx512;
StreamWrite stream_write_ref, stream_write_avx2, stream_write_avx512;
StreamWrite stream_write_nt_avx2, stream_write_nt_avx512;
StreamCopy stream_copy_ref, stream_copy_avx2, stream_copy_avx512;
StreamCopy stream_copy_nt_avx2, stream_copy_nt_avx512;
StreamTriad stream_triad_ref, stream_triad_avx2, stream_triad_avx512;

}  // namespace ridge
