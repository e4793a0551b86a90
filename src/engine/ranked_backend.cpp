#include "engine/ranked_backend.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace ridge {

RankThreads::RankThreads(int n_ranks) {
  for (int rank = 1; rank < n_ranks; ++rank) threads_.emplace_back([this, rank] { serve(rank); });
}

RankThreads::~RankThreads() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::work(int rank) {
  std::exception_ptr error;
  try {
    (*body_)(rank);
  } catch (...) {
    error = std::current_exception();
  }
  const std::scoped_lock lock(mutex_);
  if (!error_) error_ = error;
  --n_running_;
  changed_.notify_all();
}

void RankThreads::serve(int rank) {
  for (uint64_t done = 0;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || region_ != done; });
      if (stop_) return;
      done = region_;
    }
    work(rank);
  }
}

void RankThreads::for_all(const std::function<void(int)>& body) {
  {
    const std::scoped_lock lock(mutex_);
    body_ = &body;
    n_running_ = n_ranks();
    n_met_ = 0;
    error_ = nullptr;
    ++region_;
  }
  changed_.notify_all();
  work(0);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_running_ == 0; });
  }
  if (error_) std::rethrow_exception(error_);
}

void RankThreads::meet() {
  std::unique_lock lock(mutex_);
  const uint64_t meeting = meeting_;
  if (++n_met_ == n_ranks()) {
    n_met_ = 0;
    ++meeting_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return error_ || meeting_ != meeting; });
  if (meeting_ == meeting) throw Error(ErrorKind::failure, "another rank of this model failed in the same step");
}

namespace {

/// Queues a step on every rank; the others' kernels do not wait for one that fails.
void step_all(const RankedParts& parts, const std::function<void(size_t)>& queue) {
  parts.threads->for_all([&](int rank) {
    try {
      if (parts.step) parts.step([&] { queue(size_t(rank)); });
      else queue(size_t(rank));
    } catch (...) {
      parts.end();
      throw;
    }
  });
}

/// The caches of all ranks as one: a rank has its own kv heads.
class RankedMemory final : public KvMemory {
 public:
  RankedMemory(const RankedParts& parts, std::span<const KvLayerConfig> layers, std::span<const KvMetricView> metrics,
               PageNumbers n_pages, SlotNumbers slots)
      : KvMemory(layers, parts.on_device, n_pages, slots), parts_(parts), ranks_(parts.ranks.size()) {
    RIDGE_CHECK(parts.sides[0].size() == 2 * layers.size(), "a cache of {} layers, ranks know of {}", layers.size(),
                parts.sides[0].size() / 2);
    parts.threads->for_all([&](int rank) {
      const std::vector<SidePart>& sides = parts.sides[size_t(rank)];
      ranks_[size_t(rank)] = parts.ranks[size_t(rank)]->open_memory(
          layers_of_part(layers, sides), metrics_of_part(layers, metrics, sides), n_pages, slots);
    });
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto same = [](const SidePart& a, const SidePart& b) {
        return a.heads.first == b.heads.first && a.heads.count == b.heads.count;
      };
      const auto& sides = parts.sides[rank];
      const auto& before = parts.sides[rank == 0 ? 0 : rank - 1];
      if (rank == 0 || !std::ranges::equal(before, sides, same)) different_.push_back(rank);
      bool shares = false;
      for (size_t i = 0; i < sides.size(); ++i)
        shares = shares || (sides[i].heads.count > 0 && same(before[i], sides[i]));
      seeds_.push_back(rank == 0 ? 0 : seeds_.back() + !shares);
    }
  }

  KvMemory& rank(int r) { return *ranks_[size_t(r)]; }

  using KvMemory::allocated_bytes;
  int64_t allocated_bytes(int layer, KvSide side) const override {
    int64_t sum = 0;
    for (const auto& memory : ranks_) sum += memory->allocated_bytes(layer, side);
    return sum;
  }
  void clear_slot(int slot) override {
    for_all([&](KvMemory& m) { m.clear_slot(slot); });
  }
  void copy_slot(int from, int to, int n) override {
    for_all([&](KvMemory& m) { m.copy_slot(from, to, n); });
  }
  using KvMemory::clear_counts;
  using KvMemory::copy_page;
  using KvMemory::set_pages;
  void copy_page(PageClass of, int from, int to) override {
    for_all([&](KvMemory& m) { m.copy_page(of, from, to); });
  }
  void clear_counts(PageClass of, int page) override {
    for_all([&](KvMemory& m) { m.clear_counts(of, page); });
  }
  void set_pages(PageClass of, int slot, int first, std::span<const int32_t> pages) override {
    for_all([&](KvMemory& m) { m.set_pages(of, slot, first, pages); });
  }

  SideImage read_side(int layer, KvSide side, const SequencePlace& place) override {
    std::vector<SideImage> parts(ranks_.size());
    for_all([&](KvMemory& m, size_t rank) { parts[rank] = m.read_side(layer, side, place); });
    parts_.check();
    std::vector<SidePart> of_ranks;
    for (const auto& sides : parts_.sides) of_ranks.push_back(sides[side_index(layer, side)]);
    return join_sides(layout(layer, side), place.n, parts, of_ranks);
  }
  void write(const SequenceImage& image, const SequencePlace& place) override {
    for_all([&](KvMemory& m, size_t rank) { m.write(cut_image(layouts_, image, parts_.sides[rank]), place); });
  }
  void fill(const SequencePlace& place, uint64_t seed) override {
    for_all([&](KvMemory& m, size_t rank) { m.fill(place, seed + seeds_[rank]); });
  }

  PageCounts counts(int layer, KvSide side, int page) override {
    PageCounts sum;
    for_all_once([&](KvMemory& m) { add(sum, m.counts(layer, side, page)); });
    return sum;
  }
  std::vector<PageCounts> counts(int layer, KvSide side) override {
    std::vector<PageCounts> sums(size_t(n_pages(page_class(layer))));
    for_all_once([&](KvMemory& m) {
      const std::vector<PageCounts> of_rank = m.counts(layer, side);
      for (size_t i = 0; i < sums.size(); ++i) add(sums[i], of_rank[i]);
    });
    return sums;
  }
  int64_t saturated(int layer, KvSide side) override {
    int64_t sum = 0;
    for_all_once([&](KvMemory& m) { sum += m.saturated(layer, side); });
    return sum;
  }

 private:
  static void add(PageCounts& sum, const PageCounts& more) {
    sum.norm2 += more.norm2;
    sum.error2 += more.error2;
  }
  void for_all(const std::function<void(KvMemory&, size_t)>& body) {
    parts_.threads->for_all([&](int rank) {
      parts_.ranks[size_t(rank)]->use();
      body(*ranks_[size_t(rank)], size_t(rank));
    });
  }
  void for_all(const std::function<void(KvMemory&)>& body) {
    for_all([&](KvMemory& m, size_t) { body(m); });
  }
  /// One after another; of ranks with the same heads the first.
  void for_all_once(const std::function<void(KvMemory&)>& body) {
    for (const size_t rank : different_) {
      parts_.ranks[rank]->use();
      body(*ranks_[rank]);
    }
    parts_.ranks[0]->use();
  }

  const RankedParts& parts_;
  std::vector<std::unique_ptr<KvMemory>> ranks_;
  std::vector<size_t> different_;  // the first of each group of ranks that have the same heads of all layers
  std::vector<uint64_t> seeds_;    // of random rows: equal where ranks share heads of some layer
};

/// Every rank has the logits of all; those of rank 0 are handed on.
class RankedOutputs final : public Outputs {
 public:
  explicit RankedOutputs(const RankedParts& parts) : parts_(parts) {
    for (const auto& rank : parts.ranks) {
      rank->use();
      ranks_.push_back(rank->make_outputs());
    }
    parts.ranks[0]->use();
  }
  Outputs& rank(int r) { return *ranks_[size_t(r)]; }

  int64_t n_rows() const override { return ranks_[0]->n_rows(); }
  View2<const float> logits() override { return checked(ranks_[0]->logits()); }
  View2<const float> hidden() override { return checked(ranks_[0]->hidden()); }
  void score(Outputs* base, std::span<const int32_t> targets) override {
    ranks_[0]->score(base ? &static_cast<RankedOutputs*>(base)->rank(0) : nullptr, targets);
  }
  std::vector<RowScore> take_scores() override { return checked(ranks_[0]->take_scores()); }
  int64_t bytes() const override {
    int64_t sum = 0;
    for (const auto& rank : ranks_) sum += rank->bytes();
    return sum;
  }

 private:
  template <class T>
  T checked(T value) const {
    parts_.check();
    return value;
  }

  const RankedParts& parts_;
  std::vector<std::unique_ptr<Outputs>> ranks_;
};

/// Every rank samples from the same logits by the same rule, so all go on with the same tokens.
class RankedSampling final : public DeviceSampling {
 public:
  /// `start` makes the sampling of a rank, on its thread.
  RankedSampling(const RankedParts& parts, std::span<const SeqId> seqs, SequencePool& pool,
                 const std::function<std::unique_ptr<DeviceSampling>(size_t)>& start)
      : DeviceSampling(seqs, pool), parts_(parts), ranks_(parts.ranks.size()) {
    for_all([&](size_t r) { ranks_[r] = start(r); });
  }
  void queue(int64_t step) override {
    step_all(parts_, [&](size_t r) { ranks_[r]->queue(step); });
  }
  bool read(int64_t step, std::span<int32_t> tokens) override {
    const bool came = ranks_[0]->read(step, tokens);
    if (came) parts_.check();
    return came;
  }
  bool idle() override {
    parts_.check();
    return ranks_[0]->idle();
  }
  void finish() override {
    for_all([&](size_t r) { ranks_[r]->finish(); });
    parts_.check();
  }
  int most_ahead() const override { return ranks_[0]->most_ahead(); }

 private:
  void for_all(const std::function<void(size_t)>& body) {
    parts_.threads->for_all([&](int rank) {
      parts_.ranks[size_t(rank)]->use();
      body(size_t(rank));
    });
  }

  const RankedParts& parts_;
  std::vector<std::unique_ptr<DeviceSampling>> ranks_;
};

class RankedBackend final : public Backend {
 public:
  explicit RankedBackend(RankedParts parts) : parts_(std::move(parts)) {}
  ~RankedBackend() override {
    // A rank's memory goes where it was made.
    parts_.threads->for_all([&](int rank) {
      parts_.ranks[size_t(rank)]->use();
      parts_.ranks[size_t(rank)].reset();
    });
  }

  std::unique_ptr<KvMemory> open_memory(std::span<const KvLayerConfig> layers, std::span<const KvMetricView> metrics,
                                        PageNumbers n_pages, SlotNumbers slots) override {
    return std::make_unique<RankedMemory>(parts_, layers, metrics, n_pages, slots);
  }
  std::unique_ptr<Outputs> make_outputs() override { return std::make_unique<RankedOutputs>(parts_); }
  void step(const Batch& batch, const SequencePool& pool, KvMemory& memory, Outputs& outputs) override {
    auto& of_memory = static_cast<RankedMemory&>(memory);
    auto& of_outputs = static_cast<RankedOutputs&>(outputs);
    step_all(parts_,
             [&](size_t r) { parts_.ranks[r]->step(batch, pool, of_memory.rank(int(r)), of_outputs.rank(int(r))); });
    parts_.check();
  }
  int max_tokens() const override { return parts_.ranks[0]->max_tokens(); }
  void watch(OnAttention on_attention, OnBlock on_block) override;
  bool on_device() const override { return parts_.ranks[0]->on_device(); }
  std::unique_ptr<DeviceSampling> start_sampling(std::span<const SeqId> seqs, SequencePool& pool, KvMemory& memory,
                                                 Outputs& outputs, std::span<const SamplerOptions> samplers,
                                                 std::span<const std::vector<int32_t>> recent) override {
    if (!on_device()) return nullptr;
    auto& of_memory = static_cast<RankedMemory&>(memory);
    auto& of_outputs = static_cast<RankedOutputs&>(outputs);
    return std::make_unique<RankedSampling>(parts_, seqs, pool, [&](size_t r) {
      return parts_.ranks[r]->start_sampling(seqs, pool, of_memory.rank(int(r)), of_outputs.rank(int(r)), samplers,
                                             recent);
    });
  }
  std::vector<int32_t> sample(Outputs& outputs, std::span<const SamplerOptions> samplers,
                              std::span<const std::vector<int32_t>> recent) override {
    std::vector<int32_t> tokens =
        parts_.ranks[0]->sample(static_cast<RankedOutputs&>(outputs).rank(0), samplers, recent);
    parts_.check();
    return tokens;
  }
  void use() const override { parts_.ranks[0]->use(); }
  std::string name() const override { return parts_.name; }
  int64_t step_weight_bytes() const override {
    int64_t sum = 0;
    for (const auto& rank : parts_.ranks) sum += rank->step_weight_bytes();
    return sum;
  }
  int64_t free_bytes() const override {
    std::vector<FreeMemory> free;
    for (const auto& rank : parts_.ranks) free.push_back({rank->name(), rank->free_bytes()});
    use();
    return room_for_all(parts_.sides, free);
  }
  StepBuffers step_buffers() const override {
    StepBuffers sum;
    for (const auto& rank : parts_.ranks) {
      const StepBuffers of_rank = rank->step_buffers();
      sum.activations += of_rank.activations;
      sum.scratch += of_rank.scratch;
    }
    return sum;
  }
  std::vector<std::string> kernels(const KvLayerConfig& layer) const override {
    return parts_.ranks[0]->kernels(layer);
  }

 private:
  RankedParts parts_;
};

/// Every rank has the same residual stream: rank 0 shows its own, the others take what became of it.
void RankedBackend::watch(OnAttention on_attention, OnBlock on_block) {
  if (on_attention) throw Error(ErrorKind::usage, "rows of attention cannot be watched where ranks share the heads");
  const auto shown = std::make_shared<View2<float>>();  // within a step, of rank 0
  for (size_t rank = 0; rank < parts_.ranks.size(); ++rank) {
    if (!on_block) {
      parts_.ranks[rank]->watch(nullptr, nullptr);
      continue;
    }
    parts_.ranks[rank]->watch(nullptr, [this, rank, on_block, shown](int layer, Block block, View2<float> x) {
      if (rank == 0) {
        on_block(layer, block, x);
        *shown = x;
      }
      parts_.threads->meet();
      if (rank > 0) std::copy_n(shown->data, x.rows * x.cols, x.data);
      parts_.threads->meet();
    });
  }
}

}  // namespace

std::unique_ptr<Backend> make_ranked_backend(RankedParts parts) {
  RIDGE_CHECK(!parts.ranks.empty() && parts.threads->n_ranks() == int(parts.ranks.size()), "{} ranks, {} threads",
              parts.ranks.size(), parts.threads->n_ranks());
  return std::make_unique<RankedBackend>(std::move(parts));
}

int64_t room_for_all(std::span<const std::vector<SidePart>> sides, std::span<const FreeMemory> free) {
  std::map<std::string, std::pair<int64_t, int64_t>> places;  // bytes, and heads that its ranks have
  std::vector<int64_t> whole(sides[0].size());                // heads of each side
  for (size_t rank = 0; rank < sides.size(); ++rank) {
    auto& [bytes, n_heads] = places.try_emplace(free[rank].place, free[rank].bytes, 0).first->second;
    bytes = std::min(bytes, free[rank].bytes);
    for (size_t i = 0; i < whole.size(); ++i) {
      const Extent heads = sides[rank][i].heads;
      n_heads += heads.count;
      whole[i] = std::max(whole[i], heads.first + heads.count);
    }
  }
  const int64_t all_heads = std::accumulate(whole.begin(), whole.end(), int64_t(0));
  double least = double(INT64_MAX);
  for (const auto& [place, has] : places)
    if (has.second > 0) least = std::min(least, double(has.first) * double(all_heads) / double(has.second));
  return least < double(INT64_MAX) ? int64_t(least) : INT64_MAX;
}

}  // namespace ridge
