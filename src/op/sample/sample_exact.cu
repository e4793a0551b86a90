// Sampling in up to three passes over the logits, each by many blocks, the last of which to arrive finishes the pass:
//
//   find_best    the best logit of each sequence; greedy ends here
//   weigh        a histogram by distance from the best, from which the last block tells how far down the candidates go;
//                or, without filters, sums of weights, from which it samples
//   sample_listed collects the candidates, sorts them, cuts and samples
//
// A pass costs about a launch: 152k logits are 0.6 MB, which the second cache holds. Every block has its slice in
// registers before it waits for the pass before. -fmad=false: weights must be the host's (rule.h).
#include <algorithm>
#include <string>

#include "gpu/launch.h"
#include "gpu/tensor.h"
#include "gpu/token_ring_device.h"
#include "op/sample/sample_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

using Sum = unsigned long long;  // what atomics and shuffles call 64 bits

constexpr int kThreads = 256, kPerThread = 8, kSlice = kThreads * kPerThread;
constexpr int kBins = 1024;
constexpr int kMaxSorted = 4096;  // candidates that fit in the shared memory of a block
static_assert(uint64_t(kSlice) << 21 <= uint64_t(1) << 32, "a block's sum of half weights fits in 32 bits");

/// State of one sequence. Counters are 0 between calls.
struct State {
  SampleRule rule;
  Sum step, n_recent;
  Sum best;           // key
  Sum total;          // of the histogram
  unsigned last_bin;  // that has candidates
  unsigned n_listed;
  unsigned arrived[3];
};

struct Batch {
  int vocab_size;
  int n_ids;            // that are sampled
  const float* logits;  // [n_seq, vocab_size]
  State* states;        // [n_seq]
  Sum* partial;         // [n_seq, n_blocks]
  Sum* bins;            // [n_seq, kBins], 0 between calls
  Sum* listed;          // [n_seq, vocab_size]
  int32_t* recent;      // [n_seq, kMaxDevicePenaltyTokens]
  TokenPlaces tokens;   // [n_seq]
  gpu::TokenRingView ring;
};

/// This thread's logits, as keys; 0 beyond the ids.
struct Keys {
  __device__ explicit Keys(const Batch& batch) {
    const float* row = batch.logits + int64_t(blockIdx.y) * batch.vocab_size;
    const int first = int(blockIdx.x) * kSlice + int(threadIdx.x);
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int id = first + j * kThreads;
      key[j] = id < batch.n_ids ? sample_key(__ldcg(row + id), uint32_t(id)) : 0;
    }
  }
  Sum key[kPerThread];
};

/// Whether this block is the last of its sequence to come here; it then sees what the others wrote before (past the
/// first cache), and the counter is 0 again.
__device__ bool last_to_arrive(unsigned* counter) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) == gridDim.x - 1;
    if (last) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

__device__ Sum warp_best(Sum key) {
  for (int step = 16; step > 0; step /= 2) {
    const Sum other = __shfl_xor_sync(gpu::kAllLanes, key, step);
    if (other > key) key = other;
  }
  return key;
}

/// The largest of the block's keys, in every thread.
__device__ Sum block_best(Sum key) {
  __shared__ Sum best[kThreads / 32];
  key = warp_best(key);
  __syncthreads();  // an earlier call may still be reading
  if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = key;
  __syncthreads();
  for (const Sum other : best)
    if (other > key) key = other;
  return key;
}

struct Sums {
  Sum before;  // of the threads before this one
  Sum total;
};
__device__ Sums block_sums(Sum mine) {
  __shared__ Sum warps[kThreads / 32];
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
  Sum sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const Sum other = __shfl_up_sync(gpu::kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // an earlier call may still be reading
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  Sums sums = {sum - mine, 0};
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) sums.before += warps[i];
    sums.total += warps[i];
  }
  return sums;
}

/// Where a running sum first exceeds a number.
struct Place {
  int index;   // n when it never does
  Sum before;  // sum of those before
};
/// Finds where the running sum of mass(0), mass(1), ... mass(n - 1) first exceeds a number, which `left` gives from the
/// sum of all. The result is the same in every thread.
template <class Mass, class Left>
__device__ Place find(int n, const Mass& mass, const Left& left) {
  __shared__ Place found;
  const int per_thread = (n + kThreads - 1) / kThreads;
  const int first = min(n, int(threadIdx.x) * per_thread), end = min(n, first + per_thread);
  Sum mine = 0;
  for (int i = first; i < end; ++i) mine += mass(i);
  const Sums sums = block_sums(mine);
  const Sum number = left(sums.total);
  if (threadIdx.x == 0) found = {n, sums.total};
  __syncthreads();
  if (number >= sums.before && number - sums.before < mine) {
    Place place = {first, sums.before};
    for (Sum m = mass(first); number - place.before >= m; m = mass(place.index)) place.before += m, ++place.index;
    found = place;
  }
  __syncthreads();
  return found;
}

/// Sorts n keys, a power of two, the largest first.
__device__ void sort(Sum* keys, int n) {
  for (int size = 2; size <= n; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int i = int(threadIdx.x); i < n / 2; i += kThreads) {
        const int low = 2 * i - (i & (stride - 1)), high = low + stride;
        const Sum a = keys[low], b = keys[high];
        if ((a < b) == ((low & size) == 0)) keys[low] = b, keys[high] = a;
      }
    }
  __syncthreads();
}

/// The candidates of a sequence, sorted in shared memory or, too many for that, unsorted in global memory.
struct Candidates {
  int n;
  const Sum* keys;
  bool sorted;

  /// The key at which the running sum of mass(key), best first, exceeds left(sum of all); 0 when it never does.
  template <class Mass, class Left>
  __device__ Sum select(const Mass& mass, const Left& left) const {
    if (sorted) {
      const Place place = find(
          n, [&](int i) { return mass(keys[i]); }, left);
      return place.index < n ? keys[place.index] : 0;
    }
    // By digits from the top: sums of mass by the next digit of the keys that begin as found so far.
    __shared__ Sum digits[256];
    Sum begin = 0, number = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
      __syncthreads();
      if (threadIdx.x < 256) digits[threadIdx.x] = 0;
      __syncthreads();
      for (int i = int(threadIdx.x); i < n; i += kThreads) {
        const Sum key = __ldcg(keys + i);
        if (shift == 56 || key >> (shift + 8) == begin) atomicAdd(&digits[255 - (key >> shift & 255)], Sum(mass(key)));
      }
      __syncthreads();
      const Place place = find(
          256, [&](int i) { return digits[i]; },
          [&](Sum total) { return shift == 56 ? (number = left(total)) : number; });
      if (place.index == 256) return 0;
      begin = begin << 8 | Sum(255 - place.index);
      number -= place.before;
    }
    return begin;
  }
};

/// Hands out the token; by one thread.
__device__ void emit(const Batch& batch, State& state, int32_t token) {
  batch.tokens.first[int64_t(blockIdx.y) * batch.tokens.stride] = token;
  if (batch.ring.words) gpu::put_token(batch.ring, int(blockIdx.y), token);
  if (state.rule.exponent != 0) ++state.step;
  if (state.rule.repeat_last_n == 0) return;
  batch.recent[int64_t(blockIdx.y) * kMaxDevicePenaltyTokens + int64_t(state.n_recent % state.rule.repeat_last_n)] =
      token;
  ++state.n_recent;
}

/// Whether find_best has chosen.
__device__ bool is_decided(const SampleRule& rule, Sum best) {
  return rule.exponent == 0 || !isfinite(key_logit(best));
}

/// Grows by powers: 64 bins for distances below 1, 64 for the next 2, the next 4 and so on; the last has the rest.
__device__ unsigned bin_of(float below) {
  const unsigned bin = (__float_as_uint(below + 1.0f) - 0x3F800000u) >> 17;
  return bin < kBins - 1 ? bin : kBins - 1;
}

/// One block a sequence.
__global__ void __launch_bounds__(kThreads, 2) penalise(Batch batch, float* logits) {
  gpu::wait_for_previous_grid();
  gpu::let_next_grid_start();
  __shared__ int32_t window[kMaxDevicePenaltyTokens];
  const State& state = batch.states[blockIdx.y];
  const int32_t* recent = batch.recent + int64_t(blockIdx.y) * kMaxDevicePenaltyTokens;
  const int n = int(state.n_recent < state.rule.repeat_last_n ? state.n_recent : state.rule.repeat_last_n);
  for (int i = int(threadIdx.x); i < n; i += kThreads) window[i] = recent[i];
  __syncthreads();
  for (int i = int(threadIdx.x); i < n; i += kThreads) {
    const int32_t id = window[i];
    bool first = id >= 0 && id < batch.vocab_size;
    for (int j = 0; j < i && first; ++j) first = window[j] != id;
    if (!first) continue;
    float& logit = logits[int64_t(blockIdx.y) * batch.vocab_size + id];
    logit = penalised(logit, state.rule.repeat_penalty);
  }
}

/// [n_blocks, n_seq] blocks, as the next two.
__global__ void __launch_bounds__(kThreads, 2) find_best(Batch batch) {
  gpu::wait_for_previous_grid();
  gpu::let_next_grid_start();
  const Keys mine(batch);
  Sum best = 0;
  for (const Sum key : mine.key)
    if (key > best) best = key;
  best = block_best(best);
  State& state = batch.states[blockIdx.y];
  Sum* partial = batch.partial + int64_t(blockIdx.y) * gridDim.x;
  if (threadIdx.x == 0) partial[blockIdx.x] = best;
  if (!last_to_arrive(&state.arrived[0])) return;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads)
    if (const Sum other = __ldcg(partial + i); other > best) best = other;
  best = block_best(best);
  if (threadIdx.x != 0) return;
  state.best = best;
  if (is_decided(state.rule, best))
    emit(batch, state, int32_t(key_id(best)) | (isfinite(key_logit(best)) ? 0 : kNotFiniteToken));
}

/// Sampling without filters, by the last block: the slice first, then the token in it.
__device__ void sample_plain(const Batch& batch, State& state, const Sum* partial, float best) {
  Sum number = 0;
  const Place slice = find(
      int(gridDim.x), [&](int i) { return __ldcg(partial + i); },
      [&](Sum total) { return number = multiply_high(random_number(state.rule.seed, state.step), total); });
  const int first = slice.index * kSlice;
  const float* logits = batch.logits + int64_t(blockIdx.y) * batch.vocab_size + first;
  const float exponent = state.rule.exponent;
  const Place place = find(
      min(kSlice, batch.n_ids - first),
      [&](int i) { return sample_weight(best - key_logit(sample_key(__ldcg(logits + i), 0)), exponent); },
      [&](Sum) { return number - slice.before; });
  if (threadIdx.x == 0) emit(batch, state, first + place.index);
}

/// Whether the histogram holds weights: when top_p applies to the whole vocabulary. Else it holds candidates.
__device__ bool bins_hold_weights(const SampleRule& rule) { return rule.top_k == 0 && rule.top_p != kTopPOff; }

__global__ void __launch_bounds__(kThreads, 2) weigh(Batch batch) {
  const Keys mine(batch);  // the logits are there: find_best has waited for them
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  State& state = batch.states[blockIdx.y];
  const SampleRule rule = state.rule;
  const Sum best_key = __ldcg(&state.best);
  if (is_decided(rule, best_key)) return;
  const float best = key_logit(best_key);

  if (!has_filter(rule)) {
    Sum sum = 0;
    for (const Sum key : mine.key)
      if (key) sum += sample_weight(best - key_logit(key), rule.exponent);
    const Sums sums = block_sums(sum);
    Sum* partial = batch.partial + int64_t(blockIdx.y) * gridDim.x;
    if (threadIdx.x == 0) partial[blockIdx.x] = sums.total;
    if (last_to_arrive(&state.arrived[1])) sample_plain(batch, state, partial, best);
    return;
  }
  if (rule.top_k == 0 && rule.top_p == kTopPOff) return;  // min_p alone needs no histogram

  // Weights in two halves of 21 bits, because shared memory adds 32 bits at a time.
  auto* const low = gpu::dynamic_shared<unsigned>();
  unsigned* const high = low + kBins;
  for (int i = int(threadIdx.x); i < 2 * kBins; i += kThreads) low[i] = 0;
  __syncthreads();
  const bool weights = bins_hold_weights(rule);
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    if (!mine.key[j]) continue;
    const float below = best - key_logit(mine.key[j]);
    const unsigned bin = bin_of(below);
    const Sum mass = weights ? sample_weight(below, kExponentOf1) : 1;
    if (const auto part = unsigned(mass & ((1u << 21) - 1))) atomicAdd(&low[bin], part);
    if (const auto part = unsigned(mass >> 21)) atomicAdd(&high[bin], part);
  }
  __syncthreads();
  Sum* bins = batch.bins + int64_t(blockIdx.y) * kBins;
  for (int i = int(threadIdx.x); i < kBins; i += kThreads)
    if (const Sum mass = (Sum(high[i]) << 21) + low[i]) atomicAdd(bins + i, mass);
  if (!last_to_arrive(&state.arrived[1])) return;

  Sum all = 0;
  const Place place = find(
      kBins, [&](int i) { return __ldcg(bins + i); },
      [&](Sum total) { return all = total, weights ? top_p_target(rule, total) - 1 : Sum(rule.top_k - 1); });
  for (int i = int(threadIdx.x); i < kBins; i += kThreads) bins[i] = 0;
  if (threadIdx.x == 0) state.total = all, state.last_bin = unsigned(min(place.index, kBins - 1));
}

/// Steps 3 to 6 of the rule; by the last block.
__device__ Sum sample(const State& state, const Candidates& candidates, float best) {
  const SampleRule rule = state.rule;
  Sum cut = 0;  // the last key kept
  if (rule.top_k != 0) cut = candidates.select([](Sum) { return Sum(1); }, [&](Sum) { return Sum(rule.top_k - 1); });
  if (rule.top_p != kTopPOff) {
    const Sum kept = cut, whole = __ldcg(&state.total);
    const Sum reached = candidates.select(
        [&](Sum key) { return key >= kept ? Sum(sample_weight(best - key_logit(key), kExponentOf1)) : 0; },
        [&](Sum total) { return top_p_target(rule, rule.top_k ? total : whole) - 1; });
    if (reached > cut) cut = reached;
  }
  const float floor = best + rule.log_min_p;
  return candidates.select(
      [&](Sum key) {
        const float logit = key_logit(key);
        return key >= cut && logit >= floor ? Sum(sample_weight(best - logit, rule.exponent)) : 0;
      },
      [&](Sum total) { return Sum(multiply_high(random_number(rule.seed, state.step), total)); });
}

__global__ void __launch_bounds__(kThreads, 2) sample_listed(Batch batch) {
  const Keys mine(batch);
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  State& state = batch.states[blockIdx.y];
  const SampleRule rule = state.rule;
  const Sum best_key = __ldcg(&state.best);
  if (is_decided(rule, best_key) || !has_filter(rule)) return;
  const float best = key_logit(best_key);

  // With top_k the sum that top_p refers to is that of all k, those below the floor included.
  const float floor = rule.top_k ? -INFINITY : best + rule.log_min_p;
  const unsigned last_bin = rule.top_k || rule.top_p != kTopPOff ? __ldcg(&state.last_bin) : kBins - 1;
  bool take[kPerThread];
  Sum n_mine = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const float logit = key_logit(mine.key[j]);
    take[j] = mine.key[j] && logit >= floor && bin_of(best - logit) <= last_bin;
    n_mine += take[j];
  }
  __shared__ unsigned begin;
  const Sums sums = block_sums(n_mine);
  if (threadIdx.x == 0) begin = sums.total ? atomicAdd(&state.n_listed, unsigned(sums.total)) : 0;
  __syncthreads();
  Sum* const listed = batch.listed + int64_t(blockIdx.y) * batch.vocab_size;
  Sum* at = listed + begin + sums.before;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j)
    if (take[j]) *at++ = mine.key[j];
  if (!last_to_arrive(&state.arrived[2])) return;

  Candidates candidates = {int(__ldcg(&state.n_listed)), listed, false};
  if (candidates.n <= kMaxSorted) {
    auto* const keys = gpu::dynamic_shared<Sum>();
    int n = 32;
    while (n < candidates.n) n *= 2;
    for (int i = int(threadIdx.x); i < n; i += kThreads) keys[i] = i < candidates.n ? __ldcg(listed + i) : 0;
    sort(keys, n);
    candidates.keys = keys;
    candidates.sorted = true;
  }
  const Sum chosen = sample(state, candidates, best);
  if (threadIdx.x != 0) return;
  state.n_listed = 0;
  emit(batch, state, int32_t(key_id(chosen)));
}

/// One block a row. Samplers of texts come behind n_seq others.
__global__ void __launch_bounds__(kThreads, 2)
    spread_sampler(State* states, int32_t* recents, int n_seq, VerifiedRows rows, const DeviceText* texts) {
  const int row = int(blockIdx.x);
  int of_text = 0, i = row;
#pragma unroll
  for (int text = 1; text < kMostVerifiedTexts; ++text)
    if (text < rows.n_texts && row >= rows.first[text]) of_text = text, i = row - rows.first[text];
  const State& from = states[n_seq + of_text];
  State& to = states[row];
  const uint32_t window = from.rule.repeat_last_n;
  const Sum n_recent = from.n_recent;
  const int32_t* known = recents + int64_t(n_seq + of_text) * kMaxDevicePenaltyTokens;
  int32_t* recent = recents + int64_t(row) * kMaxDevicePenaltyTokens;
  for (unsigned at = threadIdx.x; at < window; at += kThreads) recent[at] = known[at];
  __syncthreads();
  if (threadIdx.x != 0) return;
  to.rule = from.rule;
  to.step = from.step + (from.rule.exponent != 0 ? Sum(i) : 0);
  to.n_recent = n_recent + (window != 0 ? Sum(i) : 0);
  if (window == 0) return;
  for (int j = 0; j < i; ++j) recent[(n_recent + Sum(j)) % window] = texts[of_text].next[1 + j];
}

/// One warp a text. `states` and `recents` are those of texts.
__global__ void verify_kernel(State* states, int32_t* recents, VerifiedRows rows, const int32_t* sampled,
                              DeviceText* texts, gpu::TokenRingView ring) {
  __shared__ int32_t tokens[kMostVerifiedRows + 1];  // their number, then they
  const int of_text = int(blockIdx.x);
  if (threadIdx.x == 0) {
    int first = 0, n = 0;
#pragma unroll
    for (int text = 0; text < kMostVerifiedTexts; ++text)
      if (text == of_text) first = rows.first[text], n = rows.first[text + 1] - first;
    State* const state = states + of_text;
    DeviceText* const text = texts + of_text;
    int32_t* const recent = recents + int64_t(of_text) * kMaxDevicePenaltyTokens;
    int n_sampled = 0;
    for (bool more = true; more;) {
      int32_t token = sampled[first + n_sampled];
      more = n_sampled + 1 < n;
      if (more && text->forced.share >= 0) {
        more = double(random_number(text->forced.seed, text->forced.n) >> 11) * 0x1p-53 < text->forced.share;
        text->forced.n += 1;
        if (more) token = text->next[n_sampled + 1];
      } else if (more) {
        more = token == text->next[n_sampled + 1];
      }
      tokens[++n_sampled] = token;
    }
    tokens[0] = n_sampled;
    text->n_before = text->n_past;
    text->n_past += n_sampled;
    text->n_sampled = n_sampled;
    text->next[0] = tokens[n_sampled];
    const uint32_t window = state->rule.repeat_last_n;
    for (int i = 0; i < n_sampled; ++i) {
      text->sampled[i] = tokens[i + 1];
      if (state->rule.exponent != 0) ++state->step;
      if (window != 0) recent[state->n_recent++ % window] = tokens[i + 1];
    }
    for (int i = n_sampled; i < kMostVerifiedRows; ++i) tokens[i + 1] = 0;
  }
  __syncthreads();
  if (int(threadIdx.x) <= kMostVerifiedRows)
    gpu::put_token(ring, of_text * (kMostVerifiedRows + 1) + int(threadIdx.x), tokens[threadIdx.x]);
}

}  // namespace

DeviceSampler::DeviceSampler(int n_seq, int vocab_size, int n_ids, int n_texts)
    : n_seq_(n_seq),
      vocab_size_(vocab_size),
      n_ids_(n_ids > 0 ? n_ids : vocab_size),
      n_blocks_(int(gpu::ceil_div(n_ids_, kSlice))),
      needs_(size_t(n_seq) + size_t(n_texts)),
      states_((n_seq + n_texts) * int64_t(sizeof(State))),
      partial_(int64_t(n_seq) * n_blocks_ * int64_t(sizeof(Sum))),
      bins_(int64_t(n_seq) * kBins * int64_t(sizeof(Sum))),
      listed_(int64_t(n_seq) * vocab_size * int64_t(sizeof(Sum))),
      recent_(int64_t(n_seq + n_texts) * kMaxDevicePenaltyTokens * 4) {
  if (n_seq < 1 || n_seq > 65535 || n_texts < 0 || n_texts > kMostVerifiedTexts || vocab_size < 1 ||
      vocab_size > kMaxSampleVocab)
    throw Error(ErrorKind::failure, "samplers of " + std::to_string(n_seq) + " sequences over a vocabulary of " +
                                        std::to_string(vocab_size));
}

gpu::Allocations DeviceSampler::bytes_of(int n_seq, int vocab_size) {
  const int64_t n = n_seq;
  gpu::Allocations all;
  all.add(n * int64_t(sizeof(State)));
  all.add(n * gpu::ceil_div(vocab_size, kSlice) * int64_t(sizeof(Sum)));
  all.add(n * kBins * int64_t(sizeof(Sum)));
  all.add(n * vocab_size * int64_t(sizeof(Sum)));
  all.add(n * kMaxDevicePenaltyTokens * 4);
  return all;
}

void DeviceSampler::set(gpu::StreamHandle stream, int seq, const SamplerOptions& options,
                        std::span<const int32_t> recent) {
  if (seq < 0 || seq >= int(needs_.size()))
    throw Error(ErrorKind::failure, "sampler " + std::to_string(seq) + " of " + std::to_string(needs_.size()));
  State state = {};
  state.rule = sample_rule(options);
  state.step = options.n_sampled;
  if (state.rule.repeat_last_n > unsigned(kMaxDevicePenaltyTokens))
    throw Error(ErrorKind::usage,
                "repeat_last_n is " + std::to_string(options.repeat_last_n) + ", a device looks back " +
                    std::to_string(kMaxDevicePenaltyTokens) + " tokens (look back fewer, or run on the CPU)",
                "repeat_last_n");
  const size_t n = std::min(recent.size(), size_t(state.rule.repeat_last_n));
  state.n_recent = n;
  gpu::upload(stream, recent_.as<int32_t>() + int64_t(seq) * kMaxDevicePenaltyTokens, recent.last(n).data(),
              int64_t(4 * n));
  gpu::upload(stream, states_.as<State>() + seq, &state, int64_t(sizeof(state)));
  needs_[size_t(seq)] = {state.rule.exponent == 0 ? SampleKind::greedy
                         : has_filter(state.rule) ? SampleKind::filtered
                                                  : SampleKind::plain,
                         state.rule.repeat_last_n != 0};
}

DeviceSampler::Needs DeviceSampler::needs(int n) const {
  Needs all;
  for (const Needs& one : std::span(needs_).first(size_t(n))) {
    all.kind = std::max(all.kind, one.kind);
    all.penalty = all.penalty || one.penalty;
  }
  return all;
}

void DeviceSampler::sample(gpu::StreamHandle stream, int n, float* logits, const TokenPlaces& tokens,
                           const gpu::TokenRingView& ring) {
  if (n < 1 || n > n_seq_ || (ring.words && ring.n_seq != n))
    throw Error(ErrorKind::failure, "a token ring of " + std::to_string(ring.n_seq) + " sequences for " +
                                        std::to_string(n) + " samplers of " + std::to_string(n_seq_));
  const Batch batch = {vocab_size_,
                       n_ids_,
                       logits,
                       states_.as<State>(),
                       partial_.as<Sum>(),
                       bins_.as<Sum>(),
                       listed_.as<Sum>(),
                       recent_.as<int32_t>(),
                       tokens,
                       ring};
  const auto grid = [&](int n_blocks, size_t shared_bytes) {
    return gpu::Grid{dim3(unsigned(n_blocks), unsigned(n)), kThreads, shared_bytes, stream, true};
  };
  const Needs all = needs(n);
  if (all.penalty) gpu::launch("sample_penalise", penalise, grid(1, 0), batch, logits);
  gpu::launch("sample_best", find_best, grid(n_blocks_, 0), batch);
  if (all.kind >= SampleKind::plain)
    gpu::launch("sample_weigh", weigh, grid(n_blocks_, 2 * kBins * sizeof(unsigned)), batch);
  if (all.kind >= SampleKind::filtered)
    gpu::launch("sample_draw", sample_listed, grid(n_blocks_, kMaxSorted * sizeof(Sum)), batch);
}

void DeviceSampler::spread(gpu::StreamHandle stream, const VerifiedRows& rows, const DeviceText* texts) {
  const int n_texts = int(needs_.size()) - n_seq_;
  if (rows.n_texts < 1 || rows.n_texts > n_texts || rows.n_rows() > n_seq_)
    throw Error(ErrorKind::failure, "spreading " + std::to_string(rows.n_texts) + " samplers of " +
                                        std::to_string(n_texts) + " over " + std::to_string(rows.n_rows()) + " of " +
                                        std::to_string(n_seq_));
  for (int text = 0; text < rows.n_texts; ++text)
    for (int row = rows.first[text]; row < rows.first[text + 1]; ++row)
      needs_[size_t(row)] = needs_[size_t(n_seq_ + text)];
  gpu::launch("sample_spread", spread_sampler, {unsigned(rows.n_rows()), kThreads, 0, stream}, states_.as<State>(),
              recent_.as<int32_t>(), n_seq_, rows, texts);
}

void DeviceSampler::verify(gpu::StreamHandle stream, const VerifiedRows& rows, const int32_t* sampled,
                           DeviceText* texts, const gpu::TokenRingView& ring) {
  if (ring.n_seq != rows.n_texts * (kMostVerifiedRows + 1))
    throw Error(ErrorKind::failure, "verifying rows of " + std::to_string(rows.n_texts) + " texts into a ring of " +
                                        std::to_string(ring.n_seq));
  for (int text = 0; text < rows.n_texts; ++text)
    if (const int n = rows.first[text + 1] - rows.first[text]; n < 1 || n > kMostVerifiedRows)
      throw Error(ErrorKind::failure, "verifying " + std::to_string(n) + " rows of a text");
  gpu::launch("sample_verify", verify_kernel, {unsigned(rows.n_texts), 32, 0, stream}, states_.as<State>() + n_seq_,
              recent_.as<int32_t>() + int64_t(n_seq_) * kMaxDevicePenaltyTokens, rows, sampled, texts, ring);
}

}  // namespace ridge
