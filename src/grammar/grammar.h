// Grammars over bytes: the form that GBNF and JSON Schema are compiled to and that the automaton walks.
//
// A grammar is a list of nodes. Repetition keeps its bounds as numbers, so x{0,100000} is one node. UTF-8 is spelled
// out: a set of characters becomes sequences of byte sets.
#pragma once

#include <array>
#include <bitset>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/chars.h"

namespace ridge::grammar {

inline constexpr uint32_t kUnbounded = UINT32_MAX;  ///< as a repetition's maximum
inline constexpr size_t kMaxNodes = 1 << 18;
inline constexpr size_t kMaxRules = 1 << 14;
inline constexpr size_t kMaxGrammarText = 1 << 20;   ///< bytes of GBNF or of a schema
inline constexpr uint32_t kMaxShortest = 1 << 20;    ///< bytes; whatever has begun can be ended with so many
inline constexpr uint32_t kMaxStack = 256;           ///< frames of one stack
inline constexpr uint32_t kMaxEmptyRepetition = 64;  ///< bound of a repetition of what may be empty

inline constexpr size_t kWideSet = 16;

using Expr = uint32_t;  ///< a node's number
using ByteSet = std::bitset<256>;

enum class Kind : uint8_t { bytes, literal, sequence, choice, repeat, rule };

struct Node {
  Kind kind = Kind::literal;
  uint32_t first = 0;  ///< bytes: of sets; literal: of text; sequence, choice: of children; repeat: child; rule: rule
  uint32_t count = 0;  ///< literal: bytes; sequence, choice: children
  uint32_t min = 0, max = 0;       ///< repeat
  uint32_t shortest = kUnbounded;  ///< bytes of the shortest text; kUnbounded: there is none
  uint32_t need = kUnbounded;      ///< frames on the stack while the shortest text is read
  Expr best = 0;                   ///< choice: the child with the shortest text
};

/// A checked grammar. Made by Builder::finish(), constant afterwards, free to share between threads.
struct Grammar {
  std::vector<Node> nodes;
  std::vector<Expr> children;
  std::vector<ByteSet> sets;
  std::string text;              ///< bytes of all literals
  std::vector<Expr> bodies;      ///< of the rules
  std::vector<uint32_t> suffix;  ///< of each entry of children, in a sequence: shortest bytes from there to its end
  std::vector<uint8_t> closes;   ///< of each node: 1 when its frame is always the lowest of a rule's frames
  std::vector<uint8_t> wide;     ///< of each node: 1 when it is a set of more than kWideSet bytes
  Expr root = 0;
  std::array<uint8_t, 256> class_of{};  ///< bytes of one class are the same to every node
  std::vector<uint8_t> byte_of_class;   ///< one byte of each class

  size_t bytes() const {
    return sizeof *this + nodes.size() * (sizeof(Node) + 2) + (children.size() + suffix.size() + bodies.size()) * 4 +
           sets.size() * sizeof(ByteSet) + text.size();
  }
  Expr child(const Node& node, uint32_t i) const { return children[node.first + i]; }
};

/// Collects nodes. What goes over a limit is remembered and refused by finish().
class Builder {
 public:
  Builder() { literal(""); }

  Expr empty() const { return 0; }
  Expr bytes(const ByteSet& set);
  Expr literal(std::string_view text);
  /// One of the words; common beginnings are read once, so that many words do not make many stacks.
  Expr words(std::vector<std::string> words);
  Expr sequence(std::vector<Expr> parts);
  Expr choice(std::vector<Expr> options);  ///< of nothing: what matches no text
  Expr optional(Expr part) { return choice({part, empty()}); }
  /// `part` min to max times; max may be kUnbounded.
  Expr repeat(Expr part, uint32_t min, uint32_t max);
  /// One character of the set, in UTF-8.
  Expr chars(const CharSet& set);

  uint32_t new_rule(std::string name);
  void define(uint32_t rule, Expr body) { grammar_.bodies[rule] = body; }
  Expr rule(uint32_t rule);
  const std::string& rule_name(uint32_t rule) const { return names_[rule]; }
  bool full() const { return full_; }

  /// Checks and completes the grammar. Refuses: too many nodes or rules, left recursion, a root that matches no text,
  /// long repetitions of what may be empty, and parts whose shortest text is over kMaxShortest bytes.
  Result<Grammar> finish(Expr root) &&;

 private:
  Expr add(Node node);
  Expr add_list(Kind kind, const std::vector<Expr>& list);
  Expr sorted_words(std::span<const std::string> words, size_t skip, int depth);
  Status find_shortest();
  Status check_repetitions();
  Status check_left_recursion();
  void find_suffixes();
  bool is_small(Expr body) const;
  void find_closing();
  void find_classes();

  Grammar grammar_;
  std::vector<std::string> names_;
  std::map<std::string, uint32_t> set_numbers_;
  bool full_ = false;
};

}  // namespace ridge::grammar
