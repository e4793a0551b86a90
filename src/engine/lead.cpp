// The first of several ranks: a backend and a memory that stand for those of all.
#include "engine/lead.h"

#include <algorithm>

#include "engine/calls.h"
#include "engine/rank_device.h"

namespace ridge {
namespace {

/// State that the leading backend and its memories share.
struct Lead {
  Ranks& ranks;
  const ModelSlice& slice;
  const bool on_device;
  std::vector<std::vector<SidePart>> sides;  // by rank
  CallWriter calls;                          // of memory, for the next message
  int n_memories = 0;                        // opened so far

  void send() { ranks.tell(calls.take()); }
};

/// The caches of all ranks as one. It has all heads; each rank has its own.
class LeadingMemory final : public KvMemory {
 public:
  LeadingMemory(Lead& lead, Backend& backend, std::span<const KvLayerConfig> layers,
                std::span<const KvMetricView> metrics, PageNumbers n_pages, SlotNumbers slots)
      : KvMemory(layers, lead.on_device, n_pages, slots), lead_(lead), number_(lead.n_memories++) {
    std::vector<LayerCall> calls;
    for (const KvLayerConfig& layer : layers) calls.push_back(call_of(layer));
    call(Call::open_memory, n_pages.full, n_pages.sliding, slots.n, slots.n_histories);
    lead_.calls.put_all<LayerCall>(calls);
    lead_.send();
    const std::vector<SidePart>& sides = lead_.sides[0];
    Result<std::vector<int64_t>> own = std::vector<int64_t>();
    try {
      own_ =
          backend.open_memory(layers_of_part(layers, sides), metrics_of_part(layers, metrics, sides), n_pages, slots);
      own = side_bytes(*own_);
    } catch (const Error& error) {
      own = Failure{error.kind(), error.what(), std::string(error.field())};
    }
    try {
      side_bytes_ = agree_on_memory(lead_.ranks, own);
    } catch (...) {
      call(Call::close_memory);
      throw;
    }
  }
  ~LeadingMemory() override { call(Call::close_memory); }

  KvMemory& own() { return *own_; }
  const KvMemory& here() const override { return *own_; }
  int lost_from(int slot) const override { return own_->lost_from(slot); }
  /// Puts a call about this memory; it goes with the next one that is sent.
  template <class... Values>
  void call(Call what, const Values&... values) {
    lead_.calls.put(what);
    lead_.calls.put(number_);
    (lead_.calls.put(values), ...);
  }
  /// Puts a call that runs tokens of the pool's sequences.
  void call_with(Call what, const SequencePool& pool, std::span<const SeqTokens> tokens) {
    std::vector<StepCall> seqs;
    for (const auto& [seq, n_tokens] : tokens)
      seqs.push_back({pool.slot(seq), pool.length(seq), n_tokens, pool.calibrates(seq)});
    call(what, pool.n_ctx());
    lead_.calls.put_all<StepCall>(seqs);
  }

  using KvMemory::allocated_bytes;
  int64_t allocated_bytes(int layer, KvSide side) const override { return side_bytes_[side_index(layer, side)]; }
  void clear_slot(int slot) override {
    call(Call::clear_slot, slot);
    own_->clear_slot(slot);
  }
  void copy_slot(int from, int to, int n) override {
    call(Call::copy_slot, from, to, n);
    own_->copy_slot(from, to, n);
  }
  using KvMemory::clear_counts;
  using KvMemory::copy_page;
  using KvMemory::set_pages;
  void copy_page(PageClass of, int from, int to) override {
    call(Call::copy_page, of, from, to);
    own_->copy_page(of, from, to);
  }
  void clear_counts(PageClass of, int page) override {
    call(Call::clear_counts, of, page);
    own_->clear_counts(of, page);
  }
  void set_pages(PageClass of, int slot, int first, std::span<const int32_t> pages) override {
    call(Call::set_pages, of, slot, first);
    lead_.calls.put_all(pages);
    own_->set_pages(of, slot, first, pages);
  }

  SideImage read_side(int layer, KvSide side, const SequencePlace& place) override {
    call(Call::read_side, layer, side);
    lead_.calls.put_place(place);
    lead_.send();
    SideImage own = own_->read_side(layer, side, place);
    std::vector<BytesOut> to(lead_.sides.size());
    to[0] = own.bytes;
    std::vector<SideImage> images;
    std::vector<SidePart> parts;
    for (const std::string& bytes : lead_.ranks.trade(to, file_seconds(lead_.ranks)))
      images.push_back({own.ring_first, bytes_of(bytes), own.coded_first});
    for (const auto& sides : lead_.sides) parts.push_back(sides[side_index(layer, side)]);
    return join_sides(layout(layer, side), place.n, images, parts);
  }
  void write(const SequenceImage& image, const SequencePlace& place) override {
    call(Call::write, image.n, image.calibrated, ssize(image.sides));
    for (const SideImage& side : image.sides) lead_.calls.put(side.ring_first), lead_.calls.put(side.coded_first);
    lead_.calls.put_place(place);
    lead_.send();
    SequenceImage own{.n = image.n, .calibrated = image.calibrated, .sides = {}};
    for (size_t i = 0; i < image.sides.size(); ++i) {
      std::vector<SideImage> parts;  // keeps what is on its way
      std::vector<BytesOut> to;
      for (const auto& sides : lead_.sides)
        parts.push_back(cut_side(layouts_[i / 2].side(kKvSides[i % 2]), image.n, image.sides[i], sides[i]));
      for (const SideImage& part : parts) to.push_back(part.bytes);
      lead_.ranks.trade(to, file_seconds(lead_.ranks));
      own.sides.push_back(std::move(parts[0]));
    }
    own_->write(own, place);
  }
  void fill(const SequencePlace& place, uint64_t seed) override {
    call(Call::fill, seed);
    lead_.calls.put_place(place);
    own_->fill(place, seed);
  }

  PageCounts counts(int layer, KvSide side, int page) override { return counts(layer, side)[size_t(page)]; }
  std::vector<PageCounts> counts(int layer, KvSide side) override {
    std::vector<PageCounts> sums(size_t(n_pages(page_class(layer))));
    call(Call::counts, layer, side);
    const std::vector<PageCounts> own = own_->counts(layer, side);
    for_all_once(layer, own, [&](std::span<const PageCounts> of_rank) {
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i].norm2 += of_rank[i].norm2;
        sums[i].error2 += of_rank[i].error2;
      }
    });
    return sums;
  }
  int64_t saturated(int layer, KvSide side) override {
    int64_t sum = 0;
    call(Call::saturated, layer, side);
    for_all_once(layer, std::vector{own_->saturated(layer, side)},
                 [&](std::span<const int64_t> of_rank) { sum += of_rank[0]; });
    return sum;
  }

 private:
  /// Sends the call that was put, and visits what each rank answers; of ranks with the same heads the first.
  template <class T, class Visit>
  void for_all_once(int layer, const std::vector<T>& own, const Visit& visit) {
    lead_.send();
    const std::string text(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(T));
    const std::vector<std::string> all = lead_.ranks.gather(text);
    for (size_t rank = 0; rank < all.size(); rank += size_t(lead_.slice.kv_copies_of(layer))) {
      RIDGE_CHECK(all[rank].size() == text.size(), "{} bytes of rank {}, expected {}", all[rank].size(), rank,
                  text.size());
      std::vector<T> values(own.size());
      std::memcpy(values.data(), all[rank].data(), text.size());
      visit(std::span<const T>(values));
    }
  }

  Lead& lead_;
  const int number_;
  std::unique_ptr<KvMemory> own_;
  std::vector<int64_t> side_bytes_;  // of all ranks
};

/// Every rank samples from the same logits by the same rule, so all go on with the same tokens.
class LeadingSampling final : public DeviceSampling {
 public:
  LeadingSampling(Lead& lead, std::span<const SeqId> seqs, SequencePool& pool, LeadingMemory& memory,
                  std::unique_ptr<DeviceSampling> own)
      : DeviceSampling(seqs, pool), lead_(lead), memory_(memory), own_(std::move(own)) {}
  ~LeadingSampling() override { memory_.call(Call::end_sampling); }

  void queue(int64_t step) override {
    memory_.call_with(Call::queue_sampling, pool_, seqs_);
    lead_.calls.put(step);
    lead_.send();
    own_->queue(step);
  }
  bool read(int64_t step, std::span<int32_t> tokens) override { return own_->read(step, tokens); }
  bool idle() override { return own_->idle(); }
  void finish() override { own_->finish(); }
  int most_ahead() const override { return own_->most_ahead(); }

 private:
  Lead& lead_;
  LeadingMemory& memory_;
  std::unique_ptr<DeviceSampling> own_;
};

/// The first rank's slice, and the others through it.
class LeadingBackend final : public Backend {
 public:
  LeadingBackend(const Config& config, const Weights& weights, const ModelSlice& slice, Ranks& ranks, bool on_device,
                 const MakeRank& make_own)
      : lead_{.ranks = ranks, .slice = slice, .on_device = on_device, .sides = {}, .calls = {}},
        config_(config),
        weights_(view_of(weights)) {
    for (int r = 0; r < ranks.size(); ++r) lead_.sides.push_back(side_parts(slice, r));
    apply_slice(slice, config_, weights_);
    plan_ = make_plan(config_, weights_.rope_factors, weights_.long_rope_factors);
    own_ = make_own(plan_, weights_);
  }

  std::unique_ptr<KvMemory> open_memory(std::span<const KvLayerConfig> layers, std::span<const KvMetricView> metrics,
                                        PageNumbers n_pages, SlotNumbers slots) override {
    return std::make_unique<LeadingMemory>(lead_, *own_, layers, metrics, n_pages, slots);
  }
  std::unique_ptr<Outputs> make_outputs() override { return own_->make_outputs(); }
  void step(const Batch& batch, const SequencePool& pool, KvMemory& memory, Outputs& outputs) override {
    auto& of_all = static_cast<LeadingMemory&>(memory);
    of_all.call_with(Call::step, pool, batch.seqs);
    lead_.calls.put(batch.logits), lead_.calls.put(batch.hidden), lead_.calls.put_all(batch.tokens);
    lead_.send();
    own_->step(batch, pool, of_all.own(), outputs);
  }
  int max_tokens() const override { return own_->max_tokens(); }
  /// Every rank has the same residual stream: the others take what becomes of it here.
  void watch(OnAttention on_attention, OnBlock on_block) override {
    if (on_attention) throw Error(ErrorKind::usage, "rows of attention cannot be watched where ranks share the heads");
    lead_.calls.put(Call::watch), lead_.calls.put(bool(on_block));
    if (!on_block) return own_->watch(nullptr, nullptr);
    own_->watch(nullptr, [this, on_block](int layer, Block block, View2<float> x) {
      try {
        on_block(layer, block, x);
      } catch (const Error& error) {  // the others are in the middle of the pass
        lead_.ranks.fail(error.what());
        throw;
      }
      lead_.ranks.tell({reinterpret_cast<const char*>(x.data), size_t(x.rows * x.cols) * sizeof(float)});
    });
  }
  bool on_device() const override { return own_->on_device(); }
  std::unique_ptr<DeviceSampling> start_sampling(std::span<const SeqId> seqs, SequencePool& pool, KvMemory& memory,
                                                 Outputs& outputs, std::span<const SamplerOptions> samplers,
                                                 std::span<const std::vector<int32_t>> recent) override {
    if (!on_device()) return nullptr;
    auto& of_all = static_cast<LeadingMemory&>(memory);
    std::vector<SeqTokens> one_each;
    for (const SeqId seq : seqs) one_each.push_back({seq, 1});
    of_all.call_with(Call::start_sampling, pool, one_each);
    lead_.calls.put_all(samplers);
    for (const std::vector<int32_t>& of_seq : recent) lead_.calls.put_all<int32_t>(of_seq);
    return std::make_unique<LeadingSampling>(lead_, seqs, pool, of_all,
                                             own_->start_sampling(seqs, pool, of_all.own(), outputs, samplers, recent));
  }
  std::vector<int32_t> sample(Outputs& outputs, std::span<const SamplerOptions> samplers,
                              std::span<const std::vector<int32_t>> recent) override {
    return own_->sample(outputs, samplers, recent);
  }
  void use() const override { own_->use(); }
  std::string name() const override { return own_->name(); }
  int64_t step_weight_bytes() const override { return own_->step_weight_bytes(); }
  int64_t free_bytes() const override;
  StepBuffers step_buffers() const override { return own_->step_buffers(); }
  std::vector<std::string> kernels(const KvLayerConfig& layer) const override {
    const SidePart& k = lead_.sides[0][2 * size_t(plan_.first_attention())];
    return own_->kernels(layers_of_part({&layer, 1}, {&k, 1})[0]);
  }

 private:
  mutable Lead lead_;
  Config config_;
  Weights weights_;
  ModelPlan plan_;
  std::unique_ptr<Backend> own_;
};

int64_t LeadingBackend::free_bytes() const {
  lead_.calls.put(Call::free_bytes);
  lead_.send();
  return room_for_all(lead_.sides, exchange_free_memory(lead_.ranks, *own_));
}

}  // namespace

void lead_load(Ranks& ranks, const std::string& path, const LoadOptions& options) {
  CallWriter calls;
  calls.put(Call::load), calls.put_text(path), calls.put_text(options.isa), calls.put_text(options.device);
  calls.put(options.n_threads), calls.put(options.float_activations), calls.put(ssize(options.kernels));
  for (const std::string& kernel : options.kernels) calls.put_text(kernel);
  ranks.tell(calls.take());
}

std::unique_ptr<Backend> make_leading_backend(const Config& config, const Weights& weights, const ModelSlice& slice,
                                              Ranks& ranks, bool on_device, const MakeRank& make_own) {
  RIDGE_CHECK(ranks.is_first() && slice.rank == 0, "rank {} leads", ranks.rank());
  return std::make_unique<LeadingBackend>(config, weights, slice, ranks, on_device, make_own);
}

void lead_end(Ranks& ranks) {
  CallWriter calls;
  calls.put(Call::end);
  ranks.tell(calls.take());
}

std::vector<int64_t> side_bytes(const KvMemory& memory) {
  std::vector<int64_t> bytes;
  for (int layer = 0; layer < memory.n_layers(); ++layer)
    for (const KvSide side : kKvSides) bytes.push_back(memory.allocated_bytes(layer, side));
  return bytes;
}

std::vector<int64_t> agree_on_memory(Ranks& ranks, const Result<std::vector<int64_t>>& own) {
  CallWriter answer;
  answer.put(own ? 0 : int(own.error().kind));
  if (own) answer.put_all<int64_t>(*own);
  else answer.put_text(own.error().message);
  std::vector<int64_t> sums;
  const std::vector<std::string> all = ranks.gather(answer.take(), file_seconds(ranks));
  std::vector<CallReader> answers(all.begin(), all.end());
  for (int r = 0; ranks.is_first() && r < ranks.size(); ++r) {
    CallReader& said = answers[size_t(r)];
    if (const int kind = said.get<int>(); kind != 0)
      throw_error(ErrorKind(kind), "{}: {}", ranks.name(r), said.get_text());
    const std::vector<int64_t> bytes = said.get_all<int64_t>();
    sums.resize(bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) sums[i] += bytes[i];
  }
  return sums;
}

std::vector<FreeMemory> exchange_free_memory(Ranks& ranks, const Backend& own) {
  CallWriter answer;
  answer.put_text(own.on_device() ? ranks.name(ranks.rank()) : machine_name());
  answer.put(own.free_bytes());
  std::vector<FreeMemory> all;
  for (const std::string& text : ranks.gather(answer.take())) {
    CallReader said(text);
    all.push_back({.place = said.get_text()});
    all.back().bytes = said.get<int64_t>();
  }
  return all;
}

LayerCall call_of(const KvLayerConfig& layer) {
  const auto number = [](const KvFormat& format) { return int(&format - kv_formats().data()); };
  const auto side = [&](const KvSideConfig& of) {
    return LayerCall::Side{.format = number(*of.format),
                           .recent = number(of.recent()),
                           .window = of.policy.window,
                           .sinks = of.policy.sinks,
                           .rotation = of.policy.rotation,
                           .scale = of.policy.scale,
                           .rounding = of.policy.rounding,
                           .centre = of.policy.centre};
  };
  LayerCall call{.k = side(layer.k),
                 .v = side(layer.v),
                 .n_kv_heads = layer.n_kv_heads,
                 .head_dim = layer.head_dim,
                 .attention_window = layer.attention_window,
                 .layer = layer.layer,
                 .state_values = layer.state_values,
                 .rope = {int(layer.rope.frequency.size()), layer.rope.first, layer.rope.halves, {}},
                 .v_is_k = layer.v_is_k,
                 .index_dim = layer.index_dim};
  RIDGE_CHECK(layer.rope.frequency.size() <= std::size(call.rope.frequency), "{} pairs of RoPE",
              layer.rope.frequency.size());
  std::ranges::copy(layer.rope.frequency, call.rope.frequency);
  return call;
}

KvLayerConfig layer_of(const LayerCall& call) {
  const auto side = [&](const LayerCall::Side& of) {
    return KvSideConfig{.format = &kv_formats()[size_t(of.format)],
                        .policy = {.rotation = of.rotation,
                                   .centre = of.centre,
                                   .window = of.window,
                                   .sinks = of.sinks,
                                   .scale = of.scale,
                                   .rounding = of.rounding,
                                   .recent = kv_formats()[size_t(of.recent)].name}};
  };
  return {.k = side(call.k),
          .v = side(call.v),
          .n_kv_heads = call.n_kv_heads,
          .head_dim = call.head_dim,
          .attention_window = call.attention_window,
          .state_values = call.state_values,
          .layer = call.layer,
          .rope = {{call.rope.frequency, call.rope.frequency + call.rope.n_pairs}, call.rope.first, call.rope.halves},
          .v_is_k = call.v_is_k,
          .index_dim = call.index_dim};
}

}  // namespace ridge
