// The tokens of a model as bytes, in a trie that is walked in one pass.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::grammar {

inline constexpr size_t kMaxTokenBytes = 4096;

/// Constant after it was made, free to share between threads. Nodes are numbered so that what is below node i is i + 1
/// to end(i) - 1; node 0 is the root.
class Vocabulary {
 public:
  /// `tokens[id]` is what the token stands for. An empty one is special: it is never allowed. Tokens of `end_tokens`
  /// are allowed where a text may end, and nowhere else, whatever their bytes. Tokens over kMaxTokenBytes bytes are
  /// never allowed.
  Vocabulary(const std::vector<std::string>& tokens, std::vector<int32_t> end_tokens);

  size_t size() const { return first_byte_.size() - 1; }
  size_t n_words() const { return (size() + 63) / 64; }  ///< of a mask
  std::string_view bytes(int32_t token) const;           ///< empty for special and end tokens
  std::span<const int32_t> end_tokens() const { return end_tokens_; }
  bool is_end(int32_t token) const;
  bool has_byte(uint8_t byte) const { return single_[byte]; }  ///< whether a token is this byte alone
  size_t longest() const { return longest_; }                  ///< bytes of the longest token

  uint32_t n_nodes() const { return uint32_t(nodes_.size()); }
  uint32_t end(uint32_t node) const { return nodes_[node].end; }
  uint32_t depth(uint32_t node) const { return nodes_[node].depth; }  ///< bytes from the root
  uint8_t byte(uint32_t node) const { return nodes_[node].byte; }
  /// The tokens that end at the node.
  std::span<const int32_t> tokens(uint32_t node) const {
    return {tokens_.data() + nodes_[node].first_token, nodes_[node].n_tokens};
  }

 private:
  struct Node {
    uint32_t end = 0;
    uint32_t first_token = 0;
    uint32_t n_tokens = 0;
    uint16_t depth = 0;
    uint8_t byte = 0;
  };
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // in the order of the nodes
  std::vector<int32_t> end_tokens_;
  std::string text_;  // bytes of all tokens
  std::vector<uint32_t> first_byte_;
  std::array<bool, 256> single_{};
  size_t longest_ = 0;
};

}  // namespace ridge::grammar
