// One token at a time through append_decode() and encode_leaving() against the general append: the same bytes
// everywhere.
#include "op/cache/decode_append_cuda.h"

#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "gpu/device_data.h"
#include "model/device_kv.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {
namespace {

constexpr int kSeq = 2, kHeads = 3, kKvHeads = 2, kContext = 288;

class DecodeAppendCuda : public OnDevice {
 protected:
  std::vector<std::byte> bytes(const TileSide& side, int head_dim, int which) const {
    const int64_t lists = kSeq * kKvHeads;
    const std::byte* from = which == 0 ? side.coded : which == 1 ? side.ring : side.sinks;
    const int64_t n = which == 0   ? side.seq_stride * kSeq
                      : which == 1 ? lists * side.ring_tiles * TileShape(side.recent, head_dim).bytes
                                   : (side.n_sinks > 0 ? lists * TileShape(TileKind::f16, head_dim).bytes : 0);
    return down(from, n);
  }
};

KvSideConfig side(const char* name, KvPolicy policy) { return {find_kv_format(name).or_throw(), policy}; }

std::vector<KvSideConfig> sides() {
  std::vector<KvSideConfig> all;
  for (const char* name : {"f16", "bf16", "q8_0", "p8", "i8r", "q4_0", "rotor-4", "rotor-3"}) {
    const KvFormat& format = *find_kv_format(name).or_throw();
    all.push_back({&format, format.policy});
  }
  const KvPolicy window{Rotation::hadamard, false, 32, 4};
  for (const char* name : {"f16", "q8_0", "q4_0", "i8r"}) all.push_back(side(name, window));
  all.push_back(side("q4_0", {Rotation::planar, false, 0, 5}));
  all.push_back(side("rotor-3", {Rotation::hadamard, true, 64, 4, KvScale::lsq}));
  all.push_back(side("rotor-4", {Rotation::planar, true, 32, 0, KvScale::norm}));
  all.push_back(side("rotor-3", {Rotation::hadamard, true, 96, 4, KvScale::unbiased, KvRounding::weighted, "i8r"}));
  return all;
}

std::vector<float> rows_with_outliers(uint64_t seed, int64_t n, int dim) {
  auto rows = normal_floats(seed, n * dim);
  for (int64_t i = 0; i < n; ++i) {
    rows[size_t(i * dim + 3)] += 6;
    if (i % 17 == 5) rows[size_t(i * dim + 1)] = 1e6f;
    if (i % 23 == 7) rows[size_t(i * dim + 7)] = NAN;
    if (i % 11 == 4) std::fill_n(&rows[size_t(i * dim)], dim, i % 2 ? 0.0f : -0.0f);
  }
  return rows;
}

TEST_F(DecodeAppendCuda, WritesTheBytesOfTheGeneralAppend) {
  for (const int dim : {64, 128}) {
    // A metric far from the identity.
    std::vector<float> metric;
    for (int h = 0; h < kKvHeads; ++h) {
      const auto seen = normal_floats(uint64_t(77 + h), dim);
      for (int i = 0; i < dim; ++i)
        for (int j = 0; j < dim; ++j) metric.push_back(seen[size_t(i)] * seen[size_t(j)] + (i == j ? 0.2f : 0.0f));
    }
    for (const KvSideConfig& config : sides())
      for (const bool is_k : {true, false}) {
        const bool weighted = config.policy.rounding == KvRounding::weighted;
        const std::span<const float> form = weighted ? std::span<const float>(metric) : std::span<const float>();
        const auto open = [&](bool k) {
          return DeviceKvStore(stream(), config, k, 3, kKvHeads, dim, kContext, kSeq, form);
        };
        // Centred rows from before the centre is set on, too.
        for (const int prompt : {97, 9}) {
          if (prompt == 9 && (!config.policy.centre || dim == 128)) continue;
          DeviceKvStore expected = open(is_k), got = open(is_k), other = open(!is_k);
          ASSERT_TRUE(got.tiled());
          ASSERT_EQ(nullptr,
                    decode_append_unsupported(got.append_side().kind, config.policy.scale, got.layout().retention));
          DeviceKvScratch scratch;
          const int n_steps = dim == 64 ? 66 : 33;
          const auto prefix = rows_with_outliers(1, int64_t(kSeq) * prompt * kKvHeads, dim);
          for (DeviceKvStore* store : {&expected, &got, &other}) {
            const gpu::Buffer rows = up(prefix);
            store->append(stream(), kSeq, 0, prompt, rows.as<float>(), scratch);
          }
          const gpu::Buffer n_past = up(std::vector<int32_t>(kSeq, prompt)),
                            n_keys = up(std::vector<int32_t>(kSeq, prompt + 1));
          const gpu::Buffer q_out(4 * kSeq * kHeads * dim);
          for (int step = 0; step < n_steps; ++step) {
            // Rows of one sequence lie apart, as in a joint Q K V product.
            const int64_t pitch = (kHeads + 2 * kKvHeads) * dim;
            const auto joint = rows_with_outliers(uint64_t(100 + step), kSeq * pitch / dim, dim);
            const int64_t at = (is_k ? kHeads : kHeads + kKvHeads) * dim;
            std::vector<float> own;
            for (int s = 0; s < kSeq; ++s)
              own.insert(own.end(), joint.begin() + s * pitch + at, joint.begin() + s * pitch + at + kKvHeads * dim);
            const gpu::Buffer rows = up(own), djoint = up(joint);
            const gpu::Buffer again[] = {up(own), up(own)};
            expected.append_tiles(stream(), kSeq, prompt + step, 1, rows.as<float>(), scratch);
            const bool sets_centre = config.policy.centre && prompt + step == 63;
            ASSERT_EQ(got.steps_from(prompt + step), !sets_centre) << prompt + step;
            DecodeAppend a{.n_seq = kSeq,
                           .n_heads = kHeads,
                           .n_kv_heads = kKvHeads,
                           .head_dim = dim,
                           .n_past = n_past.as<int32_t>(),
                           .q = djoint.as<float>(),
                           .k = djoint.as<float>() + kHeads * dim,
                           .v = djoint.as<float>() + (kHeads + kKvHeads) * dim,
                           .q_pitch = pitch,
                           .k_pitch = pitch,
                           .v_pitch = pitch,
                           .q_out = q_out.as<float>(),
                           .k_side = (is_k ? got : other).append_side(),
                           .v_side = (is_k ? other : got).append_side()};
            if (sets_centre) {
              got.append_tiles(stream(), kSeq, prompt + step, 1, again[0].as<float>(), scratch);
              other.append_tiles(stream(), kSeq, prompt + step, 1, again[1].as<float>(), scratch);
            } else {
              // In front of the row that comes: what leaves is older.
              const gpu::Buffer sides = up(std::vector<AppendSide>{a.k_side, a.v_side});
              encode_leaving(stream(), {.n_seq = kSeq,
                                        .n_kv_heads = kKvHeads,
                                        .head_dim = dim,
                                        .n_sides = 2,
                                        .sides = sides.as<AppendSide>(),
                                        .n_past = n_past.as<int32_t>()});
              append_decode(stream(), a);
            }
            device_next_position(stream(), kSeq, n_past.as<int32_t>(), n_keys.as<int32_t>());
            if (step % 16 != 15 && step + 1 != n_steps) continue;
            for (const int which : {0, 1, 2})
              ASSERT_EQ(bytes(got.tile_side(), dim, which), bytes(expected.tile_side(), dim, which))
                  << config.format->name << ", window " << config.policy.window << ", part " << which << ", "
                  << (is_k ? "K" : "V") << ", head_dim " << dim << ", step " << step;
            ASSERT_EQ(
                0, std::memcmp(down(q_out.as<float>(), kHeads * dim).data(), joint.data(), size_t(4 * kHeads * dim)));
          }
          EXPECT_EQ(got.saturated(stream()), expected.saturated(stream()))
              << config.format->name << ", head_dim " << dim << ", from " << prompt;
          EXPECT_EQ(down(n_keys.as<int32_t>(), 1)[0], prompt + n_steps + 1);
        }
      }
  }
}

TEST_F(DecodeAppendCuda, NormsAndTurnsQueriesAndKeys) {
  constexpr int kDim = 128;
  const KvSideConfig plain = side("bf16", {});
  for (const bool halves : {true, false})
    for (const int n_pairs : {64, 40}) {
      DeviceKvStore k(stream(), plain, true, 0, kKvHeads, kDim, kContext, 1),
          v(stream(), plain, false, 0, kKvHeads, kDim, kContext, 1);
      DeviceKvStore expected_k(stream(), plain, true, 0, kKvHeads, kDim, kContext, 1);
      const auto q = normal_floats(1, kHeads * kDim), kv = normal_floats(2, kKvHeads * kDim),
                 weight = normal_floats(3, kDim);
      std::vector<double> frequency(static_cast<size_t>(n_pairs));
      for (int i = 0; i < n_pairs; ++i) frequency[size_t(i)] = std::pow(10000.0, -double(i) / n_pairs);
      const int position = 200;
      const gpu::Buffer dq = up(q), dk = up(kv), dw = up(weight), df = up(frequency),
                        n_past = up(std::vector<int32_t>{position});
      const gpu::Buffer cosines(4 * n_pairs), sines(4 * n_pairs), cosines1(4 * n_pairs), sines1(4 * n_pairs);
      const gpu::Buffer q_out(4 * kHeads * kDim), n_keys(4);
      device_step_rope(stream(), 1, n_past.as<int32_t>(), n_pairs, df.as<double>(), 1.25f, cosines.as<float>(),
                       sines.as<float>());
      append_decode(stream(), {.n_seq = 1,
                               .n_heads = kHeads,
                               .n_kv_heads = kKvHeads,
                               .head_dim = kDim,
                               .n_past = n_past.as<int32_t>(),
                               .q = dq.as<float>(),
                               .k = dk.as<float>(),
                               .v = dk.as<float>(),
                               .q_norm = dw.as<float>(),
                               .k_norm = dw.as<float>(),
                               .norm_eps = 1e-5f,
                               .cosines = cosines.as<float>(),
                               .sines = sines.as<float>(),
                               .n_pairs = n_pairs,
                               .rope_halves = halves,
                               .q_out = q_out.as<float>(),
                               .k_side = k.append_side(),
                               .v_side = v.append_side()});
      // The same by the separate ops.
      device_rope_tables(stream(), position, 1, n_pairs, df.as<double>(), 1.25f, cosines1.as<float>(),
                         sines1.as<float>());
      const auto both = [&](const gpu::Buffer& rows, int heads) {
        device_rms_norm(stream(), heads, kDim, rows.as<float>(), dw.as<float>(), 1e-5f, rows.as<float>());
        device_apply_rope(stream(), 1, 1, heads, kDim, n_pairs, halves, cosines1.as<float>(), sines1.as<float>(),
                          rows.as<float>());
      };
      both(dq, kHeads);
      both(dk, kKvHeads);
      const auto got = down(q_out.as<float>(), kHeads * kDim), want = down(dq.as<float>(), kHeads * kDim);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6 * (1 + std::abs(want[i]))) << i;
      const auto k_want = down(dk.as<float>(), kKvHeads * kDim);
      for (int h = 0; h < kKvHeads; ++h) {
        const auto row = k.coded_row(stream(), 0, h, position);
        for (int d = 0; d < kDim; ++d) {
          uint16_t bits;
          std::memcpy(&bits, &row[size_t(2 * d)], 2);
          const float value = k_want[size_t(h * kDim + d)];
          ASSERT_NEAR(bf16_to_f32(bits), value, std::abs(value) * 0x1p-8 + 1e-6) << d;
        }
      }
    }
}

}  // namespace
}  // namespace ridge
