#include "grammar/constraint.h"

#include <algorithm>
#include <bit>

namespace ridge::grammar {
namespace {

constexpr size_t kMaxCutFrames = 16;
constexpr uint32_t kMaxLift = 256;             ///< counts of one lift
constexpr uint32_t kSmallTrie = 64;            ///< trie nodes; below so few a walk is quicker than a look-up
constexpr uint64_t kTrieStepsOfWork = 16;      ///< so many known transitions cost what one new frame costs
constexpr size_t kMaxMatcherBytes = 64 << 20;  ///< states of a matcher are thrown away beyond
constexpr size_t kMaxAnswerBytes = 4 << 20;    ///< the same for one answer's

void add_token(std::vector<uint64_t>& mask, int32_t token) { mask[size_t(token) / 64] |= uint64_t(1) << (token % 64); }

}  // namespace

/// Collects the tokens that a state of a matcher reads. Stacks that read any of many bytes would have a walk see most
/// of the trie: their part comes from pieces of n_rules rules, where that is not 0. The caller holds the mutex of the
/// pieces.
class TokenWalk {
 public:
  using State = Matcher::State;
  TokenWalk(const CompiledGrammar& compiled, Matcher& matcher, int n_rules, std::vector<uint64_t>& mask)
      : compiled_(compiled), vocabulary_(compiled.vocabulary()), matcher_(matcher), n_rules_(n_rules), mask_(mask) {}

  void collect(State state, uint32_t from) {
    // An answer's own states are new; what others read before is looked up although a walk would be short.
    const bool all = n_rules_ > 1 && from == 0;
    if (n_rules_ == 0 || !(all || matcher_.is_wide(state))) return walk(state, from, n_rules_ > 0);
    struct Group {
      std::vector<Matcher::Frame> tops;
      CompiledGrammar::Cuts cuts;
      bool wide = false;
    };
    std::map<Matcher::Frame, Group> groups;  // by the frames below
    for (const Matcher::Frame top : matcher_.stacks(state)) {
      if (top == Matcher::kEnd) continue;
      CompiledGrammar::Cut cut = compiled_.cut(matcher_, top, n_rules_);
      Group& group = groups[cut.below];
      group.tops.push_back(top);
      group.cuts.insert(std::move(cut.frames));
      group.wide = group.wide || matcher_.is_wide_frame(top);
    }
    std::vector<Matcher::Frame> narrow;
    for (auto& [below, group] : groups) {
      if (!group.wide && !all) narrow.insert(narrow.end(), group.tops.begin(), group.tops.end());
      else if (!add_piece(group.cuts, below, from, group.wide))
        walk(matcher_.state_of(std::move(group.tops)), from, false);
    }
    if (!narrow.empty()) walk(matcher_.state_of(std::move(narrow)), from, true);
  }

  const std::vector<uint32_t>& exits() const { return exits_; }
  uint32_t reach() const { return reach_; }
  /// The mask of one of the pieces, or null.
  const std::shared_ptr<const std::vector<uint64_t>>& base() const { return base_; }

 private:
  /// False if the stacks are so deep that the piece, found without what is below, could go beyond kMaxStack frames.
  bool add_piece(const CompiledGrammar::Cuts& cuts, Matcher::Frame below, uint32_t from, bool is_wide) {
    const auto piece = compiled_.piece(cuts, from, n_rules_, from == 0 && (n_rules_ == 1 || !is_wide));
    const uint32_t reach = matcher_.frame(below).depth + piece->reach;
    reach_ = std::max(reach_, reach);
    if (reach > kMaxStack) return false;
    for (size_t i = 0; piece->mask && i < mask_.size(); ++i) mask_[i] |= (*piece->mask)[i];
    if (!base_) base_ = piece->mask;
    for (const int32_t token : piece->tokens) add_token(mask_, token);
    matcher_.work((mask_.size() + piece->tokens.size() + piece->exits.size()) / kTrieStepsOfWork);
    if (piece->exits.empty()) return true;
    if (below == Matcher::kEnd) {
      exits_.insert(exits_.end(), piece->exits.begin(), piece->exits.end());
      return true;
    }
    const State next = matcher_.after_child(below);
    for (const uint32_t exit : piece->exits) go_on(next, exit);
    return true;
  }

  /// The text up to `node` leads to the state; its own token is known.
  void go_on(State state, uint32_t node) {
    if (matcher_.can_end(state)) exits_.push_back(node);
    if (vocabulary_.end(node) - node <= kSmallTrie) walk(state, node, true);
    else collect(state, node);
  }

  void walk(State state, uint32_t from, bool may_cut) {
    const uint32_t end = vocabulary_.end(from), base = vocabulary_.depth(from);
    const size_t path = path_.size();  // a walk within a walk goes on above
    path_.resize(path + vocabulary_.longest() - base + 1);
    path_[path] = state;
    uint64_t steps = 0;
    State last = Matcher::kDead;
    for (uint32_t node = from + 1; node < end; ++steps) {
      const uint32_t depth = vocabulary_.depth(node) - base;
      const State before = path_[path + depth - 1], next = matcher_.after(before, vocabulary_.byte(node));
      if (before != last) reach_ = std::max(reach_, matcher_.reach(last = before));
      const uint32_t node_end = vocabulary_.end(node);
      if (next == Matcher::kDead) {
        node = node_end;
        continue;
      }
      path_[path + depth] = next;
      for (const int32_t token : vocabulary_.tokens(node)) add_token(mask_, token);
      if (node_end == node + 1) {
        ++node;
      } else if (may_cut && node_end - node > kSmallTrie && matcher_.is_wide(next)) {
        go_on(next, node);
        node = node_end;
      } else {
        if (matcher_.can_end(next)) exits_.push_back(node);
        ++node;
      }
    }
    path_.resize(path);
    matcher_.work(steps / kTrieStepsOfWork);
  }

  const CompiledGrammar& compiled_;
  const Vocabulary& vocabulary_;
  Matcher& matcher_;
  const int n_rules_;
  std::vector<uint64_t>& mask_;
  std::vector<uint32_t> exits_;
  std::vector<State> path_;
  std::shared_ptr<const std::vector<uint64_t>> base_;
  uint32_t reach_ = 0;
};

/// Finds the pieces of a lifted state, one for each count, in one walk.
class LiftedWalk {
 public:
  LiftedWalk(const Vocabulary& vocabulary, Matcher& matcher, uint32_t first, uint32_t last)
      : vocabulary_(vocabulary), matcher_(matcher), first_(first), flips_(last - first + 2) {}

  void walk(Matcher::State state, uint32_t from) {
    const uint32_t end = vocabulary_.end(from), base = vocabulary_.depth(from);
    std::vector<Matcher::State> path(vocabulary_.longest() - base + 1, state);
    uint64_t steps = 0;
    for (uint32_t node = from + 1; node < end; ++steps) {
      const uint32_t depth = vocabulary_.depth(node) - base, node_end = vocabulary_.end(node);
      const Matcher::State next = path[depth] = matcher_.after(path[depth - 1], vocabulary_.byte(node));
      if (next == Matcher::kDead) {
        node = node_end;
        continue;
      }
      const Counts& counts = counts_of(next);
      reach_ = std::max(reach_, matcher_.reach(path[depth - 1]));
      for (const auto& [first, last] : counts.all)
        for (const int32_t token : vocabulary_.tokens(node)) flip(&Flips::tokens, uint32_t(token), first, last);
      for (const auto& [first, last] : counts.ended)
        if (node_end > node + 1) flip(&Flips::exits, node, first, last);
      ++node;
    }
    matcher_.work(steps / kTrieStepsOfWork);
  }

  std::vector<std::shared_ptr<const Piece>> pieces(const CompiledGrammar& compiled) const {
    const auto flip_tokens = [](std::vector<uint64_t>& mask, const Flips& flips) {
      for (const uint32_t token : flips.tokens) mask[token / 64] ^= uint64_t(1) << (token % 64);
    };
    const size_t n = flips_.size() - 1;
    std::vector<uint64_t> common(vocabulary_.n_words());
    flip_tokens(common, flips_[0]);
    for (size_t i = 1; i < n; ++i)
      for (const uint32_t token : flips_[i].tokens) common[token / 64] &= ~(uint64_t(1) << (token % 64));
    std::shared_ptr<const std::vector<uint64_t>> base = compiled.make_piece(common, nullptr, {}, 0)->mask;

    // From the last count down: more rounds before a maximum are more tokens, so a mask is the one before and a few.
    std::vector<std::shared_ptr<const Piece>> pieces(n);
    std::vector<uint64_t> mask(vocabulary_.n_words());
    std::set<uint32_t> exits;
    flip_tokens(mask, flips_[n]);
    for (size_t i = n; i-- > 0;) {
      const Flips& flips = flips_[i + 1];
      if (i + 1 < n) flip_tokens(mask, flips);
      for (const uint32_t exit : flips.exits)
        if (!exits.insert(exit).second) exits.erase(exit);
      const bool same = i + 1 < n && flips.tokens.empty() && flips.exits.empty();
      pieces[i] = same ? pieces[i + 1] : compiled.make_piece(mask, base, {exits.begin(), exits.end()}, reach_);
      if (pieces[i]->mask) base = pieces[i]->mask;
    }
    return pieces;
  }

 private:
  using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;
  struct Counts {
    Ranges all, ended;  // for which the state has a stack; an empty one
  };
  struct Flips {
    std::vector<uint32_t> tokens, exits;  // that the last count has and this one has not, or the other way round
  };

  void flip(std::vector<uint32_t> Flips::*list, uint32_t what, uint32_t first, uint32_t last) {
    (flips_[first - first_].*list).push_back(what);
    (flips_[last + 1 - first_].*list).push_back(what);
  }

  const Counts& counts_of(Matcher::State state) {
    if (numbers_.size() <= state) numbers_.resize(state + 1);
    if (numbers_[state] == 0) {
      counts_.emplace_back();
      numbers_[state] = uint32_t(counts_.size());
      for (const Matcher::Frame top : matcher_.stacks(state)) {
        const Matcher::Frame end = matcher_.end_of(top);
        const std::pair range{matcher_.frame(end).at, matcher_.frame(matcher_.frame(end).parent).at};
        counts_.back().all.push_back(range);
        if (top == end) counts_.back().ended.push_back(range);
      }
      join(counts_.back().all);
      join(counts_.back().ended);
    }
    return counts_[numbers_[state] - 1];
  }

  static void join(Ranges& ranges) {
    std::sort(ranges.begin(), ranges.end());
    size_t n = 0;
    for (const auto& range : ranges) {
      if (n > 0 && range.first <= ranges[n - 1].second + 1)
        ranges[n - 1].second = std::max(ranges[n - 1].second, range.second);
      else ranges[n++] = range;
    }
    ranges.resize(n);
  }

  const Vocabulary& vocabulary_;
  Matcher& matcher_;
  const uint32_t first_;
  std::vector<Flips> flips_;  // of each count, and of one more
  std::vector<Counts> counts_;
  std::vector<uint32_t> numbers_;  // of each state: where its counts are, from 1; 0: nowhere yet
  uint32_t reach_ = 0;
};

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

CompiledGrammar::Cut CompiledGrammar::cut(const Matcher& matcher, Matcher::Frame top, int n_rules) const {
  Cut cut{.below = top};
  const auto longest = uint32_t(vocabulary_->longest());
  for (size_t n = 0; n < kMaxCutFrames && cut.below != Matcher::kEnd && n_rules > 0; ++n) {
    const Matcher::FrameData& frame = matcher.frame(cut.below);
    const Node& node = grammar_.nodes[frame.node];
    uint32_t at = frame.at;
    if (node.kind == Kind::repeat && grammar_.nodes[node.first].shortest > 0) {
      // Bounds that are further than a token reaches are the same for every token.
      if (at < node.min && node.min - at > longest) at = 0;
      if (at > node.min && node.max != kUnbounded && node.max - at > longest) at = node.min;
    }
    cut.frames.insert(cut.frames.end(), {frame.node, at});
    cut.below = frame.parent;
    n_rules -= grammar_.closes[frame.node];
  }
  return cut;
}

CompiledGrammar::Lift CompiledGrammar::find_lift(const Cuts& cuts) const {
  struct Place {
    size_t i = 0;
    uint32_t at = 0, first = 0, last = 0;
  };
  const auto far = uint32_t(std::min<size_t>(vocabulary_->longest(), kMaxLift));
  // The frame of the repetition with the most counts; those of `fixed` are left out.
  const auto find_place = [&](const std::vector<uint32_t>& frames, const std::set<Expr>& fixed) {
    Place best;
    for (size_t i = 0; i < frames.size(); i += 2) {
      const Node& node = grammar_.nodes[frames[i]];
      const uint32_t at = frames[i + 1], end = at < node.min ? node.min : node.max;
      if (node.kind != Kind::repeat || end == kUnbounded || fixed.contains(frames[i])) continue;
      const uint32_t first = std::max({at < node.min ? 1 : node.min, std::max(end, far) - far, 1U});
      if (first <= at && end - 1 - first > best.last - best.first) best = {i, at, first, end - 1};
    }
    return best;
  };
  const std::vector<uint32_t>* longest = nullptr;
  Place best;
  for (const std::vector<uint32_t>& frames : cuts)
    if (const Place place = find_place(frames, {}); place.last - place.first > best.last - best.first)
      best = place, longest = &frames;
  if (!longest) return {cuts, 0, 0, 0};
  // Counts of other stacks go on in step with the best one's; those of what lies below it stand still.
  std::set<Expr> fixed;
  for (size_t i = 0; i < longest->size(); i += 2)
    if (i != best.i) fixed.insert((*longest)[i]);
  Lift lift{{}, best.at, best.first, best.last};
  for (const std::vector<uint32_t>& frames : cuts)
    if (const Place place = find_place(frames, fixed); place.last > 0) lift.at = std::min(lift.at, place.at);
  lift.first = 1;
  lift.last = kMaxLift + lift.at;
  for (std::vector<uint32_t> frames : cuts) {
    if (const Place place = find_place(frames, fixed); place.last > 0) {
      const uint32_t ahead = place.at - lift.at;
      frames[place.i + 1] = kLifted + ahead;
      lift.first = std::max(lift.first, std::max(place.first, ahead) - ahead);
      lift.last = std::min(lift.last, place.last - ahead);
    }
    lift.cuts.insert(std::move(frames));
  }
  return lift.first < lift.last ? lift : Lift{cuts, 0, 0, 0};
}

std::shared_ptr<const Piece> CompiledGrammar::piece(const Cuts& cuts, uint32_t from, int n_rules, bool may_lift) const {
  const Lift lift = may_lift ? find_lift(cuts) : Lift{cuts, 0, 0, 0};
  std::vector<uint32_t> words{from, uint32_t(n_rules), lift.first, lift.last};
  for (const std::vector<uint32_t>& frames : lift.cuts) {
    words.push_back(uint32_t(frames.size()));
    words.insert(words.end(), frames.begin(), frames.end());
  }
  std::string key(reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]);
  auto place = places_.find(key);
  if (place == places_.end()) {
    entries_.push_front({std::move(key), find_pieces(lift, from, n_rules)});
    place = places_.emplace(entries_.front().key, entries_.begin()).first;
    cache_bytes_ += entries_.front().size();
  }
  entries_.splice(entries_.begin(), entries_, place->second);
  const Pieces& found = entries_.front().pieces;
  const auto piece = found.empty() ? this->piece(cuts, from, n_rules, false) : found[lift.at - lift.first];
  while (cache_bytes_ > max_cache_bytes_ && entries_.size() > 1) {
    cache_bytes_ -= entries_.back().size();  // its masks are counted until nothing shares them
    places_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return piece;
}

size_t CompiledGrammar::Entry::size() const {
  size_t sum = sizeof(*this) + key.size();
  for (size_t i = 0; i < pieces.size(); ++i)
    sum += sizeof pieces[i] + (i > 0 && pieces[i] == pieces[i - 1] ? 0 : pieces[i]->size());
  return sum;
}

std::shared_ptr<const Piece> CompiledGrammar::make_piece(const std::vector<uint64_t>& mask,
                                                         const std::shared_ptr<const std::vector<uint64_t>>& base,
                                                         std::vector<uint32_t> exits, uint32_t reach) const {
  bool has_base = true;
  std::vector<int32_t> tokens;
  for (size_t word = 0; word < mask.size() && tokens.size() < mask.size(); ++word) {
    const uint64_t shared = base ? (*base)[word] : 0;
    has_base = has_base && (shared & ~mask[word]) == 0;
    for (uint64_t bits = mask[word] & ~shared; bits != 0; bits &= bits - 1)
      tokens.push_back(int32_t(word * 64 + size_t(std::countr_zero(bits))));
  }
  has_base = has_base && tokens.size() < mask.size();
  if (base && !has_base) return make_piece(mask, nullptr, std::move(exits), reach);
  if (has_base) return std::make_shared<Piece>(Piece{base, std::move(tokens), std::move(exits), reach});
  const auto forget = [this](const std::vector<uint64_t>* kept) {
    cache_bytes_ -= kept->size() * sizeof(uint64_t);
    delete kept;
  };
  cache_bytes_ += mask.size() * sizeof(uint64_t);
  return std::make_shared<Piece>(Piece{{new std::vector(mask), forget}, {}, std::move(exits), reach});
}

CompiledGrammar::Pieces CompiledGrammar::find_pieces(const Lift& lift, uint32_t from, int n_rules) const {
  std::vector<Matcher::Frame> tops;
  for (const std::vector<uint32_t>& frames : lift.cuts) {
    Matcher::Frame top = lift.last != 0 ? matcher_->lifted_end(lift.first, lift.last) : Matcher::kEnd;
    for (size_t i = frames.size(); i > 0; i -= 2) top = matcher_->push(frames[i - 2], frames[i - 1], top);
    tops.push_back(top);
  }
  if (lift.last == 0) {
    std::vector<uint64_t> mask(vocabulary_->n_words());
    TokenWalk walk(*this, *matcher_, n_rules - 1, mask);
    walk.collect(matcher_->state_of(std::move(tops)), from);
    std::vector<uint32_t> exits = walk.exits();
    std::sort(exits.begin(), exits.end());
    exits.erase(std::unique(exits.begin(), exits.end()), exits.end());
    return {make_piece(mask, walk.base(), std::move(exits), walk.reach())};
  }
  LiftedWalk walk(*vocabulary_, *matcher_, lift.first, lift.last);
  try {
    walk.walk(matcher_->state_of(std::move(tops)), from);
  } catch (const Error&) {
    // A lifted state has more stacks than those it stands for.
    matcher_->start_work();
    return {};
  }
  return walk.pieces(*this);
}

void CompiledGrammar::prepare(std::chrono::milliseconds limit) const {
  const auto end = std::chrono::steady_clock::now() + limit;
  Matcher matcher(grammar_);
  std::vector<uint64_t> mask(vocabulary_->n_words());
  std::vector<Matcher::State> open;
  std::set<Cuts> seen;  // by what masks depend on: a grammar that nests has no end of states
  const auto add = [&](Matcher::State state) {
    Cuts cuts;
    for (const Matcher::Frame top : matcher.stacks(state)) cuts.insert(cut(matcher, top, 2).frames);
    if (seen.insert(std::move(cuts)).second) open.push_back(state);
  };
  try {
    add(matcher.start());
    for (size_t i = 0; i < open.size() && std::chrono::steady_clock::now() < end; ++i) {
      matcher.start_work();
      for (const uint8_t byte : grammar_.byte_of_class)
        if (const Matcher::State next = matcher.after(open[i], byte); next != Matcher::kDead) add(next);
      const std::lock_guard lock(mutex_);
      matcher_->start_work();
      TokenWalk(*this, matcher, 2, mask).collect(open[i], 0);
    }
  } catch (const Error&) {
    // Too ambiguous from there on: a text that comes there hears of it.
  }
}

size_t CompiledGrammar::bytes() const {
  const std::lock_guard lock(mutex_);
  return sizeof *this + grammar_.bytes() + cache_bytes_ + (matcher_ ? matcher_->size() : 0);
}

size_t CompiledGrammar::cache_bytes() const {
  const std::lock_guard lock(mutex_);
  return cache_bytes_;
}

Constraint::Constraint(std::shared_ptr<const CompiledGrammar> compiled)
    : compiled_(std::move(compiled)), matcher_(compiled_->grammar()), state_(matcher_.start()) {}

void Constraint::start_mask() {
  held_ = Held::nothing;
  mask_.assign(compiled_->vocabulary().n_words(), 0);
  matcher_.start_work();
  if (!ended_ && matcher_.can_end(state_))
    for (const int32_t token : compiled_->vocabulary().end_tokens()) add_token(mask_, token);
}

std::span<const uint64_t> Constraint::mask() {
  if (held_ == Held::all) return mask_;
  start_mask();
  if (!ended_) {
    const std::lock_guard lock(compiled_->mutex_);
    auto& shared = compiled_->matcher_;
    if (shared->size() > kMaxMatcherBytes) shared.emplace(compiled_->grammar());
    shared->start_work();
    TokenWalk(*compiled_, matcher_, 2, mask_).collect(state_, 0);
  }
  held_ = Held::all;
  return mask_;
}

std::span<const uint64_t> Constraint::mask_to_end() {
  if (held_ == Held::to_end) return mask_;
  start_mask();
  const Vocabulary& vocabulary = compiled_->vocabulary();
  std::vector<Matcher::State> path(vocabulary.longest() + 1, state_);
  const uint32_t bytes = ended_ ? 0 : matcher_.shortest(state_);
  for (uint32_t node = 1; bytes > 0 && node < vocabulary.n_nodes();) {
    const uint32_t depth = vocabulary.depth(node);
    path[depth] = matcher_.after(path[depth - 1], vocabulary.byte(node));
    const bool is_near = uint64_t(matcher_.shortest(path[depth])) + depth == bytes;
    for (const int32_t token : vocabulary.tokens(node))
      if (is_near) add_token(mask_, token);
    node = is_near ? node + 1 : vocabulary.end(node);
  }
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
  return accept_text(vocabulary.bytes(token));
}

bool Constraint::accept_text(std::string_view bytes) {
  matcher_.start_work();
  Matcher::State state = state_;
  for (const char byte : bytes) state = matcher_.after(state, uint8_t(byte));
  if (ended_ || state == Matcher::kDead || bytes.empty()) return false;
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
