#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

namespace ridge::grammar {

Vocabulary::Vocabulary(const std::vector<std::string>& tokens, std::vector<int32_t> end_tokens)
    : end_tokens_(std::move(end_tokens)) {
  std::sort(end_tokens_.begin(), end_tokens_.end());
  first_byte_.push_back(0);
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!is_end(int32_t(id)) && tokens[id].size() <= kMaxTokenBytes) text_ += tokens[id];
    first_byte_.push_back(uint32_t(text_.size()));
  }
  for (size_t id = 0; id < tokens.size(); ++id)
    if (!bytes(int32_t(id)).empty()) tokens_.push_back(int32_t(id));
  std::stable_sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) { return bytes(a) < bytes(b); });

  nodes_.push_back({});
  std::vector<uint32_t> path{0};  // nodes of the last token's bytes
  std::string_view last;
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = bytes(tokens_[i]);
    longest_ = std::max(longest_, text.size());
    if (text.size() == 1) single_[uint8_t(text[0])] = true;
    const auto common = size_t(std::mismatch(last.begin(), last.end(), text.begin(), text.end()).first - last.begin());
    for (; path.size() > common + 1; path.pop_back()) nodes_[path.back()].end = uint32_t(nodes_.size());
    for (size_t at = common; at < text.size(); ++at) {
      path.push_back(uint32_t(nodes_.size()));
      nodes_.push_back({.first_token = i, .depth = uint16_t(at + 1), .byte = uint8_t(text[at])});
    }
    ++nodes_[path.back()].n_tokens;
    last = text;
  }
  for (const uint32_t node : path) nodes_[node].end = uint32_t(nodes_.size());
}

std::string_view Vocabulary::bytes(int32_t token) const {
  return std::string_view(text_).substr(first_byte_[token], first_byte_[token + 1] - first_byte_[token]);
}

bool Vocabulary::is_end(int32_t token) const {
  return std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
}

}  // namespace ridge::grammar
