// SentencePiece-style BPE: the whole text is one unit, code points merge by the score of the piece they form.
#include <queue>

#include "base/utf8.h"
#include "base/work_limit.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/// A stretch of text in a linked list; length 0 once it is merged into its left neighbour.
struct Symbol {
  size_t begin = 0;
  uint32_t length = 0;
  int32_t id = kNoToken;
  uint32_t previous = 0, next = 0;
};

struct Candidate {
  float score;
  uint32_t place;
  uint32_t left_length, total_length;
  int32_t id;
  bool operator<(const Candidate& other) const {  // std::priority_queue gives the greatest first
    return score != other.score ? score < other.score : place > other.place;
  }
};

}  // namespace

std::optional<uint8_t> byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  const int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return uint8_t(high << 4 | low);
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t begin = 0;;) {
    const size_t found = text.find(from, begin);
    out += text.substr(begin, found == std::string_view::npos ? found : found - begin);
    if (found == std::string_view::npos) return out;
    out += to;
    begin = found + from.size();
  }
}

std::vector<Stretch> ScoreMerger::merge(std::string_view text) const {
  std::vector<Symbol> symbols;
  for (size_t begin = 0; begin < text.size();) {
    const uint32_t length = first_utf8(text.substr(begin)).length, place = uint32_t(symbols.size());
    const auto found = ids_.find(text.substr(begin, length));
    symbols.push_back({begin, length, found == ids_.end() ? kNoToken : found->second, place - 1, place + 1});
    begin += length;
  }
  const uint32_t end = uint32_t(symbols.size());
  const auto candidate = [&](uint32_t place) -> std::optional<Candidate> {
    const Symbol& left = symbols[place];
    if (left.next == end) return std::nullopt;
    const uint32_t total = left.length + symbols[left.next].length;
    if (total > max_piece_bytes_) return std::nullopt;
    const auto found = ids_.find(text.substr(left.begin, total));
    if (found == ids_.end()) return std::nullopt;
    return Candidate{scores_[size_t(found->second)], place, left.length, total, found->second};
  };
  std::vector<Candidate> heap;
  for (uint32_t place = 0; place < end; ++place)
    if (const auto found = candidate(place)) heap.push_back(*found);

  std::priority_queue<Candidate> queue({}, std::move(heap));
  while (!queue.empty()) {
    WorkLimit::check();
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.place];
    if (left.length != best.left_length || left.next == end) continue;
    Symbol& right = symbols[left.next];
    if (left.length + right.length != best.total_length) continue;
    left.length = best.total_length;
    left.id = best.id;
    right.length = 0;
    left.next = right.next;
    if (right.next != end) symbols[right.next].previous = best.place;
    if (const auto found = candidate(best.place)) queue.push(*found);
    if (best.place == 0) continue;
    if (const auto found = candidate(left.previous)) queue.push(*found);
  }
  std::vector<Stretch> stretches;
  for (uint32_t place = 0; place < end; place = symbols[place].next)
    stretches.push_back({text.substr(symbols[place].begin, symbols[place].length), symbols[place].id});
  return stretches;
}

}  // namespace ridge::io
