// The automaton of a grammar: which bytes may follow, byte by byte.
//
// A state is a set of stacks, one for each way to read the text so far. Stacks share their frames and equal stacks and
// states are made once, so a state is a number and transitions are looked up. What could not be ended any more within
// kMaxStack frames is never begun: from every state but the dead one a text leads to the end.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/grammar.h"
#include "ridge/error.h"

namespace ridge::grammar {

inline constexpr size_t kMaxStacks = 4096;     ///< stacks of one state
inline constexpr uint64_t kMaxWork = 2000000;  ///< steps for one mask or token: a second at most
inline constexpr uint32_t kLifted = 1U << 31;  ///< see Matcher::lifted_end(); counts are smaller

/// A grammar that has too many ways to go on (usage).
class TooAmbiguous : public Error {
 public:
  explicit TooAmbiguous(const std::string& what)
      : Error(ErrorKind::usage, fmt::format("grammar: too ambiguous: {} (make the rules that overlap one)", what)) {}
};

class Matcher {
 public:
  using State = uint32_t;
  using Frame = uint32_t;
  static constexpr State kDead = 0;
  static constexpr Frame kEnd = 0;  ///< the empty stack: the text may end

  /// One frame of a stack. Of bytes and literals: what is being read, at byte `at`. Of a sequence: what comes next,
  /// child `at`. Of a repetition: how often it has been read (no more than its minimum counts when it has no maximum).
  struct FrameData {
    Expr node = 0;
    uint32_t at = 0;
    Frame parent = kEnd;
    uint32_t rest = 0;   ///< bytes of the shortest text that ends the stack
    uint32_t depth = 0;  ///< frames of the stack
    bool operator==(const FrameData& other) const {
      return node == other.node && at == other.at && parent == other.parent;
    }
  };

  /// The grammar must outlive the matcher.
  explicit Matcher(const Grammar& grammar);

  State start() const { return start_; }
  /// Throws Error(usage) when the grammar is so ambiguous that a state has more than kMaxStacks stacks, or when the
  /// work since start_work() is over kMaxWork.
  State after(State state, uint8_t byte) {
    const State known = next_[state * n_classes_ + grammar_->class_of[byte]];
    return known != kUnknown ? known : find_next(state, byte);
  }
  bool can_end(State state) const { return states_[state].can_end; }
  bool must_end(State state) const { return states_[state].can_end && states_[state].count == 1; }
  /// Bytes of the shortest text that ends the state; kUnbounded for the dead one.
  uint32_t shortest(State state) const { return states_[state].shortest; }

  /// The stacks of a state, by their top frames; kEnd first if the text may end. Valid until the next call.
  std::span<const Frame> stacks(State state) const {
    return {stacks_.data() + states_[state].first, states_[state].count};
  }
  const FrameData& frame(Frame frame) const { return frames_[frame]; }
  Frame push(Expr node, uint32_t at, Frame parent);
  /// The end of a lifted stack. Such a stack stands for several, one for each count from `first` to `last`: its
  /// repetitions' frames that have been read kLifted + n times were read n times more often than the count says. Where
  /// a bound of the repetition leaves only some counts, what goes on ends in these.
  Frame lifted_end(uint32_t first, uint32_t last) { return push(0, first, push(0, last, kEnd)); }
  /// The lowest frame: kEnd, or a lifted_end() from frame(end).at to frame(frame(end).parent).at.
  Frame end_of(Frame frame) const;
  State state_of(std::vector<Frame> stacks);
  /// The state when what stood above `frame` has been read.
  State after_child(Frame frame);
  /// Whether one of the stacks reads a byte of many.
  bool is_wide(State state) const { return states_[state].wide; }
  bool is_wide_frame(Frame frame) const { return grammar_->wide[frames_[frame].node] != 0; }
  /// The deepest frame that was wanted, allowed or not, in any transition from the state.
  uint32_t reach(State state) const { return states_[state].reach; }

  void start_work() { work_ = 0; }
  void work(uint64_t steps);
  /// Bytes held, roughly; grows with every new state.
  size_t size() const { return frames_.size() * 64 + stacks_.size() * 4 + states_.size() * 96 + next_.size() * 4; }
  /// Copies a state into `other`, a matcher of the same grammar.
  State copy(State state, Matcher& other) const;

 private:
  static constexpr State kUnknown = UINT32_MAX;
  struct StateData {
    uint32_t first = 0, count = 0;  // of stacks_
    uint32_t shortest = kUnbounded;
    uint32_t reach = 0;
    bool can_end = false, wide = false;
  };
  struct Goal {
    bool enter;  // read the node, then what is in the frame; else the frame alone
    Expr node;
    Frame parent;
  };
  struct FrameHash {
    size_t operator()(const FrameData& frame) const;
  };

  State find_next(State state, uint8_t byte);
  void forget_goals();
  void enter(Expr node, Frame parent) { want({true, node, parent}); }
  void complete(Frame frame) { want({false, 0, frame}); }
  void want(const Goal& goal);
  void repeat(Expr node, uint32_t at, Frame parent);
  void repeat_lifted(Expr node, uint32_t at, Frame parent);
  Frame with_end(Frame frame, uint32_t first, uint32_t last);
  State follow_goals();

  const Grammar* grammar_;
  size_t n_classes_;
  std::vector<FrameData> frames_;
  std::unordered_map<FrameData, Frame, FrameHash> frame_numbers_;
  std::vector<StateData> states_;
  std::vector<Frame> stacks_;
  std::unordered_multimap<uint64_t, State> state_numbers_;
  std::unordered_map<Frame, State> after_child_;
  std::vector<State> next_;
  State start_ = kDead;
  uint64_t work_ = 0;
  // State of the transition being found.
  std::vector<Goal> goals_;
  std::unordered_set<uint64_t> seen_;
  std::vector<Frame> found_;
  uint32_t reach_ = 0;
};

}  // namespace ridge::grammar
