#include "engine/pool.h"

#include <algorithm>
#include <climits>
#include <memory>
#include <numeric>
#include <utility>

#include "op/cache/rewrite.h"

namespace ridge {
namespace {

/// First position that a side's ring holds when its sequence has come to n positions.
int ring_first_at(const KvLayout& layout, int n, int before) {
  if (layout.tiles.ring_tiles == 0) return 0;
  // Whole tiles: the place of the newest tile holds nothing else.
  const int n_tiles = (n + kTilePositions - 1) / kTilePositions;
  if (layout.tiles.retention.window > 0) return std::max(before, (n_tiles - layout.tiles.ring_tiles) * kTilePositions);
  return n >= kCalibration ? n : before;  // without a window the ring serves calibration only
}

}  // namespace

SequencePool::SequencePool(std::unique_ptr<KvMemory> memory, HostTwin host_twin)
    : memory_(std::move(memory)), host_twin_(std::move(host_twin)) {
  for (size_t i = 0; i < n_sides(); ++i) {
    calibrates_ = calibrates_ || side(i).calibrates();
    has_states_ = has_states_ || side(i).state_values > 0 || side(i).state_elsewhere;
    slides_ = slides_ || page_class_of(side(i).tiles) == PageClass::sliding;
  }
  for (const PageClass of : classes()) {
    holders_[size_t(of)].assign(size_t(memory_->n_pages(of)), 0);
    for (int page = memory_->n_pages(of); page-- > 0;) free_pages_[size_t(of)].push_back(page);
  }
  for (int slot = memory_->n_slots(); slot-- > 0;) free_slots_[has_history(slot)].push_back(slot);
}

const SequencePool::Sequence& SequencePool::sequence(SeqId seq) const {
  const auto i = size_t(seq);
  RIDGE_CHECK(i < sequences_.size() && sequences_[i].open, "sequence {} is not open", int(seq));
  return sequences_[i];
}

const SequencePool::Sequence& SequencePool::checkpoint_of(CheckpointId id) const {
  const auto i = size_t(id);
  RIDGE_CHECK(i < checkpoints_.size() && checkpoints_[i].open, "checkpoint {} was released", int(id));
  return checkpoints_[i];
}

int SequencePool::keep(std::vector<Sequence>& list, Sequence s) {
  s.open = true;
  const auto free = std::ranges::find_if(list, [](const Sequence& other) { return !other.open; });
  const auto at = free - list.begin();
  if (free == list.end()) list.push_back(std::move(s));
  else *free = std::move(s);
  return int(at);
}

Result<int> SequencePool::take_slot(Holder holder) {
  const SlotNumbers slots = memory_->slots();
  const bool only_plain = holder == Holder::checkpoint && slots.n > slots.n_histories;
  std::vector<int>& free = free_slots_[!only_plain && !free_slots_[1].empty()];
  if (free.empty())
    return fail(ErrorKind::usage, "all {} slots of the pool are taken (close a sequence or release a checkpoint)",
                only_plain ? slots.n - slots.n_histories : slots.n);
  const int slot = free.back();
  free.pop_back();
  return slot;
}

int32_t SequencePool::take_page(PageClass of) {
  std::vector<int32_t>& free = free_pages_[size_t(of)];
  RIDGE_CHECK(!free.empty(), "no page is free");
  const int32_t page = free.back();
  free.pop_back();
  holders_[size_t(of)][size_t(page)] = 1;
  memory_->clear_counts(of, page);
  return page;
}

void SequencePool::drop_page(PageClass of, int32_t& page) {
  if (page != kNoPage && --holders_[size_t(of)][size_t(page)] == 0) free_pages_[size_t(of)].push_back(page);
  page = kNoPage;
}

void SequencePool::drop_pages(Sequence& s, int n) {
  for (const PageClass of : classes()) {
    PageList& list = s[of];
    for (const auto keep = size_t(list_length(of, n)); list.pages.size() > keep; list.pages.pop_back())
      drop_page(of, list.pages.back());
    if (list.pages.empty()) list.first = 0;
  }
}

/// Gives back pages that no query can see any more, even after the sequence goes back by kSpareRows.
void SequencePool::give_back(Sequence& s) {
  PageList& list = s[PageClass::sliding];
  const int first = first_kept(s.n);
  if (first <= list.first) return;
  for (int i = list.first / kPagePositions; i < first / kPagePositions; ++i)
    drop_page(PageClass::sliding, list.pages[size_t(i)]);
  list.first = first;
}

template <class Visit>
void SequencePool::for_each_side(PageClass of, const Visit& visit) const {
  for (int layer = 0; layer < memory_->n_layers(); ++layer)
    if (memory_->page_class(layer) == of)
      for (const KvSide side : kKvSides) visit(memory_->layout(layer, side));
}

int SequencePool::list_length(PageClass of, int n) const {
  int most = 0;
  for_each_side(of, [&](const KvLayout& l) { most = std::max(most, ridge::pages_for(l.tiles.retention, n)); });
  return most;
}

int SequencePool::first_needed(int n) const {
  int first = n;
  for_each_side(PageClass::sliding,
                [&](const KvLayout& l) { first = std::min(first, ridge::first_needed(l.tiles, n)); });
  return first;
}

void SequencePool::drop(Sequence& s) {
  drop_pages(s, 0);
  if (s.slot >= 0) free_slots_[has_history(s.slot)].push_back(s.slot);
  s = {};
}

Result<SeqId> SequencePool::open() {
  Sequence s;
  RIDGE_TRY(s.slot, take_slot(Holder::sequence));
  s.ring_first.assign(n_sides(), 0);
  memory_->clear_slot(s.slot);
  return SeqId(keep(sequences_, std::move(s)));
}

Result<SequencePool::Sequence> SequencePool::copy_of(const Sequence& from, int n, Holder holder) {
  Sequence s;
  RIDGE_TRY(s.slot, take_slot(holder));
  s.n = s.states_first = n;
  s.calibrated = from.calibrated;
  s.ring_first = from.ring_first;
  memory_->copy_slot(from.slot, s.slot, n);
  for (const PageClass of : classes()) {
    PageList& list = s[of] = from[of];
    list.pages.resize(std::min(size_t(list_length(of, n)), list.pages.size()));
    for (const int32_t page : list.held()) ++holders_[size_t(of)][size_t(page)];
    memory_->set_pages(of, s.slot, 0, list.pages);
  }
  return s;
}

Result<SeqId> SequencePool::open(CheckpointId checkpoint) {
  const Sequence& from = checkpoint_of(checkpoint);
  RIDGE_TRY(Sequence s, copy_of(from, from.n, Holder::sequence));
  return SeqId(keep(sequences_, std::move(s)));
}

void SequencePool::close(SeqId seq) { drop(sequence(seq)); }

void SequencePool::reset(SeqId seq) {
  Sequence& s = sequence(seq);
  RIDGE_CHECK(!s.parked, "sequence {} is parked", int(seq));
  drop_pages(s, 0);
  s.n = s.states_first = 0;
  s.calibrated = false;
  s.ring_first.assign(n_sides(), 0);
  memory_->clear_slot(s.slot);
}

std::optional<std::string> SequencePool::inexact_at(const Sequence& s, int n) const {
  if (n == s.n) return {};
  if (has_states_ && n < s.states_first)
    return fmt::format("the model's states are those of {}{} positions (open a checkpoint, or begin again at 0)",
                       s.states_first < s.n ? fmt::format("{} to ", s.states_first) : "", s.n);
  if (s.calibrated && n < kCalibration)
    return fmt::format("the centre was set at {} positions (open a checkpoint of {} positions instead)", kCalibration,
                       n);
  if (auto given_back = given_back_at(s, n)) return given_back;
  for (size_t i = 0; i < n_sides(); ++i) {
    const KvTiles& t = side(i).tiles;
    const int first = std::max(t.retention.coded_end(n), t.n_sinks), last = std::min(n, s.ring_first[i]);
    if (t.ring_tiles > 0 && first < last)
      return fmt::format(
          "the exact rows of positions {} to {} are gone (at most {} positions back are exact; open a checkpoint, or "
          "allow coded rows in the window)",
          first, last - 1, kSpareRows);
  }
  return {};
}

void SequencePool::begin_rings(Sequence& s) {
  for (size_t i = 0; i < n_sides(); ++i) {
    const KvTiles& t = side(i).tiles;
    const int coded_end = t.retention.coded_end(s.n);
    if (t.ring_tiles > 0 && coded_end < s.n) s.ring_first[i] = std::min(s.ring_first[i], coded_end);
  }
}

std::optional<std::string> SequencePool::given_back_at(const Sequence& s, int n) const {
  const int first = s[PageClass::sliding].first;
  if (first == 0 || first_needed(n) >= first) return {};
  return fmt::format(
      "sliding layers gave back the rows of positions {} to {} (at most {} positions back are held; open a checkpoint, "
      "or begin again at 0)",
      first_needed(n), first - 1, kSpareRows);
}

Result<SeqId> SequencePool::fork(SeqId seq, int n) {
  const Sequence& from = sequence(seq);
  RIDGE_CHECK(!from.parked && n >= 0 && n <= from.n, "fork of sequence {} at {} of {}", int(seq), n, from.n);
  if (n == 0) return open();
  if (const auto why = inexact_at(from, n))
    return fail(ErrorKind::usage, "cannot fork at {} of {}: {}", n, from.n, *why);
  RIDGE_TRY(Sequence s, copy_of(from, n, Holder::sequence));
  begin_rings(s);
  return SeqId(keep(sequences_, std::move(s)));
}

Result<TrimReport> SequencePool::trim(SeqId seq, int n, TrimMode mode) {
  Sequence& s = sequence(seq);
  RIDGE_CHECK(!s.parked && n >= 0 && n <= s.n, "trim of sequence {} to {} of {}", int(seq), n, s.n);
  TrimReport report;
  if (n == 0) {
    reset(seq);
    return report;
  }
  if (const auto why = inexact_at(s, n)) {
    if (mode == TrimMode::exact || has_states_ || (s.calibrated && n < kCalibration) || given_back_at(s, n))
      return fail(ErrorKind::usage, "cannot go back to {} of {} positions: {}", n, s.n, *why);
    report.exact = false;
    RIDGE_TRY_STATUS(rewrite(s, [&](HostKvMemory& memory, const SequencePlace& place) {
      report.coded_positions = read_window_as_coded(memory, place, n, s.ring_first);
      s.n = n;
    }));
  }
  s.n = n;
  begin_rings(s);
  drop_pages(s, n);
  return report;
}

Result<TrimReport> SequencePool::shift(SeqId seq, int first, int n_removed, const TurnRow& turn) {
  Sequence& s = sequence(seq);
  RIDGE_CHECK(!s.parked && first >= 0 && n_removed >= 0 && first + n_removed <= s.n, "{} positions after {} of {}",
              n_removed, first, s.n);
  if (n_removed == 0) return TrimReport{};
  if (n_removed == s.n) {
    reset(seq);
    return TrimReport{};
  }
  if (has_states_)
    return fail(ErrorKind::usage, "cannot drop {} of {} positions: the model's states hold all of them (begin again)",
                n_removed, s.n);
  // Sliding layers hold rows from `held` on; those in front of `first` stay where they are.
  const int n = s.n - n_removed, held = s[PageClass::sliding].first;
  const int held_after = held <= first ? held : std::max(first, held - n_removed);
  if (held_after > 0 && first_needed(n) < held_after)
    return fail(
        ErrorKind::usage,
        "cannot drop {} of {} positions: at {} positions sliding layers see rows that they gave back (begin again)",
        n_removed, s.n, n);
  RIDGE_TRY_STATUS(rewrite(s, [&](HostKvMemory& memory, const SequencePlace& place) {
    move_rows_down(memory, place, first, n_removed, turn);
    s.n = n;
    s[PageClass::sliding].first = held_after;
    for (size_t i = 0; i < n_sides(); ++i)
      s.ring_first[i] = ring_first_at(side(i), s.n, side(i).tiles.retention.coded_end(s.n));
  }));
  return TrimReport{.exact = false};
}

Status SequencePool::rewrite(Sequence& s, const std::function<void(HostKvMemory&, const SequencePlace&)>& change) {
  // Pages in order, and one for each that was given back: rows may move there.
  size_t n_pages = 1;
  for (const PageClass of : classes()) n_pages = std::max(n_pages, s[of].pages.size());
  const std::unique_ptr<HostKvMemory> host = host_twin_(int(n_pages));
  std::vector<int32_t> pages(n_pages);
  std::iota(pages.begin(), pages.end(), 0);
  const int &n = s.n, &first = s[PageClass::sliding].first;
  const auto there = [&] { return SequencePlace{0, n, pages, s.ring_first, pages, first}; };
  host->write(memory_->read(place(s), s.calibrated), there());
  const int n_before = n, first_before = first;
  const std::vector<int> ring_first = s.ring_first;
  change(*host, there());
  const SequenceImage image = host->read(there(), s.calibrated);
  s.n = n_before, s[PageClass::sliding].first = first_before;
  const Status status = put(s, image);
  if (!status) s.ring_first = ring_first;
  return status;
}

/// Gives s the image's contents, on pages of its own.
Status SequencePool::put(Sequence& s, const SequenceImage& image) {
  PageNumbers needed(0);
  int first[kPageClasses] = {};
  for (const PageClass of : classes()) {
    if (of == PageClass::sliding) first[size_t(of)] = std::max(first_kept(image.n), coded_first(image));
    needed[of] = list_length(of, image.n) - first[size_t(of)] / kPagePositions;
    size_t own = 0;
    for (const int32_t page : s[of].held()) own += holders_[size_t(of)][size_t(page)] == 1;
    if (const size_t free = free_pages_[size_t(of)].size() + own; size_t(needed[of]) > free)
      return fail(ErrorKind::usage, "{} positions need {} pages, {} are free", image.n, needed[of], free);
  }
  drop_pages(s, 0);
  s.n = s.states_first = image.n;
  s.calibrated = image.calibrated;
  s.ring_first.clear();
  for (const SideImage& of_side : image.sides) s.ring_first.push_back(of_side.ring_first);
  for (const PageClass of : classes()) {
    PageList& list = s[of];
    list.first = first[size_t(of)];
    list.pages.assign(size_t(list.first / kPagePositions), kNoPage);
    for (int i = 0; i < needed[of]; ++i) list.pages.push_back(take_page(of));
  }
  memory_->clear_slot(s.slot);
  memory_->write(image, place(s));
  for (const PageClass of : classes()) memory_->set_pages(of, s.slot, 0, s[of].pages);
  return {};
}

int SequencePool::coded_first(const SequenceImage& image) const {
  int first = 0;
  for (const SideImage& side : image.sides) first = std::max(first, side.coded_first);
  return first;
}

Result<CheckpointId> SequencePool::checkpoint(SeqId seq) {
  const Sequence& from = sequence(seq);
  RIDGE_CHECK(!from.parked, "sequence {} is parked", int(seq));
  RIDGE_TRY(Sequence s, copy_of(from, from.n, Holder::checkpoint));
  return CheckpointId(keep(checkpoints_, std::move(s)));
}

void SequencePool::release(CheckpointId checkpoint) {
  drop(const_cast<Sequence&>(checkpoint_of(checkpoint)));
  std::erase_if(retained_, [&](const auto& entry) { return entry.second.checkpoint == checkpoint; });
}

void SequencePool::restore(SeqId seq, CheckpointId checkpoint) {
  Sequence& s = sequence(seq);
  const Sequence& from = checkpoint_of(checkpoint);
  RIDGE_CHECK(!s.parked, "sequence {} is parked", int(seq));
  for (const PageClass of : classes())
    for (const int32_t page : from[of].held()) ++holders_[size_t(of)][size_t(page)];
  drop_pages(s, 0);
  s.n = s.states_first = from.n;
  s.calibrated = from.calibrated;
  s.ring_first = from.ring_first;
  memory_->copy_slot(from.slot, s.slot, s.n);
  for (const PageClass of : classes()) {
    s[of] = from[of];
    memory_->set_pages(of, s.slot, 0, s[of].pages);
  }
}

void SequencePool::retain(CheckpointId checkpoint, uint64_t key) {
  checkpoint_of(checkpoint);
  if (const auto old = find(key); old && *old != checkpoint) release(*old);
  retained_[key] = {checkpoint, ++uses_};
}

std::optional<CheckpointId> SequencePool::find(uint64_t key) {
  const auto found = retained_.find(key);
  if (found == retained_.end()) return {};
  found->second.last_use = ++uses_;
  return found->second.checkpoint;
}

std::vector<uint64_t> SequencePool::retained() const {
  std::vector<uint64_t> keys;
  for (const auto& [key, retained] : retained_) keys.push_back(key);
  std::ranges::sort(keys, {}, [&](uint64_t key) { return retained_.at(key).last_use; });
  return keys;
}

bool SequencePool::evict() {
  if (retained_.empty()) return false;
  const auto last_use = [](const auto& entry) { return entry.second.last_use; };
  release(std::ranges::min_element(retained_, {}, last_use)->second.checkpoint);
  return true;
}

PageNumbers SequencePool::pages_for(int n) const {
  PageNumbers pages(0);
  for (const PageClass of : classes())
    pages[of] = list_length(of, n) - (of == PageClass::sliding ? first_kept(n) / kPagePositions : 0);
  return pages;
}

bool SequencePool::has_free(PageNumbers n) const {
  return std::ranges::all_of(classes(), [&](PageClass of) { return ssize(free_pages_[size_t(of)]) >= n[of]; });
}

Status SequencePool::reserve(SeqId seq, int n) {
  Sequence& s = sequence(seq);
  RIDGE_CHECK(!s.parked && n >= 0, "reserving {} positions of sequence {}", n, int(seq));
  const int after = s.n + n;
  std::vector<size_t> shared[kPageClasses];
  for (const PageClass of : classes()) {
    const PageList& list = s[of];
    // Pages that this step codes into: from the first position that some side codes.
    int first_coded = INT_MAX;
    for_each_side(of, [&](const KvLayout& l) {
      const KvRetention& r = l.tiles.retention;
      if (r.coded_end(after) > r.coded_end(s.n)) first_coded = std::min(first_coded, r.coded_end(s.n));
    });
    first_coded = std::max(first_coded, list.first);  // further behind in a sequence that fill() makes
    for (size_t i = size_t(first_coded / kPagePositions); i < list.pages.size(); ++i)
      if (holders_[size_t(of)][size_t(list.pages[i])] > 1) shared[size_t(of)].push_back(i);
    const size_t missing =
        size_t(std::max(0, list_length(of, after) - int(list.pages.size()))) + shared[size_t(of)].size();
    if (const size_t free = free_pages_[size_t(of)].size(); missing > free)
      return fail(ErrorKind::usage, "{} more positions need {} pages, {} are free", n, missing, free);
  }
  for (const PageClass of : classes()) {
    PageList& list = s[of];
    for (const size_t i : shared[size_t(of)]) {
      const int32_t page = take_page(of);
      memory_->copy_page(of, list.pages[i], page);
      drop_page(of, list.pages[i]);
      list.pages[i] = page;
      memory_->set_pages(of, s.slot, int(i), {&list.pages[i], 1});
    }
    const size_t before = list.pages.size();
    for (const auto needed = size_t(list_length(of, after)); list.pages.size() < needed;)
      list.pages.push_back(take_page(of));
    if (list.pages.size() > before)
      memory_->set_pages(of, s.slot, int(before), std::span<const int32_t>(list.pages).subspan(before));
  }
  return {};
}

void SequencePool::advance(SeqId seq, int n) {
  Sequence& s = sequence(seq);
  s.n += n;
  const int kept = memory_->states_kept(s.slot);
  s.states_first = n <= kept ? std::max(s.states_first, s.n - kept + 1) : s.n;
  for (const PageClass of : classes())
    RIDGE_CHECK(int(s[of].pages.size()) >= list_length(of, s.n), "{} positions on {} pages", s.n, s[of].pages.size());
  s.calibrated = s.calibrated || (calibrates_ && s.n >= kCalibration);
  for (size_t i = 0; i < n_sides(); ++i) s.ring_first[i] = ring_first_at(side(i), s.n, s.ring_first[i]);
  if (slides_) give_back(s);
}

void SequencePool::advance(SeqId seq, int n, int n_kept) {
  RIDGE_CHECK(n_kept >= 0 && n_kept <= n && n - n_kept <= kSpareRows && !calibrates(seq), "{} of {} tokens stay",
              n_kept, n);
  advance(seq, n);
  Sequence& s = sequence(seq);
  s.n -= n - n_kept;
  RIDGE_CHECK(!has_states_ || s.n >= s.states_first, "{} of {} tokens stay, states begin at {}", n_kept, n,
              s.states_first);
}

SequenceImage SequencePool::save(SeqId seq) {
  const Sequence& s = sequence(seq);
  return s.parked ? *s.parked : memory_->read(place(s), s.calibrated);
}

SequenceImage SequencePool::save(SeqId seq, std::span<const int> layers) {
  const Sequence& s = sequence(seq);
  RIDGE_CHECK(!s.parked, "sequence {} is parked", int(seq));
  SequenceImage image{.n = s.n, .calibrated = s.calibrated, .lost_from = memory_->lost_from(s.slot)};
  for (const int layer : layers)
    for (const KvSide side : kKvSides) image.sides.push_back(memory_->read_side(layer, side, place(s)));
  return image;
}

Status SequencePool::check_image(const SequenceImage& image) const {
  if (image.sides.size() != n_sides()) return bad_file("{} sides, this pool has {}", image.sides.size(), n_sides());
  const int first = coded_first(image);
  for (size_t i = 0; i < n_sides(); ++i) {
    const SideImage& of_side = image.sides[i];
    const auto check = [&]() -> Status {
      RIDGE_TRY_STATUS(check_side_state(side(i), image.n, of_side.ring_first, image.calibrated && side(i).calibrates(),
                                        of_side.coded_first));
      if (page_class_of(side(i).tiles) == PageClass::sliding && of_side.coded_first != first)
        return bad_file("coded_first is {}, another sliding layer has {}", of_side.coded_first, first);
      const int64_t expected = side_image_bytes(side(i), image.n, of_side.ring_first, of_side.coded_first);
      if (ssize(of_side.bytes) != expected) return bad_file("{} bytes, expected {}", of_side.bytes.size(), expected);
      return check_side_floats(side(i), of_side.bytes.data());
    };
    if (const Status status = check(); !status)
      return Failure{status.error().kind,
                     fmt::format("{} of layer {}: {}", i % 2 == 0 ? "K" : "V", i / 2, status.error().message)};
  }
  return {};
}

Result<SeqId> SequencePool::load(const SequenceImage& image) {
  RIDGE_TRY_STATUS(check_image(image));
  RIDGE_TRY(const SeqId seq, open());
  if (Status status = put(sequence(seq), image); !status) {
    close(seq);
    return status.error();
  }
  return seq;
}

void SequencePool::park(SeqId seq) {
  Sequence& s = sequence(seq);
  if (s.parked) return;
  SequenceImage image = memory_->read(place(s), s.calibrated);
  drop(s);
  s.open = true;
  s.n = image.n;
  s.parked = std::move(image);
}

Status SequencePool::unpark(SeqId seq) {
  Sequence& s = sequence(seq);
  if (!s.parked) return {};
  const PageNumbers needed = pages_for(s.parked->n);
  for (const PageClass of : classes())
    if (const size_t free = free_pages_[size_t(of)].size(); size_t(needed[of]) > free)
      return fail(ErrorKind::usage, "{} parked positions need {} pages, {} are free", s.parked->n, needed[of], free);
  RIDGE_TRY(s.slot, take_slot(Holder::sequence));
  const SequenceImage image = std::move(*s.parked);
  s.parked.reset();
  return put(s, image);
}

KvSpan SequencePool::span(SeqId seq, int first_row, int n_rows, PageClass of) const {
  const Sequence& s = sequence(seq);
  const std::vector<int32_t>& pages = s[of].pages;
  RIDGE_CHECK(!s.parked && int(pages.size()) >= list_length(of, s.n + n_rows),
              "{} rows of sequence {} are not reserved", n_rows, int(seq));
  return {.first_row = first_row, .n_rows = n_rows, .n_past = s.n, .slot = s.slot, .pages = pages.data()};
}

Status SequencePool::fill(SeqId seq, int n, uint64_t seed) {
  reset(seq);
  Sequence& s = sequence(seq);
  if (slides_) {
    PageList& list = s[PageClass::sliding];
    list.first = first_kept(n);
    list.pages.assign(size_t(list.first / kPagePositions), kNoPage);
  }
  if (Status status = reserve(seq, n); !status) {
    drop_pages(s, 0);
    return status;
  }
  advance(seq, n);
  memory_->fill(place(s), seed);
  return {};
}

SeqId SequencePool::follow(int slot, int n, bool calibrates,
                           const std::function<std::span<const int32_t>(PageClass)>& pages) {
  if (ssize(sequences_) <= slot) sequences_.resize(size_t(slot) + 1);
  Sequence& s = sequences_[size_t(slot)];
  s.open = true;
  s.slot = slot;
  s.n = n;
  s.calibrated = !calibrates;
  for (const PageClass of : classes()) {
    const std::span<const int32_t> held = pages(of);
    s[of].pages.assign(held.begin(), held.end());
  }
  return SeqId(slot);
}

PageReport SequencePool::report(PageClass of) const {
  const std::vector<int>& holders = holders_[size_t(of)];
  PageReport report{.n_pages = int(holders.size()),
                    .pages_free = int(free_pages_[size_t(of)].size()),
                    .page_bytes = memory_->page_bytes(of)};
  std::vector<bool> of_sequence(holders.size(), false);
  for (const Sequence& s : sequences_)
    for (const int32_t page : s[of].held()) of_sequence[size_t(page)] = true;
  for (size_t page = 0; page < holders.size(); ++page)
    if (of_sequence[page]) report.pages_shared += holders[page] > 1;
    else report.pages_of_checkpoints += holders[page] > 0;
  return report;
}

PoolReport SequencePool::report() const {
  PoolReport report;
  static_cast<PageReport&>(report) = this->report(classes()[0]);
  if (classes().size() > 1) report.sliding = this->report(PageClass::sliding);
  report.n_slots = memory_->n_slots();
  report.slots_free = int(free_slots_[0].size() + free_slots_[1].size());
  report.sequences = int(std::ranges::count_if(sequences_, &Sequence::open));
  report.checkpoints = int(std::ranges::count_if(checkpoints_, &Sequence::open));
  report.slot_bytes = memory_->slot_bytes();
  report.used_bytes = (report.n_pages - report.pages_free) * report.page_bytes +
                      (report.n_slots - report.slots_free) * report.slot_bytes +
                      (memory_->slots().n_histories - ssize(free_slots_[1])) * memory_->history_bytes();
  if (const auto& sliding = report.sliding)
    report.used_bytes += (sliding->n_pages - sliding->pages_free) * sliding->page_bytes;
  report.allocated_bytes = memory_->allocated_bytes();
  return report;
}

}  // namespace ridge
