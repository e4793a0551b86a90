// The other ranks: they do what the first one says, with their slice of the model.
#include <algorithm>
#include <map>

#include "engine/calls.h"
#include "engine/engine.h"
#include "engine/lead.h"

namespace ridge {
namespace {

/// A memory of the rank's own heads. Its pool decides nothing: sequences are where the first rank's pool has them.
struct Followed {
  std::unique_ptr<SequencePool> pool;
  std::unique_ptr<Outputs> outputs;
  std::vector<std::vector<int32_t>> pages[kPageClasses] = {};  // of each slot
  std::unique_ptr<DeviceSampling> sampling = {};               // under way

  KvMemory& memory() { return pool->memory(); }
};

class Follower {
 public:
  Follower(Ranks& ranks, const PathHere& path_here) : ranks_(ranks), path_here_(path_here) {}
  void run() {
    for (;;)
      for (CallReader calls(ranks_.hear()); !calls.done();) {
        const Call call = calls.get<Call>();
        if (call == Call::end) return;
        if (call == Call::load) load(calls);
        else if (call == Call::watch) watch(calls.get<bool>());
        else if (call == Call::free_bytes) exchange_free_memory(ranks_, engine_->backend());
        else if (call == Call::open_memory) open(calls);
        else if (call == Call::close_memory) memories_.erase(calls.get<int>());
        else do_with(memories_.at(calls.get<int>()), call, calls);
      }
  }

 private:
  void load(CallReader& calls);
  void watch(bool on);
  void open(CallReader& calls);
  void do_with(Followed& of, Call call, CallReader& calls);
  std::vector<SeqTokens> sequences(Followed& of, CallReader& calls);
  void step(Followed& of, CallReader& calls);
  void start_sampling(Followed& of, CallReader& calls);

  Ranks& ranks_;
  const PathHere& path_here_;
  std::unique_ptr<Engine> engine_;
  std::map<int, Followed> memories_;
};

void Follower::load(CallReader& calls) {
  memories_.clear();
  engine_.reset();
  const std::string path = calls.get_text();
  LoadOptions options{.isa = calls.get_text()};
  options.device = calls.get_text();
  options.n_threads = calls.get<int>(), options.float_activations = calls.get<bool>();
  for (int64_t n = calls.get<int64_t>(); n > 0; --n) options.kernels.push_back(calls.get_text());
  engine_ = std::make_unique<Engine>(path_here_ ? path_here_(path) : path, options, &ranks_);
}

/// The first rank shows every block and says what the next one reads.
void Follower::watch(bool on) {
  if (!on) return engine_->backend().watch(nullptr, nullptr);
  engine_->backend().watch(nullptr, [this](int, Block, View2<float> x) {
    const std::string stream = ranks_.hear();
    RIDGE_CHECK(stream.size() == size_t(x.rows * x.cols) * sizeof(float), "{} bytes of [{}, {}]", stream.size(), x.rows,
                x.cols);
    std::memcpy(x.data, stream.data(), stream.size());
  });
}

void Follower::open(CallReader& calls) {
  const int number = calls.get<int>();
  const int n_full = calls.get<int>(), n_sliding = calls.get<int>(), n_slots = calls.get<int>(),
            n_histories = calls.get<int>();
  std::vector<KvLayerConfig> whole;
  for (const LayerCall& layer : calls.get_all<LayerCall>()) whole.push_back(layer_of(layer));
  const std::vector<KvLayerConfig> layers = layers_of_part(whole, side_parts(*engine_->slice(), ranks_.rank()));
  Result<std::vector<int64_t>> own = std::vector<int64_t>();
  try {
    Followed of{engine_->open_pool(layers, {n_full, n_sliding}, {n_slots, n_histories}),
                engine_->backend().make_outputs()};
    for (auto& of_class : of.pages) of_class.resize(size_t(n_slots));
    own = side_bytes(of.memory());
    memories_.emplace(number, std::move(of));
  } catch (const Error& error) {
    own = Failure{error.kind(), error.what()};
  }
  agree_on_memory(ranks_, own);
}

void Follower::do_with(Followed& of, Call call, CallReader& calls) {
  KvMemory& memory = of.memory();
  switch (call) {
    case Call::clear_slot: return memory.clear_slot(calls.get<int>());
    case Call::copy_slot: {
      const int from = calls.get<int>(), to = calls.get<int>();
      return memory.copy_slot(from, to, calls.get<int>());
    }
    case Call::copy_page: {
      const auto of_class = calls.get<PageClass>();
      const int from = calls.get<int>(), to = calls.get<int>();
      return memory.copy_page(of_class, from, to);
    }
    case Call::clear_counts: {
      const auto of_class = calls.get<PageClass>();
      return memory.clear_counts(of_class, calls.get<int>());
    }
    case Call::set_pages: {
      const auto of_class = calls.get<PageClass>();
      const int slot = calls.get<int>();
      std::vector<int32_t>& list = of.pages[size_t(of_class)][size_t(slot)];
      const auto first = size_t(calls.get<int>());
      const std::vector<int32_t> pages = calls.get_all<int32_t>();
      memory.set_pages(of_class, slot, int(first), pages);
      list.resize(std::max(list.size(), first + pages.size()), kNoPage);
      std::ranges::copy(pages, list.begin() + ptrdiff_t(first));
      return;
    }
    case Call::read_side: {
      const int layer = calls.get<int>();
      const auto side = calls.get<KvSide>();
      const HeardPlace heard = calls.get_place();
      const SideImage own = memory.read_side(layer, side, heard.place);
      std::vector<BytesOut> to(size_t(ranks_.size()));
      to[0] = own.bytes;
      ranks_.trade(to, file_seconds(ranks_));
      return;
    }
    case Call::write: {
      SequenceImage image{.n = calls.get<int>(), .calibrated = calls.get<bool>(), .sides = {}};
      image.sides.resize(size_t(calls.get<int64_t>()));
      for (SideImage& side : image.sides) side.ring_first = calls.get<int>(), side.coded_first = calls.get<int>();
      const HeardPlace heard = calls.get_place();
      const std::vector<BytesOut> nothing(size_t(ranks_.size()));
      for (SideImage& side : image.sides) side.bytes = bytes_of(ranks_.trade(nothing, file_seconds(ranks_)).front());
      return memory.write(image, heard.place);
    }
    case Call::fill: {
      const auto seed = calls.get<uint64_t>();
      const HeardPlace heard = calls.get_place();
      return memory.fill(heard.place, seed + uint64_t(ranks_.rank() / engine_->slice()->kv_copies));
    }
    case Call::counts: {
      const int layer = calls.get<int>();
      const std::vector<PageCounts> counts = memory.counts(layer, calls.get<KvSide>());
      ranks_.gather({reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof(PageCounts)});
      return;
    }
    case Call::saturated: {
      const int layer = calls.get<int>();
      const int64_t n = memory.saturated(layer, calls.get<KvSide>());
      ranks_.gather({reinterpret_cast<const char*>(&n), sizeof n});
      return;
    }
    case Call::step: return step(of, calls);
    case Call::start_sampling: return start_sampling(of, calls);
    case Call::queue_sampling: sequences(of, calls); return of.sampling->queue(calls.get<int64_t>());
    case Call::end_sampling: return of.sampling.reset();
    case Call::end:
    case Call::load:
    case Call::watch:
    case Call::free_bytes:
    case Call::open_memory:
    case Call::close_memory: break;
  }
  RIDGE_CHECK(false, "call {}", int(call));
}

/// Puts the sequences of a call where the first rank's pool has them.
std::vector<SeqTokens> Follower::sequences(Followed& of, CallReader& calls) {
  of.pool->set_n_ctx(calls.get<int>());
  std::vector<SeqTokens> seqs;
  for (const StepCall& s : calls.get_all<StepCall>()) {
    const auto pages_of = [&](PageClass c) -> std::span<const int32_t> { return of.pages[size_t(c)][size_t(s.slot)]; };
    seqs.push_back({of.pool->follow(s.slot, s.n_past, s.calibrates, pages_of), s.n_tokens});
  }
  return seqs;
}

void Follower::step(Followed& of, CallReader& calls) {
  const std::vector<SeqTokens> seqs = sequences(of, calls);
  const auto logits = calls.get<LogitRows>();
  const auto hidden = calls.get<bool>();
  const std::vector<int32_t> tokens = calls.get_all<int32_t>();
  engine_->backend().step({.tokens = tokens, .seqs = seqs, .logits = logits, .hidden = hidden}, *of.pool, of.memory(),
                          *of.outputs);
}

void Follower::start_sampling(Followed& of, CallReader& calls) {
  std::vector<SeqId> seqs;
  for (const SeqTokens& tokens : sequences(of, calls)) seqs.push_back(tokens.seq);
  const std::vector<SamplerOptions> samplers = calls.get_all<SamplerOptions>();
  std::vector<std::vector<int32_t>> recent;
  for (size_t i = 0; i < seqs.size(); ++i) recent.push_back(calls.get_all<int32_t>());
  of.sampling = engine_->backend().start_sampling(seqs, *of.pool, of.memory(), *of.outputs, samplers, recent);
}

}  // namespace

void follow(Ranks& ranks, const PathHere& path_here) { Follower(ranks, path_here).run(); }

}  // namespace ridge
