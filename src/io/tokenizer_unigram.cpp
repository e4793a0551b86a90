// Unigram: of all ways to write a text as pieces the one with the largest sum of scores (Viterbi).
#include <algorithm>

#include "base/utf8.h"
#include "base/work_limit.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {
namespace {

/// How much worse a character without a piece is than the worst piece.
constexpr double kUnknownPenalty = 10;

/// The best way to an offset of the text: the piece that ends there.
struct Node {
  double score = 0;
  size_t begin = 0;
  int32_t id = kNoToken;
  bool reached = false;
};

}  // namespace

BestPath::BestPath(const PieceIds& ids, const std::vector<float>& scores, size_t max_piece_bytes)
    : ids_(ids), scores_(scores), max_piece_bytes_(max_piece_bytes) {
  unknown_score_ = (scores.empty() ? 0 : double(*std::ranges::min_element(scores))) - kUnknownPenalty;
}

std::vector<Stretch> BestPath::cut(std::string_view text) const {
  std::vector<Node> best(text.size() + 1);
  const auto offer = [&](size_t begin, size_t length, double score, int32_t id) {
    Node& node = best[begin + length];
    const double total = best[begin].score + score;
    if (!node.reached || total > node.score) node = {total, begin, id, true};
  };
  for (size_t begin = 0; begin < text.size();) {
    WorkLimit::check();
    const size_t character = first_utf8(text.substr(begin)).length;
    const size_t most = std::min(max_piece_bytes_, text.size() - begin);
    bool spelled = false;
    for (size_t length = 1; length <= most; ++length) {
      const auto found = ids_.find(text.substr(begin, length));
      if (found == ids_.end()) continue;
      offer(begin, length, scores_[size_t(found->second)], found->second);
      spelled |= length == character;
    }
    if (!spelled) offer(begin, character, unknown_score_, kNoToken);
    begin += character;
  }
  std::vector<Stretch> stretches;
  for (size_t end = text.size(); end > 0; end = best[end].begin) {
    const Node& node = best[end];
    // Unknown characters in a row are one stretch.
    if (node.id == kNoToken && !stretches.empty() && stretches.back().id == kNoToken)
      stretches.back().text = {text.data() + node.begin, end - node.begin + stretches.back().text.size()};
    else stretches.push_back({text.substr(node.begin, end - node.begin), node.id});
  }
  std::ranges::reverse(stretches);
  return stretches;
}

}  // namespace ridge::io
