// Layout of GGUF for reader and writer: the numbers of the file format and the rules for names and alignment.
#pragma once

#include <bit>

#include "io/gguf.h"

namespace ridge::io {

static_assert(std::endian::native == std::endian::little, "GGUF and safetensors are read in place, little-endian");

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr uint32_t kGgufMinVersion = 2, kGgufVersion = 3;
/// Largest known: 35 MB with a tokenizer.json inside. Parsed values take up to 8 times their bytes in the file.
inline constexpr uint64_t kMaxGgufHeaderBytes = uint64_t(128) << 20;
inline constexpr uint64_t kMaxGgufNameBytes = 65535;
inline constexpr uint32_t kMaxGgufDims = 4;
/// Other readers keep tensor names in 64 bytes with a terminating zero, so the writer goes no further.
inline constexpr size_t kMaxWrittenTensorName = 63;

/// Type ids of metadata values.
enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

/// Not empty, at most 65535 bytes, UTF-8, no NUL. The message starts with the fault.
Status check_gguf_name(std::string_view name);

/// general.alignment of the metadata, or 32.
Result<uint64_t> gguf_alignment(const std::map<std::string, GgufValue, std::less<>>& metadata);

}  // namespace ridge::io
