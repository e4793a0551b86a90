// Byte-level BPE: the byte alphabet and merging by rank.
//
// The alphabet is GPT-2's: printable Latin-1 bytes stand for themselves, the other 68 follow from U+0100 in byte order.
#include <queue>

#include "base/utf8.h"
#include "base/work_limit.h"
#include "io/tokenizer_parts.h"

namespace ridge::io {

namespace {

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct ByteAlphabet {
  std::array<uint16_t, 256> code_of{};
  std::array<int16_t, 0x144> byte_of{};  // -1: not in the alphabet

  ByteAlphabet() {
    byte_of.fill(-1);
    uint16_t spare = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      code_of[size_t(byte)] = stands_for_itself(byte) ? uint16_t(byte) : spare++;
      byte_of[code_of[size_t(byte)]] = int16_t(byte);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet instance;
  return instance;
}

}  // namespace

std::string bpe_piece_of_byte(uint8_t byte) {
  const uint16_t code = alphabet().code_of[byte];
  if (code < 0x80) return std::string(1, char(code));
  return {char(0xC0 | code >> 6), char(0x80 | (code & 0x3F))};
}

std::string bytes_of_bpe_piece(std::string_view piece) {
  std::string bytes;
  for (std::string_view rest = piece; !rest.empty();) {
    const Utf8Char next = first_utf8(rest);
    const bool known = next.kind == Utf8Kind::valid && next.code < alphabet().byte_of.size();
    const int16_t byte = known ? alphabet().byte_of[next.code] : int16_t(-1);
    if (byte < 0) return std::string(piece);
    bytes += char(byte);
    rest.remove_prefix(next.length);
  }
  return bytes;
}

void RankMerger::add(int32_t left, int32_t right, int32_t merged) {
  rules_.try_emplace(uint64_t(uint32_t(left)) << 32 | uint32_t(right), Rule{uint32_t(rules_.size()), merged});
}

const RankMerger::Rule* RankMerger::find(int32_t left, int32_t right) const {
  const auto rule = rules_.find(uint64_t(uint32_t(left)) << 32 | uint32_t(right));
  return rule == rules_.end() ? nullptr : &rule->second;
}

void RankMerger::merge(std::vector<int32_t>& ids) const {
  if (ids.size() < 2) return;
  // A linked list over places; a merged-away place keeps kNoToken, and queue entries whose ids changed are stale.
  struct Candidate {
    uint32_t rank;
    uint32_t place;
    int32_t left, right, merged;
    bool operator<(const Candidate& other) const {  // std::priority_queue gives the greatest first
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  const uint32_t end = uint32_t(ids.size());
  std::vector<uint32_t> next(end), previous(end);
  std::vector<Candidate> heap;
  const auto candidate = [&](uint32_t place) -> std::optional<Candidate> {
    const Rule* rule = next[place] == end ? nullptr : find(ids[place], ids[next[place]]);
    if (rule == nullptr) return std::nullopt;
    return Candidate{rule->rank, place, ids[place], ids[next[place]], rule->merged};
  };
  for (uint32_t place = 0; place < end; ++place) {
    next[place] = place + 1;
    previous[place] = place == 0 ? end : place - 1;
  }
  for (uint32_t place = 0; place < end; ++place)
    if (const auto found = candidate(place)) heap.push_back(*found);

  std::priority_queue<Candidate> queue({}, std::move(heap));
  while (!queue.empty()) {
    WorkLimit::check();
    const Candidate best = queue.top();
    queue.pop();
    const uint32_t right = next[best.place];
    if (ids[best.place] != best.left || right == end || ids[right] != best.right) continue;
    ids[best.place] = best.merged;
    ids[right] = kNoToken;
    next[best.place] = next[right];
    if (next[right] != end) previous[next[right]] = best.place;
    if (const auto found = candidate(best.place)) queue.push(*found);
    if (previous[best.place] == end) continue;
    if (const auto found = candidate(previous[best.place])) queue.push(*found);
  }
  std::erase(ids, kNoToken);
}

}  // namespace ridge::io
