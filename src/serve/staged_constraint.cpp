#include "serve/staged_constraint.h"

#include <algorithm>
#include <limits>

#include "base/result.h"

namespace ridge::serve {
namespace {

constexpr int kReasoning = 1;
constexpr float kNever = -std::numeric_limits<float>::infinity();

using grammar::Vocabulary;

/// The node below `node` for one more byte; 0 where there is none.
uint32_t child(const Vocabulary& vocabulary, uint32_t node, uint8_t byte) {
  for (uint32_t next = node + 1; next < vocabulary.end(node); next = vocabulary.end(next))
    if (vocabulary.byte(next) == byte) return next;
  return 0;
}

/// Tokens that begin with `text`, and those that `text` begins with.
void add_tokens_along(const Vocabulary& vocabulary, std::string_view text, std::vector<int32_t>& tokens) {
  const auto add = [&](uint32_t node) {
    const auto at_node = vocabulary.tokens(node);
    tokens.insert(tokens.end(), at_node.begin(), at_node.end());
  };
  uint32_t node = 0;
  for (const char byte : text) {
    node = child(vocabulary, node, uint8_t(byte));
    if (node == 0) return;
    add(node);
  }
  for (uint32_t below = node + 1; below < vocabulary.end(node); ++below) add(below);
}

/// Tokens that spell `text`, each as long as possible; fewer bytes where a byte has no token.
std::vector<int32_t> spell(const Vocabulary& vocabulary, std::string_view text) {
  std::vector<int32_t> tokens;
  while (!text.empty()) {
    uint32_t node = 0;
    size_t longest = 0;
    int32_t token = -1;
    for (size_t n = 0; n < text.size() && (node = child(vocabulary, node, uint8_t(text[n]))) != 0; ++n)
      if (!vocabulary.tokens(node).empty()) longest = n + 1, token = vocabulary.tokens(node).front();
    if (longest == 0) throw_error(ErrorKind::failure, "no token spells the end mark of the reasoning");
    tokens.push_back(token);
    text.remove_prefix(longest);
  }
  return tokens;
}

std::string_view without_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

bool has(std::span<const int32_t> tokens, int32_t token) { return std::ranges::find(tokens, token) != tokens.end(); }

}  // namespace

StagedConstraint::StagedConstraint(std::shared_ptr<const StagePlan> plan) : plan_(std::move(plan)) {
  enter(plan_->first);
}

void StagedConstraint::enter(int number) {
  stage_ = number;
  const Stage& entered = stage();
  forced_.insert(forced_.end(), entered.forced.begin(), entered.forced.end());
  text_.clear();
  place_.reset();
  if (entered.grammar) place_.emplace(entered.grammar);
  grammar_goes_on_ = place_.has_value();
  line_end_ = entered.kind == Stage::Kind::may_open;
  n_reasoned_ = 0;
  end_used_up_reasoning();
}

/// The tokens that are forced already come first.
void StagedConstraint::end_used_up_reasoning() {
  if (stage().kind != Stage::Kind::reasoning || stage().budget < 0 || n_reasoned_ < stage().budget) return;
  forced_.insert(forced_.end(), stage().closing.begin(), stage().closing.end());
  enter(stage().next);
}

bool StagedConstraint::complete() const {
  return stage().kind == Stage::Kind::answer && forced_.empty() && place_->finished();
}

void StagedConstraint::mask(std::span<float> logits, int tokens_left) {
  if (!forced_.empty()) {
    const float kept = logits[size_t(forced_.front())];
    std::ranges::fill(logits, kNever);
    logits[size_t(forced_.front())] = std::isfinite(kept) ? kept : 0.0f;
    return;
  }
  if (stage().kind == Stage::Kind::reasoning) {
    for (const int32_t token : plan_->vocabulary->end_tokens()) logits[size_t(token)] = kNever;
    for (const int32_t token : stage().barred) logits[size_t(token)] = kNever;
    return;
  }
  if (stage().kind == Stage::Kind::free || (stage().kind == Stage::Kind::may_open && goes_on_freely())) return;
  if (stage().kind == Stage::Kind::words) tokens_left = std::numeric_limits<int>::max();  // no word is a short cut
  std::vector<int32_t> free;
  if (stage().kind == Stage::Kind::may_open) free = openers();
  if (line_end_) free.insert(free.end(), plan_->line_ends.begin(), plan_->line_ends.end());
  mask_but(logits, tokens_left, free);
}

void StagedConstraint::mask_but(std::span<float> logits, int tokens_left, std::span<const int32_t> free) {
  std::vector<float> kept;
  for (const int32_t token : free) kept.push_back(logits[size_t(token)]);
  if (grammar_goes_on_) {
    // The shortest way to the end takes one token a byte at most, and an end token.
    const bool hurry = uint32_t(std::max(tokens_left, 0)) <= place_->bytes_to_end() + 1;
    const std::span<const uint64_t> allowed = hurry ? place_->mask_to_end() : place_->mask();
    for (size_t first = 0; first < logits.size(); first += 64) {
      const uint64_t word = allowed[first / 64];
      if (word == ~uint64_t(0)) continue;
      const size_t n = std::min<size_t>(64, logits.size() - first);
      for (size_t i = 0; i < n; ++i)
        if (!(word >> i & 1)) logits[first + i] = kNever;
    }
  } else {
    std::ranges::fill(logits, kNever);
  }
  for (size_t i = 0; i < free.size(); ++i) logits[size_t(free[i])] = kept[i];
}

/// Tokens with which an opening mark begins or goes on.
std::vector<int32_t> StagedConstraint::openers() const {
  std::vector<int32_t> tokens;
  if (text_.empty()) tokens = stage().marks.tokens;
  const std::vector<int32_t>& answer = plan_->stages[size_t(stage().next)].forced;
  if (text_.empty() && !answer.empty()) tokens.push_back(answer.front());
  for (const std::string& open : stage().marks.texts)
    if (open.starts_with(text_))
      add_tokens_along(*plan_->vocabulary, std::string_view(open).substr(text_.size()), tokens);
  return tokens;
}

int32_t StagedConstraint::accept(int32_t token) {
  if (!forced_.empty()) {
    token = forced_.front();
    forced_.pop_front();
    return token;
  }
  switch (stage().kind) {
    case Stage::Kind::may_open: return accept_opening(token);
    case Stage::Kind::reasoning: return accept_reasoning(token);
    case Stage::Kind::words: return accept_word(token), token;
    case Stage::Kind::free: return token;
    default: return accept_answer(token), token;
  }
}

int32_t StagedConstraint::accept_opening(int32_t token) {
  if (line_end_ && has(plan_->line_ends, token)) {
    line_end_ = false;
    return token;
  }
  line_end_ = false;
  const std::vector<int32_t>& answer = plan_->stages[size_t(stage().next)].forced;
  if (text_.empty() && !answer.empty() && token == answer.front()) {
    enter(stage().next);
    forced_.pop_front();
    return token;
  }
  const std::string text = text_ + std::string(plan_->vocabulary->bytes(token));
  const auto opened =
      std::ranges::find_if(stage().marks.texts, [&](const std::string& open) { return text.starts_with(open); });
  if (opened != stage().marks.texts.end() || (text_.empty() && has(stage().marks.tokens, token))) {
    const std::string rest = opened == stage().marks.texts.end() ? "" : text.substr(opened->size());
    enter(kReasoning);
    text_ = rest;
    return token;
  }
  grammar_goes_on_ = grammar_goes_on_ && place_->accept(token);
  text_ = text;
  if (std::ranges::any_of(stage().marks.texts, [&](const std::string& open) { return open.starts_with(text); }))
    return token;
  if (!grammar_goes_on_ && !goes_on_freely())
    throw_error(ErrorKind::failure, "token {} was sampled outside of its grammar", token);
  stage_ = stage().next;  // the place in the grammar stays
  return token;
}

int32_t StagedConstraint::accept_reasoning(int32_t token) {
  const Stage& reasoning = stage();
  if (has(reasoning.marks.tokens, token)) {
    enter(reasoning.next);
    line_end_ = forced_.empty() && stage().kind == Stage::Kind::answer;
    return token;
  }
  const std::string_view piece = plan_->vocabulary->bytes(token);
  text_ += piece;
  size_t end = text_.size(), longest = 0;
  for (const std::string& close : reasoning.marks.texts) {
    if (const size_t at = text_.find(close); at != text_.npos) end = std::min(end, at + close.size());
    longest = std::max(longest, close.size());
  }
  const bool closed = std::ranges::any_of(reasoning.marks.texts, [&](const std::string& close) {
    return std::string_view(text_).substr(0, end).ends_with(close);
  });
  if (!closed) {
    text_.erase(0, text_.size() - std::min(text_.size(), longest));
    ++n_reasoned_;
    end_used_up_reasoning();
    return token;
  }
  const std::string rest = text_.substr(end);
  const std::string_view begun = without_blanks(rest);
  const std::string_view kept = piece.substr(0, piece.size() - std::min(piece.size(), rest.size()));
  enter(reasoning.next);
  line_end_ = rest.empty() && forced_.empty() && stage().kind == Stage::Kind::answer;
  if (begun.empty() || stage().kind == Stage::Kind::free) return token;
  if (forced_.empty() && place_->accept_text(begun)) return token;
  const std::vector<int32_t> spelled = spell(*plan_->vocabulary, kept);
  forced_.insert(forced_.begin(), spelled.begin() + 1, spelled.end());
  return spelled.front();
}

void StagedConstraint::accept_word(int32_t token) {
  if (!place_->accept(token)) throw_error(ErrorKind::failure, "token {} was sampled outside of its words", token);
  text_ += plan_->vocabulary->bytes(token);
  for (const auto& [word, next] : stage().words)
    if (word == text_) return enter(next);
}

void StagedConstraint::accept_answer(int32_t token) {
  const bool blank = std::exchange(line_end_, false) && has(plan_->line_ends, token);
  // A line end may also be what the grammar begins with.
  if (place_->accept(token) || blank) return;
  throw_error(ErrorKind::failure, "token {} was sampled outside of its grammar", token);
}

}  // namespace ridge::serve
