#include "grammar/matcher.h"

#include <algorithm>

#include "base/rng.h"

namespace ridge::grammar {
namespace {

constexpr size_t kSmallTable = 256;

uint64_t mix(uint64_t hash, uint64_t value) { return splitmix64((hash ^ value) + kSplitmixStep); }

}  // namespace

size_t Matcher::FrameHash::operator()(const FrameData& frame) const {
  return mix(uint64_t(frame.node) << 32 | frame.at, frame.parent);
}

Matcher::Matcher(const Grammar& grammar) : grammar_(&grammar), n_classes_(grammar.byte_of_class.size()) {
  frames_.push_back({});
  state_of({});  // the dead state
  for (size_t i = 0; i < n_classes_; ++i) next_[i] = kDead;
  enter(grammar.root, kEnd);
  start_ = follow_goals();
}

Matcher::Frame Matcher::push(Expr e, uint32_t at, Frame parent) {
  FrameData data{.node = e, .at = at, .parent = parent};
  const auto [place, is_new] = frame_numbers_.try_emplace(data, Frame(frames_.size()));
  if (!is_new) return place->second;
  const Node& node = grammar_->nodes[e];
  uint32_t own = 1;
  if (node.kind == Kind::literal) own = std::max(node.count, at) - at;
  if (node.kind == Kind::sequence) own = grammar_->suffix[node.first + at];
  if (node.kind == Kind::repeat) own = at < node.min ? (node.min - at) * grammar_->nodes[node.first].shortest : 0;
  data.rest = frames_[parent].rest + own;
  data.depth = frames_[parent].depth + 1;
  frames_.push_back(data);
  return place->second;
}

void Matcher::work(uint64_t steps) {
  work_ += steps;
  if (work_ > kMaxWork) throw TooAmbiguous(fmt::format("one token takes more than {} steps", kMaxWork));
}

/// A transition that threw has left its own behind.
void Matcher::forget_goals() {
  goals_.clear();
  // Clearing a table costs as much as it once held.
  if (seen_.bucket_count() > kSmallTable) seen_ = {};
  else seen_.clear();
  found_.clear();
  reach_ = 0;
}

void Matcher::want(const Goal& goal) {
  if (goal.enter) {
    const Node& node = grammar_->nodes[goal.node];
    if (node.shortest == kUnbounded) return;
    const uint32_t depth = frames_[goal.parent].depth + node.need;
    reach_ = std::max(reach_, depth);
    if (depth > kMaxStack) return;
  }
  if (seen_.insert(uint64_t(goal.parent) << 32 | (goal.enter ? goal.node + 1 : 0)).second) goals_.push_back(goal);
}

void Matcher::repeat(Expr e, uint32_t at, Frame parent) {
  if (at >= kLifted) return repeat_lifted(e, at, parent);
  const Node& node = grammar_->nodes[e];
  if (at >= node.min) complete(parent);
  if (at == node.max) return;
  const bool is_last = at + 1 == node.max;
  enter(node.first, is_last ? parent : push(e, node.max == kUnbounded ? std::min(at + 1, node.min) : at + 1, parent));
}

void Matcher::repeat_lifted(Expr e, uint32_t at, Frame parent) {
  const Node& node = grammar_->nodes[e];
  const uint32_t more = at - kLifted;
  const Frame end = end_of(parent);
  const uint32_t first = frames_[end].at, last = frames_[frames_[end].parent].at;
  const uint32_t leaves = std::max(first, std::max(node.min, more) - more);
  if (leaves <= last) complete(with_end(parent, leaves, last));
  if (more >= node.max || first >= node.max - more) return;
  enter(node.first, push(e, at + 1, with_end(parent, first, std::min(last, node.max - more - 1))));
}

Matcher::Frame Matcher::end_of(Frame frame) const {
  while (frames_[frame].node != 0) frame = frames_[frame].parent;
  return frame;
}

Matcher::Frame Matcher::with_end(Frame frame, uint32_t first, uint32_t last) {
  const FrameData data = frames_[frame];
  return data.node == 0 ? lifted_end(first, last) : push(data.node, data.at, with_end(data.parent, first, last));
}

Matcher::State Matcher::follow_goals() {
  while (!goals_.empty()) {
    const Goal goal = goals_.back();
    goals_.pop_back();
    work(1);
    const auto next_of_sequence = [&](Expr e, uint32_t at, Frame parent) {
      const Node& node = grammar_->nodes[e];
      enter(grammar_->child(node, at), at + 1 < node.count ? push(e, at + 1, parent) : parent);
    };
    if (!goal.enter) {
      if (frames_[goal.parent].node == 0) {
        found_.push_back(goal.parent);
        continue;
      }
      const FrameData frame = frames_[goal.parent];
      if (grammar_->nodes[frame.node].kind == Kind::repeat) repeat(frame.node, frame.at, frame.parent);
      else next_of_sequence(frame.node, frame.at, frame.parent);
      continue;
    }
    const Node& node = grammar_->nodes[goal.node];
    switch (node.kind) {
      case Kind::bytes: found_.push_back(push(goal.node, 0, goal.parent)); break;
      case Kind::literal:
        if (node.count == 0) complete(goal.parent);
        else found_.push_back(push(goal.node, 0, goal.parent));
        break;
      case Kind::sequence: next_of_sequence(goal.node, 0, goal.parent); break;
      case Kind::choice:
        for (uint32_t i = 0; i < node.count; ++i) enter(grammar_->child(node, i), goal.parent);
        break;
      case Kind::repeat: repeat(goal.node, 0, goal.parent); break;
      case Kind::rule: enter(grammar_->bodies[node.first], goal.parent); break;
    }
  }
  return state_of(std::move(found_));
}

Matcher::State Matcher::state_of(std::vector<Frame> stacks) {
  std::sort(stacks.begin(), stacks.end());
  stacks.erase(std::unique(stacks.begin(), stacks.end()), stacks.end());
  if (stacks.size() > kMaxStacks) throw TooAmbiguous(fmt::format("more than {} ways to go on", kMaxStacks));
  uint64_t hash = stacks.size();
  for (const Frame frame : stacks) hash = mix(hash, frame);
  const auto [begin, end] = state_numbers_.equal_range(hash);
  for (auto at = begin; at != end; ++at)
    if (std::ranges::equal(this->stacks(at->second), stacks)) return at->second;
  const auto state = State(states_.size());
  StateData data{.first = uint32_t(stacks_.size()), .count = uint32_t(stacks.size())};
  for (const Frame frame : stacks) {
    data.shortest = std::min(data.shortest, frames_[frame].rest);
    data.can_end = data.can_end || frame == kEnd;
    data.wide = data.wide || is_wide_frame(frame);
  }
  states_.push_back(data);
  stacks_.insert(stacks_.end(), stacks.begin(), stacks.end());
  next_.resize(next_.size() + n_classes_, kUnknown);
  state_numbers_.emplace(hash, state);
  return state;
}

Matcher::State Matcher::find_next(State state, uint8_t byte) {
  forget_goals();
  for (uint32_t i = 0; i < states_[state].count; ++i) {
    const Frame top = stacks_[states_[state].first + i];
    const FrameData frame = frames_[top];
    if (frame.node == 0) continue;
    const Node& node = grammar_->nodes[frame.node];
    if (node.kind == Kind::bytes) {
      if (grammar_->sets[node.first][byte]) complete(frame.parent);
    } else if (uint8_t(grammar_->text[node.first + frame.at]) == byte) {
      if (frame.at + 1 == node.count) complete(frame.parent);
      else found_.push_back(push(frame.node, frame.at + 1, frame.parent));
    }
  }
  work(states_[state].count);
  const State next = follow_goals();
  states_[state].reach = std::max(states_[state].reach, reach_);
  next_[state * n_classes_ + grammar_->class_of[byte]] = next;
  return next;
}

Matcher::State Matcher::after_child(Frame frame) {
  if (const auto known = after_child_.find(frame); known != after_child_.end()) return known->second;
  forget_goals();
  complete(frame);
  const State state = follow_goals();
  after_child_.emplace(frame, state);
  return state;
}

Matcher::State Matcher::copy(State state, Matcher& other) const {
  std::vector<Frame> copies;
  for (const Frame top : stacks(state)) {
    std::vector<Frame> path;
    for (Frame at = top; at != kEnd; at = frames_[at].parent) path.push_back(at);
    Frame copied = kEnd;
    for (auto at = path.rbegin(); at != path.rend(); ++at)
      copied = other.push(frames_[*at].node, frames_[*at].at, copied);
    copies.push_back(copied);
  }
  return other.state_of(std::move(copies));
}

}  // namespace ridge::grammar
