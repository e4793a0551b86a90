#include "grammar/constraint.h"

#include <algorithm>
#include <cstring>

namespace ridge::grammar {
namespace {

constexpr size_t kMaxCutFrames = 16;
constexpr uint32_t kSmallTrie = 64;            ///< trie nodes; below so few a walk is quicker than a look-up
constexpr size_t kMaxMatcherBytes = 64 << 20;  ///< states of a matcher are thrown away beyond
constexpr size_t kMaxAnswerBytes = 4 << 20;    ///< the same for one answer's

/// Walks what is below trie node `from`. visit(node, state) is called where the state is not dead and says whether to go
/// on below.
template <class Visit>
void walk_trie(const Vocabulary& vocabulary, Matcher& matcher, Matcher::State state, uint32_t from,
               const Visit& visit) {
  std::vector<Matcher::State> path(vocabulary.longest() - vocabulary.depth(from) + 1, state);
  uint32_t node = from + 1;
  uint64_t steps = 0;
  for (const uint32_t end = vocabulary.end(from), base = vocabulary.depth(from); node < end; ++steps) {
    const uint32_t depth = vocabulary.depth(node) - base;
    const Matcher::State next = matcher.after(path[depth - 1], vocabulary.byte(node));
    path[depth] = next;
    node = next != Matcher::kDead && visit(node, next) ? node + 1 : vocabulary.end(node);
  }
  matcher.work(steps);
}

}  // namespace

CompiledGrammar::CompiledGrammar(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary, size_t max_cache_bytes)
    : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)), max_cache_bytes_(max_cache_bytes) {
  matcher_.emplace(grammar_);
}

Result<std::shared_ptr<const CompiledGrammar>> CompiledGrammar::make(Grammar grammar,
                                                                     std::shared_ptr<const Vocabulary> vocabulary,
                                                                     size_t max_cache_bytes) {
  const auto missing = [](uint8_t byte) {
    return fail(ErrorKind::usage,
                "grammar: the vocabulary has no token for the byte 0x{:02X} alone, which the grammar needs "
                "(a text could come to a place where no token may follow)",
                byte);
  };
  for (const char c : grammar.text)
    if (!vocabulary->has_byte(uint8_t(c))) return missing(uint8_t(c));
  for (const ByteSet& set : grammar.sets) {
    bool found = set.none();
    uint32_t first = 0;
    for (uint32_t byte = 256; byte-- > 0;) {
      found = found || (set[byte] && vocabulary->has_byte(uint8_t(byte)));
      if (set[byte]) first = byte;
    }
    if (!found) return missing(uint8_t(first));
  }
  try {
    return std::shared_ptr<const CompiledGrammar>(
        new CompiledGrammar(std::move(grammar), std::move(vocabulary), max_cache_bytes));
  } catch (const Error& error) {
    return Failure{error.kind(), error.what()};
  }
}

CompiledGrammar::Cut CompiledGrammar::cut(const Matcher& matcher, Matcher::Frame top) const {
  Cut cut{.below = top};
  const auto longest = uint32_t(vocabulary_->longest());
  for (size_t n = 0; n < kMaxCutFrames && cut.below != Matcher::kEnd; ++n) {
    const Matcher::FrameData& frame = matcher.frame(cut.below);
    const Node& node = grammar_.nodes[frame.node];
    uint32_t at = frame.at;
    if (node.kind == Kind::repeat && grammar_.nodes[node.first].shortest > 0) {
      // Bounds that are further than a token reaches are the same for every token.
      if (at < node.min && node.min - at > longest) at = 0;
      if (at > node.min && node.max != kUnbounded && node.max - at > longest) at = node.min;
    }
    const uint32_t words[2] = {frame.node, at};
    cut.key.append(reinterpret_cast<const char*>(words), sizeof words);
    cut.below = frame.parent;
    if (grammar_.closes[frame.node]) break;
  }
  return cut;
}

std::shared_ptr<const CompiledGrammar::Piece> CompiledGrammar::piece(const Cut& cut, uint32_t from) const {
  std::string key = cut.key;
  key.append(reinterpret_cast<const char*>(&from), sizeof from);
  const std::lock_guard lock(mutex_);
  if (const auto place = places_.find(key); place != places_.end()) {
    entries_.splice(entries_.begin(), entries_, place->second);
    return place->second->piece;
  }
  auto piece = make_piece(cut, from);
  entries_.push_front({std::move(key), piece});
  places_.emplace(entries_.front().key, entries_.begin());
  cache_bytes_ += piece->size();
  while (cache_bytes_ > max_cache_bytes_ && entries_.size() > 1) {
    cache_bytes_ -= entries_.back().piece->size();
    places_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return piece;
}

std::shared_ptr<const CompiledGrammar::Piece> CompiledGrammar::make_piece(const Cut& cut, uint32_t from) const {
  if (matcher_->size() > kMaxMatcherBytes) matcher_.emplace(grammar_);
  matcher_->start_work();
  std::vector<uint32_t> words(cut.key.size() / sizeof(uint32_t));
  std::memcpy(words.data(), cut.key.data(), cut.key.size());
  Matcher::Frame top = Matcher::kEnd;
  for (size_t i = words.size(); i > 0; i -= 2) top = matcher_->push(words[i - 2], words[i - 1], top);
  const Matcher::State start = matcher_->state_of({top});
  auto piece = std::make_shared<Piece>();
  std::vector<Matcher::State> visited{start};
  walk_trie(*vocabulary_, *matcher_, start, from, [&](uint32_t node, Matcher::State state) {
    const auto tokens = vocabulary_->tokens(node);
    piece->tokens.insert(piece->tokens.end(), tokens.begin(), tokens.end());
    if (matcher_->can_end(state) && vocabulary_->end(node) > node + 1) piece->exits.push_back(node);
    if (visited.back() != state) visited.push_back(state);
    return true;
  });
  for (const Matcher::State state : visited) piece->reach = std::max(piece->reach, matcher_->reach(state));
  if (piece->tokens.size() > vocabulary_->n_words()) {
    piece->mask.assign(vocabulary_->n_words(), 0);
    for (const int32_t token : piece->tokens) piece->mask[size_t(token) / 64] |= uint64_t(1) << (token % 64);
    piece->tokens.clear();
  }
  piece->tokens.shrink_to_fit();
  return piece;
}

size_t CompiledGrammar::cache_bytes() const {
  const std::lock_guard lock(mutex_);
  return cache_bytes_;
}

Constraint::Constraint(std::shared_ptr<const CompiledGrammar> compiled)
    : compiled_(std::move(compiled)), matcher_(compiled_->grammar()), state_(matcher_.start()) {}

void Constraint::start_mask() {
  mask_.assign(compiled_->vocabulary().n_words(), 0);
  matcher_.start_work();
  if (!ended_ && matcher_.can_end(state_))
    for (const int32_t token : compiled_->vocabulary().end_tokens()) add(token);
}

std::span<const uint64_t> Constraint::mask() {
  if (held_ == Held::all) return mask_;
  held_ = Held::nothing;
  start_mask();
  if (!ended_) collect(state_, 0, true);
  held_ = Held::all;
  return mask_;
}

/// Adds the tokens below `from` that the state reads. Stacks that read any of many bytes would have a walk see most of
/// the trie: their part comes from the cache where it can.
void Constraint::collect(State state, uint32_t from, bool may_cut) {
  if (!may_cut || !matcher_.is_wide(state)) return walk(state, from, may_cut);
  const auto all = matcher_.stacks(state);
  const std::vector<Matcher::Frame> stacks(all.begin(), all.end());
  std::vector<Matcher::Frame> narrow, wide;
  for (const Matcher::Frame top : stacks) {
    if (!matcher_.is_wide_frame(top)) narrow.push_back(top);
    else if (!add_piece(top, from)) wide.push_back(top);
  }
  if (!wide.empty()) walk(matcher_.state_of(std::move(wide)), from, false);
  if (!narrow.empty()) walk(matcher_.state_of(std::move(narrow)), from, true);
}

/// False if the stack is so deep that the piece, found without what is below, could go beyond kMaxStack frames.
bool Constraint::add_piece(Matcher::Frame top, uint32_t from) {
  const CompiledGrammar::Cut cut = compiled_->cut(matcher_, top);
  const auto piece = compiled_->piece(cut, from);
  if (matcher_.frame(cut.below).depth + piece->reach > kMaxStack) return false;
  for (size_t i = 0; i < piece->mask.size(); ++i) mask_[i] |= piece->mask[i];
  for (const int32_t token : piece->tokens) add(token);
  matcher_.work(mask_.size() / 8 + piece->tokens.size());
  if (cut.below == Matcher::kEnd || piece->exits.empty()) return true;
  const State below = matcher_.after_child(cut.below);
  for (const uint32_t exit : piece->exits) {
    const bool is_small = compiled_->vocabulary().end(exit) - exit <= kSmallTrie;
    if (is_small) walk(below, exit, true);
    else collect(below, exit, true);
  }
  return true;
}

void Constraint::walk(State state, uint32_t from, bool may_cut) {
  const Vocabulary& vocabulary = compiled_->vocabulary();
  walk_trie(vocabulary, matcher_, state, from, [&](uint32_t node, State next) {
    for (const int32_t token : vocabulary.tokens(node)) add(token);
    if (!may_cut || !matcher_.is_wide(next) || vocabulary.end(node) - node <= kSmallTrie) return true;
    collect(next, node, true);
    return false;
  });
}

std::span<const uint64_t> Constraint::mask_to_end() {
  if (held_ == Held::to_end) return mask_;
  held_ = Held::nothing;
  start_mask();
  const Vocabulary& vocabulary = compiled_->vocabulary();
  const uint32_t bytes = matcher_.shortest(state_);
  if (!ended_ && bytes > 0)
    walk_trie(vocabulary, matcher_, state_, 0, [&](uint32_t node, State next) {
      if (matcher_.shortest(next) + vocabulary.depth(node) != bytes) return false;
      for (const int32_t token : vocabulary.tokens(node)) add(token);
      return true;
    });
  held_ = Held::to_end;
  return mask_;
}

bool Constraint::accept(int32_t token) {
  const Vocabulary& vocabulary = compiled_->vocabulary();
  if (ended_ || token < 0 || size_t(token) >= vocabulary.size()) return false;
  if (vocabulary.is_end(token)) {
    if (!matcher_.can_end(state_)) return false;
    ended_ = true;
    held_ = Held::nothing;
    return true;
  }
  const std::string_view bytes = vocabulary.bytes(token);
  matcher_.start_work();
  State state = state_;
  for (const char byte : bytes) state = matcher_.after(state, uint8_t(byte));
  if (state == Matcher::kDead || bytes.empty()) return false;
  state_ = state;
  held_ = Held::nothing;
  if (matcher_.size() > kMaxAnswerBytes) {
    Matcher fresh(compiled_->grammar());
    state_ = matcher_.copy(state_, fresh);
    matcher_ = std::move(fresh);
  }
  return true;
}

}  // namespace ridge::grammar
