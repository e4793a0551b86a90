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

void ExpertStream::bring(gpu::StreamHandle stream, int layer, std::span<const ExpertMove> moves, ExpertMatmuls& to,
                         std::byte* source) {
  const LayerPlan& plan = plan_.layers[size_t(layer)];
  const LayerWeights& weights = weights_.layers[size_t(layer)];
  const ExpertParts gate_up = expert_gate_up_of(plan, weights), down = expert_down_of(plan, weights);
  const auto fill = [&](DeviceExpertMatmul& product, const ExpertParts& parts, const ExpertMove& move,
                        const std::byte* from) {
    std::vector<float> scales;
    for (const auto& of_role : parts.matrices) scales.push_back(of_role[size_t(move.expert)]->scale);
    product.fill(stream, move.place, from, scales);
  };
  size_t turn = 0;
  std::vector<Piece> pieces;
  for (const ExpertMove& move : moves) {
    Half& half = halves_[turn++ % halves_.size()];
    half.fetched.synchronize();
    auto* const memory = half.memory.ensure<std::byte>(to.source_bytes());
    pieces.clear();
    add_pieces(to.gate_up, gate_up, size_t(move.expert), memory, pieces);
    add_pieces(to.down, down, size_t(move.expert), memory + to.gate_up.source_bytes(), pieces);
    context_.pool.for_each(ssize(pieces), [&](int64_t i, int) {
      const Piece& piece = pieces[size_t(i)];
      std::memcpy(piece.to, piece.from, size_t(piece.bytes));
    });
    gpu::upload(stream, source, memory, to.source_bytes());
    half.fetched.record(stream);
    fill(to.gate_up, gate_up, move, source);
    fill(to.down, down, move, source + to.gate_up.source_bytes());
  }
}

}  // namespace ridge
