// Data of a server about itself, read from JSON that nobody vouches for: a missing or wrong field reads as zero or "".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ridge::top {

struct Props {
  std::string model, device, weights, kv, chat_template, version;
  int64_t n_ctx = 0, parallel = 0, batch_tokens = 0, weight_bytes = 0;
};

struct Sequence {
  std::string id, state, kv;
  int64_t n_prompt = 0, n_prompt_done = 0, n_cached = 0, n_generated = 0;
  double tok_s = 0;
};

/// Seconds of ops, by layer in the order of the server; layer -1 is outside the layers.
struct LayerTimes {
  int64_t layer = -1;
  std::map<std::string, double> seconds;  ///< by op
};
struct OpTimes {
  int64_t passes = 0;
  double seconds = 0;  ///< of the passes, with what lies between ops
  std::vector<LayerTimes> layers;

  /// Without the passes up to `before`; all of them where the server began anew.
  OpTimes since(const OpTimes& before) const;
};

struct ServerStatus {
  int64_t queue = 0, parallel = 0;
  std::vector<Sequence> running;
  double ms_p50 = 0, tok_s = 0, prompt_tok_s = 0;
  double planning_ms = 0, model_ms = 0, sampling_ms = 0, events_ms = 0;  ///< parts of a step, p50 each
  int64_t decode_seqs = 0, prompt_tokens = 0;                            ///< of the newest step
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0, parked = 0, cached_tokens = 0, generated_tokens = 0;
  bool times_ops = false;
  OpTimes ops;  ///< since the start
};

struct Measure {
  double norm = 0, error = 0;  ///< root of the sum of squares; relative
};
/// K or V of a layer.
struct Side {
  Measure all;
  int64_t saturated = 0;
  std::vector<Measure> pages;
};
struct Layer {
  int64_t layer = 0;
  Side k, v;
};
struct Pool {
  std::string kv, k_format, v_format;
  int64_t pages = 0, free = 0, used = 0, shared = 0, cached = 0;  ///< used: by one sequence only
  int64_t slots = 0, slots_free = 0, sequences = 0, checkpoints = 0, page_tokens = 0, page_bytes = 0, slot_bytes = 0;
  int64_t used_bytes = 0, allocated_bytes = 0, tokens = 0, bytes_per_token = 0;
  int64_t sequence_bytes = 0, sequence_f16_bytes = 0;  ///< rows of running sequences, and the same rows in f16
  double ratio = 0;
  std::vector<Layer> layers;
};

/// Read the answers to /props, /status and /kv; pools have layers where the question was ?by=page. Fail only on text
/// that is no JSON object. Lists are cut at 4096.
Result<Props> read_props(std::string_view json);
Result<ServerStatus> read_status(std::string_view json);
Result<std::vector<Pool>> read_pools(std::string_view json);

/// The text that an event of an answer adds (content of a chat, text of a completion); a failure for an error event.
struct Delta {
  std::string text, reasoning, finish;
};
Result<Delta> read_delta(std::string_view json);
/// The message of an error answer, or "status N".
std::string error_text(int status, std::string_view body);

/// "1.2 GiB"; "340".
std::string bytes_text(int64_t bytes);
std::string count_text(int64_t count);

}  // namespace ridge::top
