// The row decoders of attention: equal to their format's own bit for bit, and inside their slack.
#include <gtest/gtest.h>

#include <bit>

#include "cases/attn_data.h"

namespace ridge {
namespace {

struct RowDecoder {
  Isa isa;
  DecodeRows (*find)(const KvFormat&, int head_dim);
};
#if defined(__x86_64__)
constexpr RowDecoder kRowDecoders[] = {{Isa::avx2, decode_rows_avx2}, {Isa::avx512, decode_rows_avx512}};
#elif defined(__aarch64__)
constexpr RowDecoder kRowDecoders[] = {{Isa::neon, decode_rows_neon}};
#else
constexpr std::array<RowDecoder, 0> kRowDecoders{};
#endif

/// Decodes `count` rows of bytes with the ISA's decoder from a fenced buffer and expects the reference's bits.
void expect_equal_rows(const RowDecoder& decoder, const KvFormat& format, int head_dim, std::span<const uint8_t> bytes,
                       int count) {
  const int64_t row_bytes = format.row_bytes(head_dim);
  FencedBytes rows(count * row_bytes, kKvPadBytes);
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  Guarded<float> out(count * head_dim, 1);
  const KvCoding coding{.fixed = 0.3f};
  decoder.find(format, head_dim)(format, coding, rows.data(), row_bytes, count, head_dim, out.data());
  ASSERT_TRUE(out.intact());
  std::vector<float> expected(size_t(head_dim), 0.0f);
  for (int i = 0; i < count; ++i) {
    format.decode(rows.data() + i * row_bytes, head_dim, coding, expected.data());
    for (int d = 0; d < head_dim; ++d)
      ASSERT_EQ(std::bit_cast<uint32_t>(out[int64_t(i) * head_dim + d]), std::bit_cast<uint32_t>(expected[size_t(d)]))
          << isa_name(decoder.isa) << " " << format.name << " head_dim " << head_dim << " row " << i << " element "
          << d;
  }
}

TEST(DecodeRows, EveryByteAtEveryPlaceGivesTheReferenceBits) {
  // Sweeps all values of one byte while the others are random: every code at every position, every half of every scale
  // (zero, subnormal, infinity and NaN among them).
  for (const RowDecoder& decoder : kRowDecoders) {
    if (decoder.isa > detect_isa()) continue;
    for (const KvFormat& format : kv_formats())
      for (const int head_dim : {8, 16, 32, 64, 80, 96, 128}) {
        if (head_dim % format.group != 0) continue;
        if (format.bits_per_value(head_dim) >= 16 && head_dim > 32) continue;  // values are coded on their own
        const size_t row_bytes = size_t(format.row_bytes(head_dim));
        Rng rng(4);
        std::vector<uint8_t> rows(256 * row_bytes);
        for (size_t at = 0; at < row_bytes; ++at) {
          for (uint8_t& byte : rows) byte = uint8_t(rng.next() >> 13);
          for (size_t value = 0; value < 256; ++value) rows[value * row_bytes + at] = uint8_t(value);
          expect_equal_rows(decoder, format, head_dim, rows, 256);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
  }
}

TEST(DecodeRows, All16BitCodesGiveTheReferenceBits) {
  std::vector<uint8_t> rows(2 * 65536);
  for (size_t code = 0; code < 65536; ++code) rows[2 * code] = uint8_t(code), rows[2 * code + 1] = uint8_t(code >> 8);
  for (const RowDecoder& decoder : kRowDecoders)
    if (decoder.isa <= detect_isa())
      for (const int head_dim : {8, 64})
        for (const char* name : {"f16", "bf16"})
          expect_equal_rows(decoder, **find_kv_format(name), head_dim, rows, 65536 / head_dim);
}

TEST(DecodeRows, OneRowAndWideRowsStayInsideTheSlack) {
  for (const RowDecoder& decoder : kRowDecoders) {
    if (decoder.isa > detect_isa()) continue;
    for (const KvFormat& format : kv_formats())
      for (const int head_dim : {8, 16, 24, 64, 72, 80, 96, 112, 128, 144, 192, 256, 512}) {
        if (head_dim % format.group != 0) continue;
        std::vector<uint8_t> row(size_t(format.row_bytes(head_dim)));
        Rng rng(uint64_t(head_dim) + 1);
        for (uint8_t& byte : row) byte = uint8_t(rng.next() >> 13);
        expect_equal_rows(decoder, format, head_dim, row, 1);
      }
  }
}

}  // namespace
}  // namespace ridge
