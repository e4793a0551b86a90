#include "engine/expert_stream.h"

#include <algorithm>
#include <cstring>

#include "engine/cuda_model.h"

namespace ridge {
namespace {

/// Bytes that a thread copies at a time.
constexpr int64_t kPiece = 256 << 10;

struct Piece {
  std::byte* to;
  const void* from;
  int64_t bytes;
};

/// Where the blocks and biases of expert e go in a source at `to`.
void add_pieces(const DeviceExpertMatmul& product, const ExpertParts& parts, size_t e, std::byte* to,
                std::vector<Piece>& pieces) {
  const auto at = product.source_roles();
  for (size_t r = 0; r < parts.matrices.size(); ++r) {
    const Linear& m = *parts.matrices[r][e];
    RIDGE_CHECK(m.rows != nullptr, "an expert of {} x {} has no rows to bring", m.n_out, m.n_in);
    for (int64_t first = 0; first < m.bytes(); first += kPiece)
      pieces.push_back({to + at[r].blocks + first, m.rows + first, std::min(kPiece, m.bytes() - first)});
    const std::vector<float>& bias = *parts.biases[r][e];
    if (!bias.empty()) pieces.push_back({to + at[r].biases, bias.data(), 4 * ssize(bias)});
  }
}

}  // namespace

void ExpertStream::bring(gpu::StreamHandle stream, int layer, std::span<const int32_t> numbers, ExpertMatmuls& slot,
                         std::byte* source) {
  const LayerPlan& plan = plan_.layers[size_t(layer)];
  const LayerWeights& weights = weights_.layers[size_t(layer)];
  const ExpertParts gate_up = expert_gate_up_of(plan, weights), down = expert_down_of(plan, weights);
  std::vector<bool> chosen(weights.experts.size());
  for (const int32_t number : numbers)  // a row of padding may have chosen none
    if (number >= 0 && number < ssize(chosen)) chosen[size_t(number)] = true;
  size_t turn = 0;
  std::vector<Piece> pieces;
  for (size_t e = 0; e < chosen.size(); ++e) {
    if (!chosen[e]) continue;
    Half& half = halves_[turn++ % halves_.size()];
    half.fetched.synchronize();
    auto* const memory = half.memory.ensure<std::byte>(slot.source_bytes());
    pieces.clear();
    add_pieces(slot.gate_up, gate_up, e, memory, pieces);
    add_pieces(slot.down, down, e, memory + slot.gate_up.source_bytes(), pieces);
    context_.pool.for_each(ssize(pieces), [&](int64_t i, int) {
      const Piece& piece = pieces[size_t(i)];
      std::memcpy(piece.to, piece.from, size_t(piece.bytes));
    });
    gpu::upload(stream, source, memory, slot.source_bytes());
    half.fetched.record(stream);
    slot.gate_up.fill(stream, int64_t(e), source, gate_up.matrices);
    slot.down.fill(stream, int64_t(e), source + slot.gate_up.source_bytes(), down.matrices);
  }
}

}  // namespace ridge
