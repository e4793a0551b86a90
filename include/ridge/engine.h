// The engine: load a Model, open Sessions on it, prefill and decode.
//
// Opaque types, no tensors, no device headers. Everything here throws ridge::Error (ridge/error.h) with a message that
// says what, where, why and what to do next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ridge/error.h"

namespace ridge {

class Engine;
class Speculation;

struct LoadOptions {
  /// "cpu", "cuda[:N]", or "cuda:N,M,...": devices that share the model. A missing device is an error, not a reason to
  /// use the CPU.
  std::string device = "cpu";
  int n_stages = 1;                  ///< of several devices: equal groups, in order, that have some of the layers each
  int n_threads = 0;                 ///< 0: one per available processor
  std::string isa;                   ///< limit: "scalar", "avx2", "avx512", "neon"; empty: the best this processor runs
  std::vector<std::string> kernels;  ///< "op=name" each: force a kernel, see `ridge explain`; on a device gemv=, gemm=,
                                     ///< launch=plain or launch=overlap
  bool float_activations = false;    ///< BitNet: keep activations in float, to compare with references
  double rank_timeout_s = 60;        ///< of several devices: longest time that one may wait for another in a step
  /// Of a model on one GPU: experts of the first so many layers stay in host memory, and the CPU computes them.
  int n_cpu_moe = 0;
  /// The same of as many of the first layers as leave at most so many GiB of experts for the GPU; below 0: no limit.
  double moe_device_gib = -1;
  /// Of layers whose experts are in host memory, so many GiB of single experts are on the GPU as well: those that are
  /// chosen most often, as many of each layer. They change with the text. 0: none.
  double moe_cache_gib = 0;
  bool whole = false;  ///< in a process that is a rank of a job: the whole model here, not a slice of it
};

/// What a loaded model is; every number is exact.
struct ModelInfo {
  std::string path;           ///< as given to load()
  std::string name;           ///< general.name, or the folder's name
  std::string arch;           ///< llama, qwen2, qwen3, bitnet-b1.58 ...
  std::string weight_format;  ///< format of most weights of the matrices, e.g. "q4_0"
  int n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, d_model = 0, d_ff = 0, vocab_size = 0, n_ctx_train = 0;
  int n_cached_sides = 2;   ///< rows of a token and kv head: K and V; 1 where one row is both
  int n_cached_layers = 0;  ///< with rows in the cache; the others keep a state of fixed size
  struct CachedHeads {
    int head_dim = 0, n_heads = 0;
  };
  std::vector<CachedHeads> cached_heads;  ///< what a token has in the cache: of each head_dim so many rows, K and V of
                                          ///< all KV heads and layers together
  /// Values of a token in the cache.
  int64_t cached_values() const {
    int64_t n = 0;
    for (const CachedHeads& heads : cached_heads) n += int64_t(heads.head_dim) * heads.n_heads;
    return n;
  }
  int n_ranks = 1;   ///< that hold the model together: heads, d_ff, threads and a step's bytes are those of one,
                     ///< but where the first rank has the command
  int n_stages = 1;  ///< of ranks or devices, over which the layers are split; of ranks that are processes cached
                     ///< layers and bytes are those of one
  bool tied_output = false;
  int64_t n_params = 0;
  int64_t weight_bytes = 0;         ///< all weight tensors as stored
  int64_t decode_weight_bytes = 0;  ///< weight bytes one decode step must read
  int n_cpu_moe = 0;                ///< layers on a device whose experts stay in host memory
  int n_cached_experts = 0;         ///< of each of them, that the device has as well
  int64_t host_step_bytes = 0;      ///< weight bytes of them that a decode step reads there, not in the above; of
                                    ///< experts that the device has as well too
  std::string packing;              ///< what loading made of a checkpoint's packed matrices; "": none were
  std::vector<std::string> unread_fields;  ///< of config.json: no reader of such models knows them
  bool has_tokenizer = false;
  bool add_bos = false;
  std::string device;  ///< "cpu", or the device by number and name
  std::string isa;     ///< instruction set in use; empty on a device
  int n_threads = 0;
  double load_seconds = 0;
  int64_t packed_bytes = 0;  ///< matrices in the order that this processor's kernels read; 0 on a device
  double pack_seconds = 0;   ///< of load_seconds; reading the file's pages included, 0 where matrices are made packed
};

/// Choices of experts that are in host memory.
struct ExpertHits {
  int64_t n_chosen = 0;  ///< in all layers, but by tokens of prompts that bring their experts to the GPU
  int64_t n_found = 0;   ///< of experts that the GPU had as well
  double share() const { return n_chosen > 0 ? double(n_found) / double(n_chosen) : 0; }
};

class Model {
 public:
  /// `path`: a GGUF file (first shard), a Hugging Face directory, or `synth:SHAPE[@layers=N][@weights=FORMAT][@mtp=1]`
  /// for random weights at a true shape (see synth_shapes()), with an MTP head.
  static Model load(const std::string& path, const LoadOptions& options = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelInfo& info() const;
  /// Since loading, with LoadOptions::moe_cache_gib; else zeros. Waits for steps that are under way.
  ExpertHits expert_hits() const;

  /// Text to token ids; see io/tokenizer.h. Throws usage when the model has no tokenizer.
  std::vector<int32_t> tokenize(std::string_view text, bool add_special = true, bool parse_special = false) const;
  /// Raw bytes of one token; control tokens are empty unless `special`. Feed a Utf8Stream to print.
  std::string piece(int32_t token, bool special = false) const;
  std::string detokenize(std::span<const int32_t> tokens, bool special = false) const;
  bool is_end(int32_t token) const;  ///< end of generation
  std::optional<int32_t> bos() const;

  /// What is behind it (src/engine/engine.h), for programs built with Ridge's own sources.
  Engine& engine() const { return *engine_; }

 private:
  explicit Model(std::unique_ptr<Engine> engine);
  std::unique_ptr<Engine> engine_;
};

/// Names accepted after `synth:`.
std::vector<std::string> synth_shapes();

/// One side of the KV cache. What is not set follows the format's own policy (docs/formats/kv.md).
struct KvSideOptions {
  std::string format = "f16";
  std::optional<std::string> rotation;  ///< none, planar, hadamard
  std::optional<bool> centre;           ///< unset: as the format has it; the rotor formats centre K
  std::optional<int> window;            ///< newest tokens kept in format `recent`; a multiple of 32
  std::optional<int> sinks;             ///< first tokens kept in f16
  std::optional<std::string> scale;     ///< rule of the scales, one that the format offers: absmax, norm, lsq, unbiased
  std::optional<std::string> rounding;  ///< nearest, weighted
  std::optional<std::string> recent;    ///< format of the tokens in the window
};

/// Layers first to last, counted from 0, with a cache of their own kind.
struct KvLayerOptions {
  int first = 0, last = 0;
  KvSideOptions k, v;
};

struct SessionOptions {
  int n_ctx = 0;     ///< capacity in tokens; 0: the model's trained context
  int n_ubatch = 0;  ///< tokens per prefill step; 0: 512, on a GPU 2048
  KvSideOptions k, v;
  std::vector<KvLayerOptions> kv_layers;  ///< over k and v; no layer twice
};

/// Effective cache settings of one side, read back from the cache itself. Bytes are sums over layers; where layers
/// differ the settings are those of most layers (KvReport::layers has all) and bits_per_value is the mean.
struct KvSideReport {
  std::string format;
  std::string rotation;
  std::string scale;  ///< rule of the scales, "none" where there are none
  std::string rounding;
  std::string recent;  ///< format of the tokens in the window
  bool centre = false;
  int window = 0;
  int sinks = 0;
  int64_t held_bytes_4k = 0;    ///< rows of 4096 tokens as a decode step reads them: coded, window and sinks
  double bits_per_value = 0;    ///< of a coded row, scales included
  int64_t bytes_per_token = 0;  ///< one more coded token over all layers
  int64_t fixed_bytes =
      0;  ///< sinks, window, centres, scales of heads and states over all layers, whatever the context
  int64_t allocated_bytes = 0;  ///< by the allocator, at n_ctx
  int64_t saturated = 0;        ///< values clamped while coding so far; 0 is normal
};
/// Consecutive layers with the same settings.
struct KvLayersReport {
  int first = 0, last = 0;
  KvSideReport k, v;
};
struct KvReport {
  KvSideReport k, v;
  int n_ctx = 0;
  std::vector<KvLayersReport> layers;  ///< all layers in order; one entry when none differs
  bool layers_differ() const { return layers.size() > 1; }
  /// Bytes of both sides when the cache holds n tokens: what one decode step reads.
  int64_t bytes_per_token() const { return k.bytes_per_token + v.bytes_per_token; }
};

/// Logits of consecutive positions: row i belongs to token index `first + i` of the prefilled span.
using LogitsCallback = std::function<void(int first, int n_rows, const float* logits)>;  // [n_rows, vocab_size]

/// Hidden states behind the model's last norm, as the output matrix reads them: row i belongs to token index `first +
/// i` of the tokens read.
using HiddenCallback = std::function<void(int first, int n_rows, const float* hidden)>;  // [n_rows, d_model]

/// Sampler chain in llama.cpp's order: repeat penalty, top-k, top-p, min-p, temperature, sampling. temperature <= 0 is
/// greedy: the first index of the largest logit, whatever the other settings but the penalty. A logit of -infinity is a
/// token that never comes; NaN, +infinity and nothing but -infinity are errors (bad_file). Logits, settings and the
/// number of tokens sampled so far decide the token, on every device.
struct SamplerOptions {
  float temperature = 0.8f;
  int top_k = 40;               ///< 0: off
  float top_p = 0.95f;          ///< 1: off
  float min_p = 0.05f;          ///< 0: off
  float repeat_penalty = 1.0f;  ///< 1: off
  int repeat_last_n = 64;       ///< tokens the penalty looks back
  uint64_t seed = 0;
  uint64_t n_sampled = 0;  ///< tokens of this text that were sampled before: a new sampler goes on with the next number
};

/// What the tokens of a text may be: that it has a structure, for example. Used by one thread at a time. Throws Error
/// where it cannot go on.
class TokenRule {
 public:
  virtual ~TokenRule() = default;
  /// Sets the logits [vocab_size] of all tokens that may not come next to -infinity. When so few tokens are left that
  /// the text must be brought to its end, only those that do so may come.
  virtual void mask(std::span<float> logits, int tokens_left) = 0;
  /// Moves on by a token that was sampled; returns the token that takes its place in the text, itself but for reasons
  /// that the rule documents.
  virtual int32_t accept(int32_t token) = 0;
  /// Whether nothing but an end token may follow.
  virtual bool complete() const = 0;
};

/// One mutable timeline of tokens over a model. Sessions of one model run one at a time.
class Session {
 public:
  Session(const Model& model, const SessionOptions& options);
  Session(Session&&) noexcept;
  ~Session();

  /// Appends `tokens` (batched) and returns the logits after the last one, [vocab_size]; valid until the next call.
  std::span<const float> prefill(std::span<const int32_t> tokens);
  /// As prefill, handing the logits of every position to `logits` in order, at most n_ubatch rows at a time.
  void prefill(std::span<const int32_t> tokens, const LogitsCallback& logits);
  /// As prefill, handing the hidden state of every position to `hidden` in order, at most n_ubatch rows at a time:
  /// embeddings of texts are made of them.
  void embed(std::span<const int32_t> tokens, const HiddenCallback& hidden);
  /// Appends one token, returns the logits after it, [vocab_size]; valid until the next call.
  std::span<const float> decode(int32_t token);
  /// Samples tokens, starting from the last call's logits, and hands them to on_token one by one, until it returns
  /// false, n_max were sampled or the context is full; every token but the last is appended. Throws bad_file where
  /// logits are not finite; the session is empty then. A device samples by itself, a few steps ahead of on_token, but
  /// for a text with a rule. `recent` are the tokens the penalty knows. Returns how many were handed on.
  int generate(const SamplerOptions& options, std::span<const int32_t> recent, int n_max,
               const std::function<bool(int32_t)>& on_token, TokenRule* rule = nullptr);
  /// From here on passes of generate() take several tokens where draft tokens are accepted (engine/decode/text.h), to
  /// the same text and the same cache, but for a device's rounding; null ends it. `recent` is then the text that
  /// proposers go by.
  void speculate(Speculation* speculation);
  /// Forgets all tokens and calibration.
  void reset();

  /// Writes the cache to a file (docs/formats/kv-state.md) that appears only when it is complete.
  void save(const std::string& path) const;
  /// Takes over a saved cache. The model, every cache setting and the version must be those it was saved with; throws
  /// bad_file naming the first field that differs, with this session as it was. The next step is bit-identical to the
  /// one after save().
  void restore(const std::string& path);
  /// Becomes a copy of `other`, a session on the same model with the same cache settings; throws usage otherwise.
  void copy_from(const Session& other);
  /// Forgets all but the first n tokens. Bit-identical to never having gone further as long as the exact rows that the
  /// shorter sequence needs are still held: always without a window, and for up to 32 tokens with one. Beyond that
  /// coded rows stand in for exact ones. Throws usage below 64 tokens when a centre or scales of heads were set at 64
  /// (0 is allowed), and where layers with a sliding window would see rows again that they gave back: these are held
  /// for up to 32 tokens back.
  void truncate(int n);
  /// Makes room: forgets n_discard tokens after the first n_keep and moves the later ones down, K turned to the new
  /// positions by RoPE. Lossy: rows are rounded again, coded K rows decoded and coded again. Throws usage where layers
  /// with a sliding window would see rows that they gave back.
  void shift(int n_keep, int n_discard);

  /// Pretends that `n` tokens are cached, with valid rows of no text in every layer, made quickly: for benchmarks.
  void fill(int n, uint64_t seed);

  int n_past() const;
  int n_ctx() const;
  KvReport kv_report() const;
  /// Bytes the next decode step must read at least (weights and cached rows), from the ops' declared work. Of several
  /// processes that hold the model together: what this one reads.
  int64_t decode_read_bytes() const;
  /// "op=kernel" for every op of a decode step and of a prefill step, as selected.
  std::vector<std::string> kernels() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Sampler {
 public:
  /// Throws usage on NaN or values out of range, naming the field.
  Sampler(const SamplerOptions& options, int vocab_size);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  /// The next token; remembers it for the penalty. Throws bad_file where logits are not finite.
  int32_t sample(std::span<const float> logits);
  /// Tells the penalty about tokens that were not sampled (the prompt).
  void accept(std::span<const int32_t> tokens);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class StopReason : uint8_t { end_token, stop_string, max_tokens, context_full, interrupted };
std::string_view stop_reason_name(StopReason reason);

struct GenerateOptions {
  int max_tokens = -1;            ///< -1: until the context is full
  std::vector<std::string> stop;  ///< generation ends before any of these appears in the output
  bool ignore_eos = false;
  SamplerOptions sampler;
  TokenRule* rule = nullptr;        ///< null: any text; one that is complete ends it
  int n_held = 0;                   ///< tokens of the prompt that the session holds already; less than all
  bool ids = false;                 ///< the text is the tokens' ids, a space behind each: a model without a tokenizer
  std::vector<int32_t> marks = {};  ///< control tokens that on_mark hears of
  std::function<bool(std::string_view)> on_mark =
      nullptr;  ///< their spelling, in its place between the texts; as on_text
  /// Reads the prompt's tokens into the session; returns how many: fewer than all end the generation. Null: prefill().
  std::function<int(std::span<const int32_t>)> read = nullptr;
  std::function<bool()> interrupted = nullptr;  ///< asked behind every token: whether the text ends there
};
struct GenerateResult {
  std::vector<int32_t> tokens;  ///< all generated tokens, the one that ended it included
  std::string text;             ///< what was streamed
  StopReason reason = StopReason::max_tokens;
  std::string stop;  ///< the stop string that matched
  double prefill_seconds = 0, decode_seconds = 0;
  int n_prompt = 0,
      n_decoded = 0;  ///< tokens that were read; n_decoded tokens took decode_seconds, a step each but with speculation
};
/// Reads what the session does not hold of `prompt` (not empty), and generates. `on_text` gets whole UTF-8 sequences as
/// they become final and returns false to stop. Text that may still turn into a stop string is held back.
GenerateResult generate(Session& session, const Model& model, std::span<const int32_t> prompt,
                        const GenerateOptions& options, const std::function<bool(std::string_view text)>& on_text);

}  // namespace ridge
