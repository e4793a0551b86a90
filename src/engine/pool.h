// What sequences remember: pages of coded rows that sequences share, and a slot for each.
//
// A page is kPagePositions positions of all layers of a class, K and V: full layers, or sliding ones (PageClass). Its
// holders, sequences and checkpoints, are counted. A page with several holders is never written: reserve() gives the
// sequence that is about to code into it a copy. Pages of sliding layers are given back when no query can see them any
// more, one of a sequence that goes back by up to kSpareRows included. A slot is the part of a sequence with a fixed
// size: sinks, ring, centres and scales of heads. A checkpoint is a slot of its own with a length and a list of pages;
// a sequence opened from it goes on exactly where it was made.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "op/cache/rewrite.h"

namespace ridge {

enum class SeqId : int32_t {};
enum class CheckpointId : int32_t {};

/// What going back may give up.
enum class TrimMode : uint8_t {
  exact,         ///< the sequence is, bit for bit, as if it had never gone further; else refused
  coded_window,  ///< positions whose exact rows are gone read as their coded rows from now on
};

struct TrimReport {
  bool exact = true;
  int coded_positions = 0;  ///< of the window that read as coded
};

/// Pages of one class.
struct PageReport {
  int n_pages = 0, pages_free = 0;
  int pages_shared = 0;          ///< held by a sequence and by others
  int pages_of_checkpoints = 0;  ///< held by checkpoints only
  int64_t page_bytes = 0;        ///< of one
};

/// Pages of full layers, or of a model's only class.
struct PoolReport : PageReport {
  std::optional<PageReport> sliding;  ///< of sliding layers, beside full ones
  int n_slots = 0, slots_free = 0, sequences = 0, checkpoints = 0;
  int64_t slot_bytes = 0;  ///< of one, without a history
  int64_t used_bytes = 0;  ///< pages and slots with a holder
  int64_t allocated_bytes = 0;
};

/// One per set of cache formats. Not thread-safe.
class SequencePool {
 public:
  /// Memory on the host of the same layers with so many pages and one slot: where rows are rewritten.
  using HostTwin = std::function<std::unique_ptr<HostKvMemory>(int n_pages)>;

  SequencePool(std::unique_ptr<KvMemory> memory, HostTwin host_twin);
  SequencePool(const SequencePool&) = delete;
  SequencePool& operator=(const SequencePool&) = delete;

  /// An empty sequence. Usage error when no slot is free.
  Result<SeqId> open();
  Result<SeqId> open(CheckpointId checkpoint);
  void close(SeqId seq);
  /// A sequence that has the first n positions in common with `seq`: pages are shared, the slot is copied. The exact
  /// rows that n positions want must be held, as for an exact trim().
  Result<SeqId> fork(SeqId seq, int n);
  /// Goes back to n positions. Exact for up to kSpareRows positions, and further where no window has moved on. Below
  /// the calibration length only 0 is exact once a centre or scales are set. A sequence with states goes back to
  /// lengths whose state its slot has (op/cache/states.h), or to 0, in either mode; checkpoint() keeps others. One
  /// whose sliding layers gave back pages that it would see again goes back to 0 only.
  Result<TrimReport> trim(SeqId seq, int n, TrimMode mode);
  /// Forgets all positions, the centre and the scales.
  void reset(SeqId seq);
  /// Drops positions [first, first + n_removed) and moves the later ones down; `turn` takes rows to their
  /// new position (RoPE). Lossy: moved rows of K are decoded, turned and coded again. Usage error where
  /// layers have states, or sliding layers would see what they gave back, unless all positions are dropped.
  Result<TrimReport> shift(SeqId seq, int first, int n_removed, const TurnRow& turn);

  Result<CheckpointId> checkpoint(SeqId seq);
  void release(CheckpointId checkpoint);
  /// The sequence becomes, bit for bit, what it was at the checkpoint, which stays.
  void restore(SeqId seq, CheckpointId checkpoint);
  /// Names a checkpoint so that find() gives it and evict() may release it; the pool owns it from here.
  void retain(CheckpointId checkpoint, uint64_t key);
  std::optional<CheckpointId> find(uint64_t key);
  /// Names of all retained checkpoints, the one found longest ago first.
  std::vector<uint64_t> retained() const;
  /// Releases the retained checkpoint that was found longest ago. False when none is retained.
  bool evict();

  /// Pages for n more tokens, none of them shared where rows will be coded. Usage error "needs n pages, m are free".
  Status reserve(SeqId seq, int n);
  /// n tokens were appended to all layers.
  void advance(SeqId seq, int n);
  /// The same; the first n_kept of them stay, the others are kSpareRows at most. Their pages stay for steps under way,
  /// until a trim() to the sequence's length. Not before calibration.
  void advance(SeqId seq, int n, int n_kept);

  /// The sequence as bytes, and a sequence made of bytes that check_image() accepts.
  SequenceImage save(SeqId seq);
  /// The same of some layers only, in the order given.
  SequenceImage save(SeqId seq, std::span<const int> layers);
  Result<SeqId> load(const SequenceImage& image);
  /// Whether an image can be a sequence of this pool; names the first field that cannot.
  Status check_image(const SequenceImage& image) const;
  /// Pages and slot to host memory and back, bit for bit. A parked sequence keeps its name and takes no step.
  void park(SeqId seq);
  Status unpark(SeqId seq);
  bool is_parked(SeqId seq) const { return sequence(seq).parked.has_value(); }

  int length(SeqId seq) const { return sequence(seq).n; }
  /// Whether K or V of one of its positions was not finite: its logits are errors.
  bool is_lost(SeqId seq) const { return memory_->lost_from(sequence(seq).slot) < sequence(seq).n; }
  /// New tokens of a sequence as ops take them: rows first_row, ... of a step.
  KvSpan span(SeqId seq, int first_row, int n_rows) const { return span(seq, first_row, n_rows, classes()[0]); }
  KvSpan span(SeqId seq, int first_row, int n_rows, PageClass of) const;
  /// Whether the step that reaches kCalibration positions sets the sequence's centre and scales.
  bool calibrates(SeqId seq) const { return calibrates_ && !sequence(seq).calibrated; }
  bool has_states() const { return has_states_; }  ///< whether layers have them
  /// Tokens that steps may bring to a sequence while all but the first of them can be taken back exactly, where no
  /// centre is set.
  int most_taken_back(SeqId seq) const { return has_states_ ? memory_->states_kept(sequence(seq).slot) : kSpareRows; }
  int slot(SeqId seq) const { return sequence(seq).slot; }
  /// Pages that a sequence holds.
  std::span<const int32_t> pages(SeqId seq) const { return pages(seq, classes()[0]); }
  std::span<const int32_t> pages(SeqId seq, PageClass of) const { return sequence(seq)[of].held(); }
  /// Marks n positions as held, of rows that are valid but not of any text: benchmarks.
  Status fill(SeqId seq, int n, uint64_t seed);
  /// Positions that one of its sequences may reach; 0: not said. What LongRoPE's factors are chosen by.
  int n_ctx() const { return n_ctx_; }
  void set_n_ctx(int n) { n_ctx_ = n; }
  /// Of a pool that follows another one (lead.h): the sequence in this slot is where that one has it, for span(),
  /// slot() and calibrates(). Takes nothing.
  SeqId follow(int slot, int n, bool calibrates, const std::function<std::span<const int32_t>(PageClass)>& pages);
  KvMemory& memory() { return *memory_; }
  const KvMemory& memory() const { return *memory_; }
  PoolReport report() const;
  /// Pages that a sequence of n positions holds between steps.
  PageNumbers pages_for(int n) const;
  /// Whether so many pages of each class are free.
  bool has_free(PageNumbers n) const;

 private:
  /// Of one class: page i has positions i * kPagePositions and on.
  struct PageList {
    std::vector<int32_t> pages;  // kNoPage where given back
    int first = 0;               // rows are held from this position on
    std::span<const int32_t> held() const { return std::span(pages).subspan(size_t(first / kPagePositions)); }
  };
  /// Who takes a slot: sequences prefer one with a history, checkpoints take one without where there are any.
  enum class Holder : uint8_t { sequence, checkpoint };
  struct Sequence {
    bool open = false;
    int slot = -1;
    int n = 0;
    bool calibrated = false;
    PageList lists[kPageClasses];
    std::vector<int> ring_first;  // [2 n_layers]
    int states_first = 0;         // its slot has the states of lengths states_first to n
    std::optional<SequenceImage> parked;

    const PageList& operator[](PageClass of) const { return lists[size_t(of)]; }
    PageList& operator[](PageClass of) { return lists[size_t(of)]; }
  };
  struct Retained {
    CheckpointId checkpoint;
    uint64_t last_use;
  };

  const Sequence& sequence(SeqId seq) const;
  Sequence& sequence(SeqId seq) { return const_cast<Sequence&>(std::as_const(*this).sequence(seq)); }
  const Sequence& checkpoint_of(CheckpointId id) const;
  const KvLayout& side(size_t i) const { return memory_->layout(int(i / 2), kKvSides[i % 2]); }
  size_t n_sides() const { return 2 * size_t(memory_->n_layers()); }
  std::span<const PageClass> classes() const { return memory_->page_classes(); }
  SequencePlace place(const Sequence& s) const {
    const PageList& sliding = s[PageClass::sliding];
    return {s.slot, s.n, s[PageClass::full].pages, s.ring_first, sliding.pages, sliding.first};
  }
  /// Calls visit(layout) for the sides of a class.
  template <class Visit>
  void for_each_side(PageClass of, const Visit& visit) const;
  /// Pages for positions [0, n), given back or not; the first position that sliding layers need at n positions.
  int list_length(PageClass of, int n) const;
  int first_needed(int n) const;
  /// The first position that they keep at n positions: of a page.
  int first_kept(int n) const { return first_needed(std::max(0, n - kSpareRows)) / kPagePositions * kPagePositions; }
  /// Null when going back to n positions is exact, else why not.
  std::optional<std::string> inexact_at(const Sequence& s, int n) const;
  /// Where a window came to consist of sinks alone, its ring goes on from here, whatever it held of later positions.
  void begin_rings(Sequence& s);
  /// Null when sliding layers hold what n positions need.
  std::optional<std::string> given_back_at(const Sequence& s, int n) const;
  Result<Sequence> copy_of(const Sequence& from, int n, Holder holder);
  Result<int> take_slot(Holder holder);
  int32_t take_page(PageClass of);
  void drop_page(PageClass of, int32_t& page);
  /// Keeps the lists' pages of positions [0, n).
  void drop_pages(Sequence& s, int n);
  bool has_history(int slot) const { return memory_->states_kept(slot) > 1; }
  void give_back(Sequence& s);
  void drop(Sequence& s);
  Status put(Sequence& s, const SequenceImage& image);
  int coded_first(const SequenceImage& image) const;  // of sliding layers
  PageReport report(PageClass of) const;
  /// Takes the sequence through host memory: change(memory, place) rewrites rows there and sets n and ring_first of s.
  Status rewrite(Sequence& s, const std::function<void(HostKvMemory& memory, const SequencePlace& place)>& change);
  static int keep(std::vector<Sequence>& list, Sequence s);

  int n_ctx_ = 0;
  std::unique_ptr<KvMemory> memory_;
  HostTwin host_twin_;
  bool calibrates_ = false, has_states_ = false, slides_ = false;
  std::vector<Sequence> sequences_, checkpoints_;
  std::vector<int32_t> free_pages_[kPageClasses];
  std::vector<int> holders_[kPageClasses];  // [n_pages]
  std::vector<int> free_slots_[2];          // without a history, with one
  std::map<uint64_t, Retained> retained_;
  uint64_t uses_ = 0;
};

}  // namespace ridge
