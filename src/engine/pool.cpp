#include "engine/pool.h"

#include <algorithm>
#include <climits>
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
    : memory_(std::move(memory)), host_twin_(std::move(host_twin)), holders_(size_t(memory_->n_pages()), 0) {
  for (size_t i = 0; i < n_sides(); ++i) {
    calibrates_ = calibrates_ || side(i).calibrates();
    has_states_ = has_states_ || side(i).state_values > 0;
  }
  for (int page = memory_->n_pages(); page-- > 0;) free_pages_.push_back(page);
  for (int slot = memory_->n_slots(); slot-- > 0;) free_slots_.push_back(slot);
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

Result<int> SequencePool::take_slot() {
  if (free_slots_.empty())
    return fail(ErrorKind::usage, "all {} slots of the pool are taken (close a sequence or release a checkpoint)",
                memory_->n_slots());
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

int32_t SequencePool::take_page() {
  RIDGE_CHECK(!free_pages_.empty(), "no page is free");
  const int32_t page = free_pages_.back();
  free_pages_.pop_back();
  holders_[size_t(page)] = 1;
  memory_->clear_counts(page);
  return page;
}

void SequencePool::drop_pages(Sequence& s, size_t keep) {
  for (; s.pages.size() > keep; s.pages.pop_back())
    if (--holders_[size_t(s.pages.back())] == 0) free_pages_.push_back(s.pages.back());
}

void SequencePool::drop(Sequence& s) {
  drop_pages(s, 0);
  if (s.slot >= 0) free_slots_.push_back(s.slot);
  s = {};
}

Result<SeqId> SequencePool::open() {
  Sequence s;
  RIDGE_TRY(s.slot, take_slot());
  s.ring_first.assign(n_sides(), 0);
  memory_->clear_slot(s.slot);
  return SeqId(keep(sequences_, std::move(s)));
}

Result<SequencePool::Sequence> SequencePool::copy_of(const Sequence& from, int n) {
  Sequence s;
  RIDGE_TRY(s.slot, take_slot());
  s.n = n;
  s.calibrated = from.calibrated;
  s.ring_first = from.ring_first;
  s.pages.assign(from.pages.begin(), from.pages.begin() + std::min<ptrdiff_t>(pages_for(n), ssize(from.pages)));
  for (const int32_t page : s.pages) ++holders_[size_t(page)];
  memory_->copy_slot(from.slot, s.slot);
  memory_->set_pages(s.slot, 0, s.pages);
  return s;
}

Result<SeqId> SequencePool::open(CheckpointId checkpoint) {
  const Sequence& from = checkpoint_of(checkpoint);
  RIDGE_TRY(Sequence s, copy_of(from, from.n));
  return SeqId(keep(sequences_, std::move(s)));
}

void SequencePool::close(SeqId seq) { drop(sequence(seq)); }

void SequencePool::reset(SeqId seq) {
  Sequence& s = sequence(seq);
  RIDGE_CHECK(!s.parked, "sequence {} is parked", int(seq));
  drop_pages(s, 0);
  s.n = 0;
  s.calibrated = false;
  s.ring_first.assign(n_sides(), 0);
  memory_->clear_slot(s.slot);
}

std::optional<std::string> SequencePool::inexact_at(const Sequence& s, int n) const {
  if (n == s.n) return {};
  if (has_states_)
    return fmt::format("the model's states are those of {} positions (open a checkpoint, or begin again at 0)", s.n);
  if (s.calibrated && n < kCalibration)
    return fmt::format("the centre was set at {} positions (open a checkpoint of {} positions instead)", kCalibration,
                       n);
  for (size_t i = 0; i < n_sides(); ++i) {
    const KvTiles& t = side(i).tiles;
    if (t.ring_tiles > 0 && t.retention.coded_end(n) < n && t.retention.coded_end(n) < s.ring_first[i])
      return fmt::format(
          "the exact rows of positions {} to {} are gone (at most {} positions back are exact; open a checkpoint, or "
          "allow coded rows in the window)",
          t.retention.coded_end(n), s.ring_first[i] - 1, kSpareRows);
  }
  return {};
}

Result<SeqId> SequencePool::fork(SeqId seq, int n) {
  const Sequence& from = sequence(seq);
  RIDGE_CHECK(!from.parked && n >= 0 && n <= from.n, "fork of sequence {} at {} of {}", int(seq), n, from.n);
  if (n == 0) return open();
  if (const auto why = inexact_at(from, n))
    return fail(ErrorKind::usage, "cannot fork at {} of {}: {}", n, from.n, *why);
  RIDGE_TRY(Sequence s, copy_of(from, n));
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
    if (mode == TrimMode::exact || has_states_ || (s.calibrated && n < kCalibration))
      return fail(ErrorKind::usage, "cannot go back to {} of {} positions: {}", n, s.n, *why);
    report.exact = false;
    RIDGE_TRY_STATUS(rewrite(s, [&](HostKvMemory& memory, const SequencePlace& place) {
      report.coded_positions = read_window_as_coded(memory, place, n, s.ring_first);
      s.n = n;
    }));
  }
  s.n = n;
  drop_pages(s, size_t(pages_for(n)));
  return report;
}

Result<TrimReport> SequencePool::shift(SeqId seq, int first, int n_removed,
                                       const std::function<void(int layer, float* row)>& turn) {
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
  RIDGE_TRY_STATUS(rewrite(s, [&](HostKvMemory& memory, const SequencePlace& place) {
    move_rows_down(memory, place, first, n_removed, turn);
    s.n -= n_removed;
    for (size_t i = 0; i < n_sides(); ++i)
      s.ring_first[i] = ring_first_at(side(i), s.n, side(i).tiles.retention.coded_end(s.n));
  }));
  return TrimReport{.exact = false};
}

Status SequencePool::rewrite(Sequence& s, const std::function<void(HostKvMemory&, const SequencePlace&)>& change) {
  const std::unique_ptr<HostKvMemory> host = host_twin_(std::max<int>(1, int(s.pages.size())));
  std::vector<int32_t> pages(s.pages.size());
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = int32_t(i);
  host->write(memory_->read(place(s), s.calibrated), {0, s.n, pages, s.ring_first});
  const int n = s.n;
  const std::vector<int> ring_first = s.ring_first;
  change(*host, {0, s.n, pages, s.ring_first});
  const Status status = put(s, host->read({0, s.n, pages, s.ring_first}, s.calibrated));
  if (!status) s.n = n, s.ring_first = ring_first;
  return status;
}

/// Gives s the image's contents, on pages of its own.
Status SequencePool::put(Sequence& s, const SequenceImage& image) {
  const size_t needed = size_t(pages_for(image.n));
  size_t own = 0;
  for (const int32_t page : s.pages) own += holders_[size_t(page)] == 1;
  if (needed > free_pages_.size() + own)
    return fail(ErrorKind::usage, "{} positions need {} pages, {} are free", image.n, needed, free_pages_.size() + own);
  drop_pages(s, 0);
  while (s.pages.size() < needed) s.pages.push_back(take_page());
  s.n = image.n;
  s.calibrated = image.calibrated;
  s.ring_first.clear();
  for (const SideImage& of_side : image.sides) s.ring_first.push_back(of_side.ring_first);
  memory_->clear_slot(s.slot);
  memory_->write(image, place(s));
  memory_->set_pages(s.slot, 0, s.pages);
  return {};
}

Result<CheckpointId> SequencePool::checkpoint(SeqId seq) {
  const Sequence& from = sequence(seq);
  RIDGE_CHECK(!from.parked, "sequence {} is parked", int(seq));
  RIDGE_TRY(Sequence s, copy_of(from, from.n));
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
  for (const int32_t page : from.pages) ++holders_[size_t(page)];
  drop_pages(s, 0);
  s.n = from.n;
  s.calibrated = from.calibrated;
  s.pages = from.pages;
  s.ring_first = from.ring_first;
  memory_->copy_slot(from.slot, s.slot);
  memory_->set_pages(s.slot, 0, s.pages);
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

int SequencePool::pages_for(int n) const {
  int most = 0;
  for (size_t i = 0; i < n_sides(); ++i) most = std::max(most, ridge::pages_for(side(i).tiles.retention, n));
  return most;
}

Status SequencePool::reserve(SeqId seq, int n) {
  Sequence& s = sequence(seq);
  RIDGE_CHECK(!s.parked && n >= 0, "reserving {} positions of sequence {}", n, int(seq));
  const int after = s.n + n, needed = pages_for(after);
  // Pages that this step codes into: from the first position that some side codes.
  int first_coded = INT_MAX;
  for (size_t i = 0; i < n_sides(); ++i) {
    const KvRetention& r = side(i).tiles.retention;
    if (r.coded_end(after) > r.coded_end(s.n)) first_coded = std::min(first_coded, r.coded_end(s.n));
  }
  std::vector<size_t> shared;
  for (size_t i = size_t(first_coded / kPagePositions); i < s.pages.size(); ++i)
    if (holders_[size_t(s.pages[i])] > 1) shared.push_back(i);
  const size_t missing = size_t(std::max(0, needed - int(s.pages.size()))) + shared.size();
  if (missing > free_pages_.size())
    return fail(ErrorKind::usage, "{} more positions need {} pages, {} are free", n, missing, free_pages_.size());
  for (const size_t i : shared) {
    const int32_t page = take_page();
    memory_->copy_page(s.pages[i], page);
    --holders_[size_t(s.pages[i])];
    s.pages[i] = page;
    memory_->set_pages(s.slot, int(i), {&s.pages[i], 1});
  }
  const size_t before = s.pages.size();
  while (int(s.pages.size()) < needed) s.pages.push_back(take_page());
  if (s.pages.size() > before)
    memory_->set_pages(s.slot, int(before), std::span<const int32_t>(s.pages).subspan(before));
  return {};
}

void SequencePool::advance(SeqId seq, int n) {
  Sequence& s = sequence(seq);
  s.n += n;
  RIDGE_CHECK(int(s.pages.size()) >= pages_for(s.n), "{} positions on {} pages", s.n, s.pages.size());
  s.calibrated = s.calibrated || (calibrates_ && s.n >= kCalibration);
  for (size_t i = 0; i < n_sides(); ++i) s.ring_first[i] = ring_first_at(side(i), s.n, s.ring_first[i]);
}

void SequencePool::advance(SeqId seq, int n, int n_kept) {
  RIDGE_CHECK(n_kept >= 0 && n_kept <= n && n - n_kept <= kSpareRows && !calibrates(seq) && !has_states_,
              "{} of {} tokens stay", n_kept, n);
  advance(seq, n);
  sequence(seq).n -= n - n_kept;
}

SequenceImage SequencePool::save(SeqId seq) {
  const Sequence& s = sequence(seq);
  return s.parked ? *s.parked : memory_->read(place(s), s.calibrated);
}

SequenceImage SequencePool::save(SeqId seq, std::span<const int> layers) {
  const Sequence& s = sequence(seq);
  RIDGE_CHECK(!s.parked, "sequence {} is parked", int(seq));
  SequenceImage image{.n = s.n, .calibrated = s.calibrated};
  for (const int layer : layers)
    for (const bool is_k : {true, false}) image.sides.push_back(memory_->read_side(layer, is_k, place(s)));
  return image;
}

Status SequencePool::check_image(const SequenceImage& image) const {
  if (image.sides.size() != n_sides()) return bad_file("{} sides, this pool has {}", image.sides.size(), n_sides());
  for (size_t i = 0; i < n_sides(); ++i) {
    const SideImage& of_side = image.sides[i];
    const auto check = [&]() -> Status {
      RIDGE_TRY_STATUS(
          check_side_state(side(i), image.n, of_side.ring_first, image.calibrated && side(i).calibrates()));
      const int64_t expected = side_image_bytes(side(i), image.n, of_side.ring_first);
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
  const size_t needed = size_t(pages_for(s.parked->n));
  if (needed > free_pages_.size())
    return fail(ErrorKind::usage, "{} parked positions need {} pages, {} are free", s.parked->n, needed,
                free_pages_.size());
  RIDGE_TRY(s.slot, take_slot());
  const SequenceImage image = std::move(*s.parked);
  s.parked.reset();
  return put(s, image);
}

KvSpan SequencePool::span(SeqId seq, int first_row, int n_rows) const {
  const Sequence& s = sequence(seq);
  RIDGE_CHECK(!s.parked && int(s.pages.size()) >= pages_for(s.n + n_rows), "{} rows of sequence {} are not reserved",
              n_rows, int(seq));
  return {.first_row = first_row, .n_rows = n_rows, .n_past = s.n, .slot = s.slot, .pages = s.pages.data()};
}

Status SequencePool::fill(SeqId seq, int n, uint64_t seed) {
  reset(seq);
  RIDGE_TRY_STATUS(reserve(seq, n));
  advance(seq, n);
  memory_->fill(place(sequence(seq)), seed);
  return {};
}

PoolReport SequencePool::report() const {
  PoolReport report{.n_pages = memory_->n_pages(),
                    .pages_free = int(free_pages_.size()),
                    .n_slots = memory_->n_slots(),
                    .slots_free = int(free_slots_.size()),
                    .sequences = int(std::ranges::count_if(sequences_, &Sequence::open)),
                    .checkpoints = int(std::ranges::count_if(checkpoints_, &Sequence::open)),
                    .page_bytes = memory_->page_bytes(),
                    .slot_bytes = memory_->slot_bytes(),
                    .allocated_bytes = memory_->allocated_bytes()};
  std::vector<bool> of_sequence(holders_.size(), false);
  for (const Sequence& s : sequences_)
    for (const int32_t page : s.pages) of_sequence[size_t(page)] = true;
  for (size_t page = 0; page < holders_.size(); ++page)
    if (of_sequence[page]) report.pages_shared += holders_[page] > 1;
    else report.pages_of_checkpoints += holders_[page] > 0;
  report.used_bytes = (report.n_pages - report.pages_free) * report.page_bytes +
                      (report.n_slots - report.slots_free) * report.slot_bytes;
  return report;
}

}  // namespace ridge
