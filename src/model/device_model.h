// A model on a device: weights uploaded once, sessions of any number of equal sequences. No CUDA header needed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/forward.h"
#include "op/score/row_score.h"
#include "ridge/engine.h"

namespace ridge {

inline constexpr int kDrawnSteps = 16;

/// n_seq timelines of one model with equal lengths. Calls queue work; what returns data waits for it.
class DeviceSession {
 public:
  virtual ~DeviceSession() = default;

  /// Forgets all tokens. From here the first n_active sequences run.
  virtual void reset(int n_active) = 0;
  /// Appends tokens [n_active, n_tokens] (valid ids) and leaves the logits of the rows asked for on the device,
  /// [n_active, n_tokens or 1, vocab_size]. `last` of several sequences is for one token only.
  virtual void forward(std::span<const int32_t> tokens, LogitRows rows) = 0;
  /// The logits of the last forward(), on the host; valid until the next call.
  virtual View2<float> logits() = 0;
  /// Scores the logits of the last forward() against those of `base` (may be null; same rows). Results queue up.
  virtual void score(DeviceSession* base, std::span<const int32_t> targets) = 0;
  /// All results queued since the last call, in order.
  virtual std::vector<RowScore> take_scores() = 0;
  /// Pretends that `n` tokens are cached, with the pseudo-random rows of KvStore::fill_random().
  virtual void fill_random(int n, uint64_t seed) = 0;
  /// The same with random codes, made on the device in no time: rows unlike any other store's. Falls to fill_random()
  /// where rows are not in tiles.
  virtual void fill_codes(int n, uint64_t seed) = 0;

  /// Steps that feed themselves (engine/run_ahead.h), for all active sequences. start_drawing() draws, from the logits
  /// of the last forward() of one row a sequence, the tokens of step 0; each advance() appends the tokens drawn last
  /// and draws the next. Both only queue. `recent` are the tokens the penalty of every sequence knows.
  virtual void start_drawing(const SamplerOptions& options, std::span<const int32_t> recent) = 0;
  virtual void advance() = 0;
  /// The tokens of a step, if they have come; at most kDrawnSteps steps may be unread.
  virtual bool read_drawn(int64_t step, std::span<int32_t> tokens) = 0;
  virtual bool idle() = 0;
  virtual void finish() = 0;
  /// Forgets the last n tokens, at most max_rewind(). Exact: the session is as if it had never gone further.
  virtual void rewind(int n) = 0;
  virtual int max_rewind() const = 0;

  virtual int n_past() const = 0;
  virtual int n_ctx() const = 0;
  virtual int n_seq() const = 0;
  /// Of every layer's side: bytes are of one sequence, saturated values over all of them.
  virtual std::vector<KvStoreFacts> kv_facts(bool is_k) const = 0;
  /// Bytes of the cache one sequence reads in a decode step with n_keys positions.
  virtual int64_t kv_read_bytes(int n_keys) const = 0;
  /// "op=kernel" of a decode step and a batch.
  virtual std::vector<std::string> kernels() const = 0;
};

/// Choices of kernels, for measurements.
struct DeviceOptions {
  int int4_planes = 2;  ///< bytes an activation of int4_g128 is rounded to: 1 or 2
  bool overlap = true;  ///< programmatic dependent launch inside a decode step
};
/// From "op=name" entries: int4=1plane|2planes, launch=plain|overlap. Throws usage, naming the choices.
DeviceOptions parse_device_kernels(std::span<const std::string> kernels);

class DeviceModel {
 public:
  virtual ~DeviceModel() = default;
  /// `k` and `v` have one entry per layer. A step takes at most n_seq * n_ubatch tokens.
  virtual std::unique_ptr<DeviceSession> open(std::span<const KvSideConfig> k, std::span<const KvSideConfig> v,
                                              const KvRoundingTools& tools, int n_ctx, int n_ubatch, int n_seq) = 0;
  virtual const std::string& name() const = 0;  ///< "cuda:0 NVIDIA H200"
  virtual int64_t matrix_bytes() const = 0;     ///< what a decode step reads of the weights, as held there
  virtual int64_t free_bytes() const = 0;       ///< memory that can still be allocated
};

/// Uploads a model. Throws Error: no_device without CUDA or without this device, no_memory before anything is copied
/// when the weights cannot fit, usage for what the device path does not do. `weights` and `rope` need live no longer.
std::unique_ptr<DeviceModel> open_device_model(int device, const Config& config, const Weights& weights,
                                               const Rope& rope, const DeviceOptions& options);

}  // namespace ridge
