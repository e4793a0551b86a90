#include "grammar/grammar.h"

#include <algorithm>
#include <queue>

namespace ridge::grammar {
namespace {

constexpr int kMaxWordDepth = 64;

}  // namespace

Expr Builder::add(Node node) {
  full_ = full_ || grammar_.nodes.size() >= kMaxNodes || grammar_.children.size() > 4 * kMaxNodes ||
          grammar_.text.size() > 4 * kMaxGrammarText;
  if (full_) return empty();
  grammar_.nodes.push_back(node);
  return Expr(grammar_.nodes.size() - 1);
}

Expr Builder::add_list(Kind kind, const std::vector<Expr>& list) {
  const auto first = uint32_t(grammar_.children.size());
  if (!full_) grammar_.children.insert(grammar_.children.end(), list.begin(), list.end());
  return add({.kind = kind, .first = first, .count = uint32_t(list.size())});
}

Expr Builder::bytes(const ByteSet& set) {
  const auto [place, is_new] = set_numbers_.try_emplace(set.to_string(), uint32_t(grammar_.sets.size()));
  if (is_new) grammar_.sets.push_back(set);
  return add({.kind = Kind::bytes, .first = place->second});
}

Expr Builder::literal(std::string_view text) {
  const auto first = uint32_t(grammar_.text.size());
  if (!full_) grammar_.text += text;
  return add({.kind = Kind::literal, .first = first, .count = uint32_t(text.size())});
}

Expr Builder::sequence(std::vector<Expr> parts) {
  std::erase(parts, empty());
  if (parts.empty()) return empty();
  return parts.size() == 1 ? parts[0] : add_list(Kind::sequence, parts);
}

Expr Builder::choice(std::vector<Expr> options) {
  return options.size() == 1 ? options[0] : add_list(Kind::choice, options);
}

Expr Builder::words(std::vector<std::string> words) {
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return sorted_words(words, 0, 0);
}

Expr Builder::sorted_words(std::span<const std::string> words, size_t skip, int depth) {
  std::vector<Expr> options;
  if (depth == kMaxWordDepth) {  // words that begin with one another: the rest without a tree
    for (const std::string& word : words) options.push_back(literal(std::string_view(word).substr(skip)));
    return choice(std::move(options));
  }
  for (size_t i = 0, end = 0; i < words.size(); i = end) {
    if (words[i].size() == skip) {
      options.push_back(empty());
      end = i + 1;
      continue;
    }
    for (end = i; end < words.size() && words[end][skip] == words[i][skip];) ++end;
    const std::string &first = words[i], &last = words[end - 1];
    const auto differ = std::mismatch(first.begin() + skip, first.end(), last.begin() + skip, last.end());
    const auto common = size_t(differ.first - first.begin());
    const Expr head = literal(std::string_view(first).substr(skip, common - skip));
    options.push_back(end - i == 1 ? head
                                   : sequence({head, sorted_words(words.subspan(i, end - i), common, depth + 1)}));
  }
  return choice(std::move(options));
}

Expr Builder::repeat(Expr part, uint32_t min, uint32_t max) {
  if (max == 0 || part == empty()) return empty();
  return min == 1 && max == 1 ? part : add({.kind = Kind::repeat, .first = part, .min = min, .max = max});
}

Expr Builder::chars(const CharSet& set) {
  ByteSet single;
  std::vector<Expr> options;
  for (const CharRange& range : set.ranges())
    utf8_ranges(range, [&](const std::vector<ByteRange>& ranges) {
      std::vector<Expr> parts;
      for (const ByteRange& bytes_of : ranges) {
        ByteSet one;
        for (uint32_t byte = bytes_of.first; byte <= bytes_of.last; ++byte) one.set(byte);
        if (ranges.size() == 1) single |= one;
        else parts.push_back(bytes(one));
      }
      if (!parts.empty()) options.push_back(sequence(std::move(parts)));
    });
  if (single.any()) options.insert(options.begin(), bytes(single));
  return choice(std::move(options));
}

uint32_t Builder::new_rule(std::string name) {
  full_ = full_ || names_.size() >= kMaxRules;
  if (full_ && !names_.empty()) return 0;
  names_.push_back(std::move(name));
  grammar_.bodies.push_back(empty());
  return uint32_t(names_.size() - 1);
}

Expr Builder::rule(uint32_t rule) { return add({.kind = Kind::rule, .first = rule}); }

namespace {

constexpr size_t kMaxSmallRule = 512;  // nodes
constexpr uint32_t kMaxSmallRepetition = 8;

/// The children of a node, whatever its kind.
template <class Visit>
void for_children(const Grammar& grammar, const Node& node, const Visit& visit) {
  if (node.kind == Kind::sequence || node.kind == Kind::choice)
    for (uint32_t i = 0; i < node.count; ++i) visit(grammar.child(node, i));
  else if (node.kind == Kind::repeat) visit(node.first);
  else if (node.kind == Kind::rule) visit(grammar.bodies[node.first]);
}

}  // namespace

/// Knuth's generalisation of Dijkstra's algorithm: nodes are settled in the order of their shortest text.
Status Builder::find_shortest() {
  auto& nodes = grammar_.nodes;
  std::vector<uint32_t> waits(nodes.size());  // of a sequence: children not settled
  std::vector<uint32_t> first_parent(nodes.size() + 1), parents;
  for (const Node& node : nodes) for_children(grammar_, node, [&](Expr child) { ++first_parent[child + 1]; });
  for (size_t i = 1; i < first_parent.size(); ++i) first_parent[i] += first_parent[i - 1];
  parents.resize(first_parent.back());
  std::vector<uint32_t> filled(first_parent.begin(), first_parent.end() - 1);
  using Entry = std::pair<uint64_t, Expr>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  for (Expr e = 0; e < nodes.size(); ++e) {
    for_children(grammar_, nodes[e], [&](Expr child) { parents[filled[child]++] = e; });
    waits[e] = nodes[e].kind == Kind::sequence ? nodes[e].count : 1;
    if (nodes[e].kind == Kind::literal) queue.push({nodes[e].count, e});
    if (nodes[e].kind == Kind::bytes && grammar_.sets[nodes[e].first].any()) queue.push({1, e});
    if (nodes[e].kind == Kind::repeat && nodes[e].min == 0) queue.push({0, e});
  }
  while (!queue.empty()) {
    const auto [length, e] = queue.top();
    queue.pop();
    Node& node = nodes[e];
    if (node.shortest != kUnbounded) continue;
    if (length > kMaxShortest)
      return fail(ErrorKind::usage, "grammar: a part of it has no text shorter than {} bytes", kMaxShortest);
    node.shortest = uint32_t(length);
    node.need = 1;
    if (node.kind == Kind::choice) node.need = nodes[node.best].need;
    if (node.kind == Kind::rule) node.need = nodes[grammar_.bodies[node.first]].need;
    if (node.kind == Kind::repeat && node.min > 0) node.need = nodes[node.first].need + 1;
    for (uint32_t i = 0; node.kind == Kind::sequence && i < node.count; ++i)
      node.need = std::max(node.need, nodes[grammar_.child(node, i)].need + (i + 1 < node.count));
    for (uint32_t p = first_parent[e]; p < first_parent[e + 1]; ++p) {
      Node& parent = nodes[parents[p]];
      if (waits[parents[p]] == 0 || --waits[parents[p]] > 0) continue;
      uint64_t sum = length;
      if (parent.kind == Kind::choice) parent.best = e;
      if (parent.kind == Kind::repeat) sum = uint64_t(parent.min) * length;
      if (parent.kind == Kind::sequence) sum = 0;
      for (uint32_t i = 0; parent.kind == Kind::sequence && i < parent.count; ++i)
        sum += nodes[grammar_.child(parent, i)].shortest;
      queue.push({sum, parents[p]});
    }
  }
  return {};
}

Status Builder::check_repetitions() {
  for (Node& node : grammar_.nodes) {
    if (node.kind != Kind::repeat) continue;
    if (node.min > node.max)
      return fail(ErrorKind::usage, "grammar: repetition {{{},{}}} is empty", node.min, node.max);
    if (grammar_.nodes[node.first].shortest != 0) continue;
    node.min = 0;
    if (node.max != kUnbounded && node.max > kMaxEmptyRepetition)
      return fail(ErrorKind::usage, "grammar: what is repeated up to {} times may be empty (the limit is then {})",
                  node.max, kMaxEmptyRepetition);
  }
  return {};
}

/// A rule that can begin with itself before a byte is read would have the automaton push frames without end.
Status Builder::check_left_recursion() {
  enum : uint8_t { fresh, open, closed };
  std::vector<uint8_t> colour(grammar_.nodes.size(), fresh);
  std::vector<std::pair<Expr, uint32_t>> path;  // node, next child
  for (Expr start = 0; start < grammar_.nodes.size(); ++start) {
    if (colour[start] == fresh) path.push_back({start, 0});
    while (!path.empty()) {
      auto& [e, next] = path.back();
      const Node& node = grammar_.nodes[e];
      colour[e] = open;
      Expr child = e;
      bool done = node.kind == Kind::bytes || node.kind == Kind::literal || next > 0;
      if (node.kind == Kind::sequence)
        done = next == node.count || (next > 0 && grammar_.nodes[grammar_.child(node, next - 1)].shortest != 0);
      if (node.kind == Kind::choice) done = next == node.count;
      if (done) {
        colour[e] = closed;
        path.pop_back();
        continue;
      }
      child = node.kind == Kind::rule     ? grammar_.bodies[node.first]
              : node.kind == Kind::repeat ? node.first
                                          : grammar_.child(node, next);
      ++next;
      if (colour[child] == fresh) path.push_back({child, 0});
      if (colour[child] != open) continue;
      for (auto at = path.rbegin(); at != path.rend(); ++at)
        if (grammar_.nodes[at->first].kind == Kind::rule)
          return fail(ErrorKind::usage, "grammar: left recursion: {} can begin with itself",
                      names_[grammar_.nodes[at->first].first]);
      RIDGE_CHECK(false, "a cycle of nodes without a rule");
    }
  }
  return {};
}

void Builder::find_suffixes() {
  grammar_.suffix.assign(grammar_.children.size(), 0);
  for (const Node& node : grammar_.nodes) {
    if (node.kind != Kind::sequence || node.shortest == kUnbounded) continue;
    uint32_t sum = 0;
    for (uint32_t i = node.count; i-- > 0;) {
      sum += grammar_.nodes[grammar_.child(node, i)].shortest;
      grammar_.suffix[node.first + i] = sum;
    }
  }
}

/// Whether a rule's texts are short, as those of a rule for one character are.
bool Builder::is_small(Expr body) const {
  std::vector<Expr> open{body};
  for (size_t n = 0; !open.empty(); ++n) {
    const Node& node = grammar_.nodes[open.back()];
    open.pop_back();
    if (n == kMaxSmallRule || (node.kind == Kind::repeat && node.max > kMaxSmallRepetition)) return false;
    for_children(grammar_, node, [&](Expr child) { open.push_back(child); });
  }
  return true;
}

/// A node closes a rule when every use is a rule's body or what such a body ends with: nothing of the same rule is
/// then below its frame. The mask of a stack is found for the frames down to there, whatever called the rule. A rule
/// for one character is a part of the rule that repeats it: else every character would be a place where a rule ends.
void Builder::find_closing() {
  auto& closes = grammar_.closes;
  closes.assign(grammar_.nodes.size(), 1);
  std::vector<Expr> open;
  const auto clear = [&](Expr e) {
    if (closes[e] != 0) open.push_back(e);
    closes[e] = 0;
  };
  for (const Node& node : grammar_.nodes) {
    if (node.kind == Kind::repeat) clear(node.first);
    for (uint32_t i = 0; node.kind == Kind::sequence && i + 1 < node.count; ++i) clear(grammar_.child(node, i));
  }
  while (!open.empty()) {
    const Node& node = grammar_.nodes[open.back()];
    open.pop_back();
    if (node.kind == Kind::sequence) clear(grammar_.child(node, node.count - 1));
    if (node.kind == Kind::rule && is_small(grammar_.bodies[node.first])) clear(grammar_.bodies[node.first]);
    for (uint32_t i = 0; node.kind == Kind::choice && i < node.count; ++i) clear(grammar_.child(node, i));
  }
}

void Builder::find_classes() {
  std::bitset<256> in_literals;
  for (const char c : grammar_.text) in_literals.set(uint8_t(c));
  std::array<uint32_t, 256> number{};
  for (uint32_t byte = 0; byte < 256; ++byte) number[byte] = in_literals[byte] ? byte + 1 : 0;
  const auto split = [&](const auto& in_set) {
    std::map<std::pair<uint32_t, bool>, uint32_t> renamed;
    for (uint32_t byte = 0; byte < 256; ++byte)
      number[byte] = renamed.try_emplace({number[byte], in_set[byte]}, uint32_t(renamed.size())).first->second;
  };
  split(in_literals);
  for (const ByteSet& set : grammar_.sets) split(set);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    grammar_.class_of[byte] = uint8_t(number[byte]);
    if (number[byte] == grammar_.byte_of_class.size()) grammar_.byte_of_class.push_back(uint8_t(byte));
  }
}

Result<Grammar> Builder::finish(Expr root) && {
  if (full_) return fail(ErrorKind::usage, "grammar: larger than {} nodes or {} rules", kMaxNodes, kMaxRules);
  grammar_.root = root;
  RIDGE_TRY_STATUS(find_shortest());
  RIDGE_TRY_STATUS(check_repetitions());
  RIDGE_TRY_STATUS(check_left_recursion());
  if (grammar_.nodes[root].shortest == kUnbounded) return fail(ErrorKind::usage, "grammar: no text matches it");
  if (grammar_.nodes[root].need > kMaxStack)
    return fail(ErrorKind::usage, "grammar: its shortest text nests deeper than {} frames", kMaxStack);
  find_suffixes();
  find_closing();
  for (const Node& node : grammar_.nodes)
    grammar_.wide.push_back(node.kind == Kind::bytes && grammar_.sets[node.first].count() > kWideSet);
  find_classes();
  return std::move(grammar_);
}

}  // namespace ridge::grammar
