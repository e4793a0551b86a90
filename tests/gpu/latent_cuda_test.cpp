// Latent rows on a device: how they come into the cache, against double arithmetic, and attention over them, against
// softmax in double over the rows that the host's cache of the same bits gives.
#include <cmath>
#include <cstring>

#include "cases/attn_data.h"
#include "gpu/device_step.h"
#include "op/cache/append.h"

namespace ridge {
namespace {

constexpr int kPages = 8, kSlots = 3;

struct LatentCase {
  KvSideConfig side;
  int dim = 0, n_out = 0, n_heads = 0;
  std::vector<std::array<int, 2>> steps = {{37, 5}, {1, 1}, {90, 1}, {2, 17}, {1, 1}, {1, 1}};
};

class LatentCuda : public OnDevice {
 protected:
  /// Steps of two sequences over one layer; every output held to the oracle.
  void check(const std::string& what, const LatentCase& c) {
    KvLayerConfig layer{c.side, c.side, 1, c.dim};
    layer.v_is_k = true;
    layer.rope = rope_of(c.dim, 2);
    const std::vector<KvLayerConfig> layers{layer};
    ModelPlan plan = plan_of(layers, c.n_heads);
    const auto host_memory = [&](int n_pages, int n_slots) {
      return std::make_unique<HostKvMemory>(layers, std::vector<KvMetricView>(), nullptr, n_pages, n_slots);
    };
    SequencePool host(host_memory(kPages, kSlots), {}),
        device(std::make_unique<DeviceKvMemory>(stream(), layers, std::vector<KvMetricView>(), kPages, kSlots), {});
    auto& memory = static_cast<DeviceKvMemory&>(device.memory());
    const KvTiles& k = static_cast<HostKvMemory&>(host.memory()).tiles(0, KvSide::k);
    const KvTiles& v = static_cast<HostKvMemory&>(host.memory()).tiles(0, KvSide::v);
    std::array<SeqId, 2> seqs{};
    for (SeqId& seq : seqs) {
      seq = host.open().or_throw();
      ASSERT_EQ(device.open().or_throw(), seq);
    }
    CpuContext context(1);
    Rng rng(11);
    for (const auto& of_seqs : c.steps) {
      std::vector<SeqTokens> batch;
      int n = 0;
      for (size_t s = 0; s < seqs.size(); ++s) {
        if (of_seqs[s] > 0) batch.push_back({seqs[s], of_seqs[s]});
        n += of_seqs[s];
        for (SequencePool* pool : {&host, &device}) pool->reserve(seqs[s], of_seqs[s]).or_throw();
      }
      StepValues values{
          normal_floats(rng.next(), int64_t(n) * c.n_heads * c.dim), normal_floats(rng.next(), int64_t(n) * c.dim), {}};
      values.v = values.k;
      const std::vector<int32_t> tokens(size_t(n), 0);
      DeviceStep step(stream(), plan_step({tokens, batch}, device, memory, plan), memory);
      const int64_t n_rows = std::max<int64_t>(n, ssize(step.plan().rows));
      const gpu::Buffer out = up(std::vector<float>(size_t(n_rows * c.n_heads * c.n_out + 1), 7.0f));
      const float scale = float(1 / std::sqrt(double(c.dim)));
      step.append(0, c.n_heads, values, [&](const SubBatch& sub, std::span<const KvTiles> sides, const float* q) {
        const DeviceAttention attention{.rows = step.rows_of(sub),
                                        .n_heads = c.n_heads,
                                        .scale = scale,
                                        .k = sides[0],
                                        .v = sides[0],
                                        .q = q,
                                        .out = out.as<float>()};
        ASSERT_EQ(sub.blocks.size(), 1u);
        const auto& [key, blocks] = *sub.blocks.begin();
        if (key.kernel == BlockKernel::rows) {
          rows_attn(stream(), attention, {step.blocks() + blocks.first, blocks.n, c.n_out});
          stream().synchronize();
          return;
        }
        const gpu::Buffer scratch(prefill_attn_scratch_bytes(blocks.part_rows, 1, c.dim));
        rows_f16_attn(stream(), attention,
                      {.blocks = step.blocks() + blocks.first,
                       .n = blocks.n,
                       .queries = blocks.queries,
                       .part_rows = blocks.part_rows,
                       .scratch = scratch.as<std::byte>(),
                       .of_rows = !sub.is_long},
                      c.n_out);
        stream().synchronize();
        n_in_f16_ += 1;
      });
      const std::vector<float> got = down(out.as<float>(), n_rows * c.n_heads * c.n_out + 1);
      EXPECT_EQ(got.back(), 7.0f) << what << " wrote past its end";
      int row = 0;
      for (const SeqTokens& tokens_of : batch) {
        for (const KvSpan& span : cut_span(host.span(tokens_of.seq, row, tokens_of.n_tokens), most_rows_at_once(k, v),
                                           host.calibrates(tokens_of.seq))) {
          kv_append(context, k, v, {&span, 1}, {values.k.data(), n, c.dim}, {values.v.data(), n, c.dim});
          for (int i = 0; i < span.n_rows; ++i) {
            const bool in_f16 = c.dim % 16 == 0 && c.side.format->name != "f32" && c.side.format->name != "bf16";
            hold(what, c, k, span, i, scale, in_f16, &values.q[size_t((span.first_row + i) * c.n_heads * c.dim)],
                 &got[size_t((span.first_row + i) * c.n_heads * c.n_out)]);
            if (HasFatalFailure()) return;
          }
        }
        row += tokens_of.n_tokens;
      }
      for (SequencePool* pool : {&host, &device})
        for (const SeqTokens& tokens_of : batch) pool->advance(tokens_of.seq, tokens_of.n_tokens);
    }
  }

  int n_in_f16_ = 0;  // sub-batches that rows_f16_attn computed

 private:
  /// Query i of a span: q [n_heads, dim] not in cache space, got [n_heads, n_out].
  static void hold(const std::string& what, const LatentCase& c, const KvTiles& k, const KvSpan& span, int i,
                   float scale, bool in_f16, const float* q, const float* got) {
    const int n = span.n_past + i + 1;
    std::vector<float> rows(size_t(n * c.dim));
    std::vector<float> centre(static_cast<size_t>(c.dim));
    for (int p = 0; p < n; ++p) {
      float* const row = &rows[size_t(p * c.dim)];
      read_cached_row(k, span, 0, p, n, row);
      std::ranges::fill(centre, 0.0f);
      k.move_row(span.slot, 0, p / kTilePositions, 1, centre.data());
      k.rotation.forward(centre.data());
      for (int d = 0; d < c.dim; ++d) row[d] += centre[size_t(d)];
    }
    const auto row = [&](int p) { return &rows[size_t(p * c.dim)]; };
    for (int head = 0; head < c.n_heads; head += std::max(1, c.n_heads - 1)) {  // the first and the last
      std::vector<float> turned(q + head * c.dim, q + (head + 1) * c.dim);
      k.rotation.forward(turned.data());
      const AttendOracle oracle(
          turned.data(), n, c.dim, scale, row, row, [](int) { return CentreScore(); }, in_f16);
      std::vector<float> expected(oracle.out.begin(), oracle.out.end());
      double size = 0, together = 0;
      for (int d = 0; d < c.dim; ++d) {
        size += double(expected[size_t(d)]) * expected[size_t(d)];
        together += oracle.bound[size_t(d)] * oracle.bound[size_t(d)];
      }
      k.rotation.backward(expected.data());
      // A rotation spreads errors over the row, keeps their norm, and rounds a value up to ten times on either side; a
      // centre once.
      const bool turns = k.rotation.kind != Rotation::none;
      const double rounding = 24 * 0x1p-24 * std::sqrt(size);
      for (int d = 0; d < c.n_out; ++d)
        ASSERT_NEAR(got[head * c.n_out + d], expected[size_t(d)],
                    (turns ? std::sqrt(together) : oracle.bound[size_t(d)]) + rounding)
            << what << ", head " << head << ", position " << n - 1 << ", channel " << d;
    }
  }
};

KvSideConfig nearest(std::string_view name) { return side_of(kv(name), kv(name).policy); }

TEST_F(LatentCuda, AttentionReadsEveryFormat) {
  for (const KvFormat& format : kv_formats())
    check(std::string(format.name), {.side = nearest(format.name), .dim = 96, .n_out = 64, .n_heads = 4});
  EXPECT_GT(n_in_f16_, 0);
}

/// Heads of several blocks, the last one not full; rows of the widest models and of no power of two; sinks, windows and
/// centres.
TEST_F(LatentCuda, AttentionOfManyHeadsAndWidths) {
  const std::vector<std::array<int, 2>> few = {{70, 3}, {1, 1}, {1, 30}};
  check("f16 of 576", {.side = nearest("f16"), .dim = 576, .n_out = 512, .n_heads = 20, .steps = few});
  check("rotor-3 of 576", {.side = nearest("rotor-3"), .dim = 576, .n_out = 512, .n_heads = 2, .steps = few});
  check("q8_0 of 320", {.side = nearest("q8_0"), .dim = 320, .n_out = 256, .n_heads = 3, .steps = few});
  check("f32 of 50", {.side = nearest("f32"), .dim = 50, .n_out = 50, .n_heads = 17});
  check("q8_0 of many heads", {.side = nearest("q8_0"), .dim = 64, .n_out = 32, .n_heads = 70, .steps = few});
  check("p8 with everything", {.side = side_of(kv("p8"), kFullPolicy), .dim = 96, .n_out = 64, .n_heads = 5});
  EXPECT_GT(n_in_f16_, 0);
}

/// Norm and RoPE of a row's parts: queries keep their absorbed part.
TEST_F(LatentCuda, RowsAreNormedAndTurnedInTheirParts) {
  constexpr int kRank = 40, kRope = 12, kWidth = kRank + kRope, kQuery = 30, kHeads = 3, kRows = 5, kPairs = kRope / 2;
  KvLayerConfig layer{side_of(kv("f32")), side_of(kv("f32")), 1, kWidth};
  layer.v_is_k = true;
  DeviceKvMemory memory(stream(), {&layer, 1}, {}, 1, 1);
  const int32_t page = 0;
  memory.set_pages(0, 0, {&page, 1});
  std::vector<StepRow> rows;
  for (int i = 0; i < kRows; ++i) rows.push_back({.row = kRows - 1 - i, .position = i, .slot = 0, .ring = 0});
  rows.push_back({.row = kRows});  // of nobody
  const auto absorbed = normal_floats(1, (kRows + 1) * kHeads * kRank),
             q = normal_floats(2, (kRows + 1) * kHeads * kQuery), kv_rows = normal_floats(3, (kRows + 1) * kWidth),
             norm = normal_floats(4, kRank), cosines = normal_floats(5, (kRows + 1) * kPairs),
             sines = normal_floats(6, (kRows + 1) * kPairs);
  const gpu::Buffer d_rows = up(rows), d_absorbed = up(absorbed), d_q = up(q), d_kv = up(kv_rows), d_norm = up(norm),
                    d_cosines = up(cosines), d_sines = up(sines);
  for (const bool halves : {false, true}) {
    const gpu::Buffer q_out = up(std::vector<float>(size_t((kRows + 1) * kHeads * kWidth), 7.0f));
    device_append_latent(
        stream(),
        {.rows = {.n = kRows + 1, .rows = d_rows.as<StepRow>(), .pages = memory.page_table(), .page_pitch = 1},
         .n_heads = kHeads,
         .tiles = memory.tiles(0, KvSide::k),
         .rank = kRank,
         .query_dim = kQuery,
         .absorbed = d_absorbed.as<float>(),
         .q = d_q.as<float>(),
         .kv = d_kv.as<float>(),
         .norm = d_norm.as<float>(),
         .norm_eps = 1e-6f,
         .cosines = d_cosines.as<float>(),
         .sines = d_sines.as<float>(),
         .n_pairs = kPairs,
         .rope_halves = halves,
         .q_out = q_out.as<float>()});
    const auto got_q = down(q_out.as<float>(), (kRows + 1) * kHeads * kWidth);
    for (int i = 0; i < kRows; ++i) {
      const auto expect_part = [&](const float* got, const float* latent, const float* rope, double factor,
                                   const std::string& what) {
        for (int d = 0; d < kRank; ++d) {
          const double expected = factor == 0 ? latent[d] : latent[d] * factor * norm[size_t(d)];
          ASSERT_NEAR(got[d], expected, 4 * 0x1p-24 * std::abs(expected)) << what << " " << d;
        }
        for (int p = 0; p < kPairs; ++p) {
          const int first = halves ? p : 2 * p, second = halves ? p + kPairs : 2 * p + 1;
          const double c = cosines[size_t(i * kPairs + p)], s = sines[size_t(i * kPairs + p)], a = rope[first],
                       b = rope[second], size = (std::abs(c) + std::abs(s)) * (std::abs(a) + std::abs(b));
          ASSERT_NEAR(got[kRank + first], a * c - b * s, 3 * 0x1p-24 * size) << what << ", pair " << p;
          ASSERT_NEAR(got[kRank + second], a * s + b * c, 3 * 0x1p-24 * size) << what << ", pair " << p;
        }
      };
      const int row = rows[size_t(i)].row;
      for (int h = 0; h < kHeads; ++h) {
        const int at = row * kHeads + h;
        expect_part(&got_q[size_t(at * kWidth)], &absorbed[size_t(at * kRank)], &q[size_t((at + 1) * kQuery - kRope)],
                    0, "head " + std::to_string(h));
      }
      const float* const from = &kv_rows[size_t(row * kWidth)];
      double size2 = 0;
      for (int d = 0; d < kRank; ++d) size2 += double(from[d]) * from[d];
      const auto bytes = memory.row_bytes(0, KvSide::k, DeviceKvMemory::RowForm::coded, 0, 0, i);
      std::vector<float> row_there(kWidth);
      std::memcpy(row_there.data(), bytes.data(), bytes.size());
      expect_part(row_there.data(), from, from + kRank, 1 / std::sqrt(size2 / kRank + 1e-6f), "K");
    }
    for (size_t d = size_t(kRows * kHeads * kWidth); d < got_q.size(); ++d) ASSERT_EQ(got_q[d], 7.0f) << "padding";
  }
}

}  // namespace
}  // namespace ridge
