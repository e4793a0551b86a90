// How many draft tokens pay: what forward passes cost with them, how many are accepted, and how long a text pauses.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace ridge {

/// Positions that a proposer of hidden states sees before it is tried again: behind one position alone the trained head
/// of ridge-ref has one token of three right, behind 16 every second one and more, nearly as behind the whole text.
inline constexpr int kHeardPositions = 16;

/// The lower quartile of the newest times: what waited for the machine is forgotten, the first one too.
class RecentTimes {
 public:
  void add(double value) { newest_[size_t(n_++) % newest_.size()] = value; }
  double value() const;  ///< 0 without a value
  int n() const { return n_; }
  /// Whether there are three values, of which the lowest two agree; or so many that they will not.
  bool is_settled() const;

 private:
  std::array<double, 5> newest_{};
  int n_ = 0;
};

/// What steps of so many texts take: without proposals, and more for each of them.
class SpecCost {
 public:
  /// Counts a step with so many proposals. Whether a device has run such a step often enough: it queues the first one
  /// launch by launch, and records the second one.
  bool recorded(int n_proposed) { return ++n_runs_[n_proposed] > 2; }
  /// A step with so many proposals took so long, proposing included.
  void add(int n_proposed, double seconds);
  /// A step of a paused text did: nothing was proposed, and nothing kept for a proposer.
  void add_paused(double seconds);
  /// Whether such a step is still to be measured for what steps without proposals take now.
  bool wants_pause() const;
  /// What counts as proposals of a step whose proposer took so long: one in vain, where it was long for nothing.
  int paid(int n_proposed, double proposing) const;
  double plain() const { return plain_.value(); }  ///< seconds of a paused step; 0: not measured yet
  /// Seconds that 0, 1, ... `most` proposals add to a step: as measured, on a straight line between numbers that were,
  /// and on the last such line behind them. Thought to be few until they are measured.
  std::vector<double> extras(int most) const;
  /// Whether so many steps with proposals were measured that one wrong time does not count.
  bool knows_extra() const { return n_extra_ >= 2; }
  /// Whether proposals of a text pay that hold with this probability, beside n_others of other texts, where they must
  /// also pay for a proposer that listens. n_texts are in the step.
  bool pays(double acceptance, int n_texts, int n_others = 0) const;
  /// What 0, 1, ... `most` proposals of a text cost all texts beside n_others, in tokens of steps without proposals.
  std::vector<double> prices(int most, int n_texts, int n_others) const;
  /// Whether no proposal pays that is known to hold, as far as was measured lately.
  bool is_hopeless(int n_texts) const;
  /// Whether a step without proposals should be measured next.
  bool stale() const { return !plain_.is_settled() || is_old(); }

 private:
  struct Proposed {
    RecentTimes seconds;
    int64_t at = 0;  // step of the newest
  };
  bool is_old() const;
  /// Tokens that a text's proposals are to bring, over what they cost all texts in tokens of steps without proposals,
  /// and a margin since both are estimates: of the number of proposals for which that is most.
  double gain(double acceptance, int n_texts, int n_others) const;
  /// What a step without proposals takes that the proposer sees, in paused steps.
  double listening() const { return std::max(1.0, heard_.value()); }

  RecentTimes plain_;
  RecentTimes heard_;
  std::map<int, Proposed> proposed_;  // by proposals: judged by what a plain step is known to take now
  int64_t n_steps_ = 0;
  int n_extra_ = 0, n_pauses_ = 0;  // measurements
  bool was_paused_ = false;         // since the last step with proposals
  int age_ = 0;                     // steps since the last one without proposals
  int n_unproposed_ = 0;            // steps since the last one with proposals
  std::map<int, int> n_runs_;       // by proposals
};

/// A step of texts as one of them sees it.
struct SpecStep {
  const SpecCost& cost;  ///< knows of the step
  int n_texts = 1;
  int n_others = 0;    ///< proposals of the other texts
  double seconds = 0;  ///< with those proposals alone that are the text's own; 0: they say nothing
};

/// How many proposals for one text hold, and whether they pay. Where they do not, they end, and are tried again at
/// growing distances, in two steps: in the first one the proposer catches up with the text. The distance is such that
/// what the tries lose is a small part of it.
class SpecDepth {
 public:
  /// n_asked proposals were wanted in a step, n_proposed came (SpecCost::paid()), and the first n_accepted held.
  void add(int n_asked, int n_proposed, int n_accepted, const SpecStep& step);
  /// n steps of a pause (paused_steps()) were run. To begin with them took `lost` paused steps.
  void on_paused_steps(int n, double lost = 0);
  /// Steps that the text goes on for without its proposer. One that `listens` sees the last steps in front of a try.
  int paused_steps(bool listens) const {
    return paused_ ? std::max(0, distance_ - n_plain_ - (listens ? kHeardPositions : 0)) : 0;
  }
  /// Pauses for a while, to measure what that takes.
  void pause() { pause(2 * kHeardPositions, 1); }
  /// Probability that a proposal holds whose predecessors do.
  double acceptance() const { return acceptance_; }
  bool paused() const { return paused_; }
  /// Whether it is time to try again.
  bool probes() const { return paused_ && n_plain_ >= distance_; }
  /// Whether the proposer must read first what came without it: such a step says nothing about cost.
  bool must_catch_up() const { return must_catch_up_; }

 private:
  void pause(int distance, int n_texts);

  double acceptance_ = 0.6, recent_ = 0.6;  // of a longer and a shorter mean
  double slump_ = 0;                        // tokens lost since draft tokens gained most
  bool paused_ = true, must_catch_up_ = true;
  int n_plain_ = 0, distance_ = 0;  // steps without proposals, and how many of them before the next try
  double lost_ = 0;                 // paused steps that steps since the last pause took longer than their tokens
};

/// Proposals to ask for in the next step of n_texts, for each of those that have a proposer: as many as promise most
/// tokens a second.
std::vector<int> spec_depths(const SpecCost& cost, int n_texts, std::span<const SpecDepth* const> texts, int most);

}  // namespace ridge
