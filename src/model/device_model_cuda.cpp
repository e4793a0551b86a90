// The forward pass on a GPU: float32 weights and activations, every op's simplest correct kernel.
#include <cmath>
#include <map>

#include "base/rng.h"
#include "gpu/device_query.h"
#include "model/device_kv.h"
#include "model/device_model.h"
#include "op/gemm/gemm_cuda.h"
#include "op/gemm/ternary_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"
#include "op/score/score_cuda.h"

namespace ridge {
namespace {

/// A weight matrix [n_out, n_in] as float32, or as ternary codes for int8 activations.
struct DeviceMatrix {
  int64_t n_out = 0, n_in = 0;
  const float* data = nullptr;
  const int8_t* codes = nullptr;  // -1, 0, 1
  float scale = 1;                // of the codes

  int64_t bytes() const { return n_out * n_in * (codes ? 1 : 4); }
};

struct DeviceLayer {
  gpu::Buffer attn_norm, q_bias, k_bias, v_bias, q_norm, k_norm, attn_sub_norm, ffn_norm, ffn_sub_norm;
  DeviceMatrix q, k, v, o, gate, up, down;
};

/// Activations of one step; grown on demand, shared by all sessions of a model.
struct DeviceState {
  gpu::Buffer tokens, targets, cosines, sines;
  gpu::Buffer x, h, q, attn, k, v, gate, up, ternary;
  DeviceKvScratch k_scratch, v_scratch;
  gpu::PinnedBuffer host;
};

class CudaModel : public DeviceModel {
 public:
  CudaModel(int device, std::string device_name, const Config& c, const Weights& w, const Rope& rope);

  std::unique_ptr<DeviceSession> open(std::span<const KvSideConfig> k, std::span<const KvSideConfig> v,
                                      const KvRoundingTools& tools, int n_ctx, int n_ubatch, int n_seq) override;
  const std::string& name() const override { return name_; }
  int64_t matrix_bytes() const override { return matrix_bytes_; }
  int64_t free_bytes() const override {
    gpu::use_device(device_);
    return gpu::free_bytes();
  }

  gpu::Buffer vector(const std::vector<float>& values) { return gpu::to_device(stream, std::span(values)); }
  DeviceMatrix matrix(const Linear& linear, std::string_view what);

  const int device_;
  const std::string name_;
  const Config config;
  gpu::Stream stream;
  bool rope_halves;
  float rope_magnitude;
  int n_pairs;
  gpu::Buffer rope_frequency, output_norm;
  DeviceMatrix embedding, output;
  std::vector<DeviceLayer> layers;
  DeviceState state;

 private:
  std::map<const std::byte*, gpu::Buffer> matrices_;  // by the host's rows: a tied output is the embedding
  int64_t matrix_bytes_ = 0;
};

DeviceMatrix CudaModel::matrix(const Linear& linear, std::string_view what) {
  RIDGE_CHECK(linear.rows != nullptr, "{} has no rows to upload", what);
  DeviceMatrix m{.n_out = linear.n_out, .n_in = linear.n_in};
  gpu::Buffer& buffer = matrices_[linear.rows];
  const bool ternary = linear.int8_activations;
  if (buffer.bytes() == 0) {
    buffer = gpu::Buffer((ternary ? 1 : 4) * m.n_out * m.n_in);
    const int64_t rows_at_once = std::max<int64_t>(1, (int64_t(1) << 22) / m.n_in);
    std::vector<float> decoded(size_t(std::min(rows_at_once, m.n_out) * m.n_in));
    std::vector<int8_t> codes(ternary ? decoded.size() : 0);
    for (int64_t first = 0; first < m.n_out; first += rows_at_once) {
      const int64_t n = std::min(rows_at_once, m.n_out - first);
      linear.format->decode(linear.rows + first * linear.format->row_bytes(m.n_in), n * m.n_in, decoded.data());
      if (ternary) {  // i2_s blocks decode to their codes
        for (int64_t i = 0; i < n * m.n_in; ++i) codes[size_t(i)] = int8_t(decoded[size_t(i)]);
        gpu::upload(stream, buffer.as<int8_t>() + first * m.n_in, codes.data(), n * m.n_in);
      } else {
        for (int64_t i = 0; i < n * m.n_in; ++i) decoded[size_t(i)] *= linear.scale;
        gpu::upload(stream, buffer.as<float>() + first * m.n_in, decoded.data(), 4 * n * m.n_in);
      }
      stream.synchronize();
    }
  }
  if (ternary) m.codes = buffer.as<int8_t>(), m.scale = linear.scale;
  else m.data = buffer.as<float>();
  return m;
}

CudaModel::CudaModel(int device, std::string device_name, const Config& c, const Weights& w, const Rope& rope)
    : device_(device),
      name_(std::move(device_name)),
      config(c),
      rope_halves(rope.pairs == RopePairs::halves),
      rope_magnitude(rope.magnitude),
      n_pairs(int(rope.frequency.size())) {
  rope_frequency = gpu::to_device(stream, std::span(rope.frequency));
  embedding = matrix(w.embedding, "embedding");
  output = matrix(w.output, "output");
  output_norm = vector(w.output_norm);
  matrix_bytes_ = 4 * output.n_out * output.n_in;
  for (const LayerWeights& from : w.layers) {
    DeviceLayer& layer = layers.emplace_back();
    layer.attn_norm = vector(from.attn_norm);
    layer.q_bias = vector(from.q_bias);
    layer.k_bias = vector(from.k_bias);
    layer.v_bias = vector(from.v_bias);
    layer.q_norm = vector(from.q_norm);
    layer.k_norm = vector(from.k_norm);
    layer.attn_sub_norm = vector(from.attn_sub_norm);
    layer.ffn_norm = vector(from.ffn_norm);
    layer.ffn_sub_norm = vector(from.ffn_sub_norm);
    layer.q = matrix(from.q, "q");
    layer.k = matrix(from.k, "k");
    layer.v = matrix(from.v, "v");
    layer.o = matrix(from.o, "o");
    layer.gate = matrix(from.gate, "gate");
    layer.up = matrix(from.up, "up");
    layer.down = matrix(from.down, "down");
    for (const DeviceMatrix* m : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      matrix_bytes_ += m->bytes();
  }
  stream.synchronize();
}

class CudaSession : public DeviceSession {
 public:
  CudaSession(CudaModel& model, std::span<const KvSideConfig> k, std::span<const KvSideConfig> v,
              const KvRoundingTools& tools, int n_ctx, int n_ubatch, int n_seq)
      : model_(model), n_ctx_(n_ctx), n_ubatch_(n_ubatch), n_seq_(n_seq), n_active_(n_seq) {
    gpu::use_device(model.device_);
    const Config& c = model.config;
    for (int layer = 0; layer < c.n_layers; ++layer) {
      const auto open = [&](bool is_k, std::span<const KvSideConfig> sides, std::vector<DeviceKvStore>& stores) {
        stores.emplace_back(model.stream, sides[size_t(layer)], is_k, layer, c.n_kv_heads, c.head_dim, n_ctx, n_seq,
                            tools.metric_of(is_k, layer));
      };
      open(true, k, k_);
      open(false, v, v_);
    }
    model.stream.synchronize();
  }
  ~CudaSession() override = default;

  void reset(int n_active) override {
    RIDGE_CHECK(n_active > 0 && n_active <= n_seq_, "{} of {} sequences", n_active, n_seq_);
    n_active_ = n_active;
    n_past_ = 0;
    for (auto* side : {&k_, &v_})
      for (DeviceKvStore& store : *side) store.reset();
  }
  void forward(std::span<const int32_t> tokens, LogitRows rows) override;
  View2<float> logits() override;
  void score(DeviceSession* base, std::span<const int32_t> targets) override;
  std::vector<RowScore> take_scores() override;
  void fill_random(int n, uint64_t seed) override;

  int n_past() const override { return n_past_; }
  int n_ctx() const override { return n_ctx_; }
  int n_seq() const override { return n_seq_; }
  std::vector<KvStoreFacts> kv_facts(bool is_k) const override;
  int64_t kv_read_bytes(int n_keys) const override {
    int64_t bytes = 0;
    for (const auto* side : {&k_, &v_})
      for (const DeviceKvStore& store : *side) bytes += store.read_bytes(n_keys);
    return bytes;
  }

 private:
  void layer(int i, int n_tokens);
  void gemm(const DeviceMatrix& w, int64_t n_rows, const gpu::Buffer& x, const gpu::Buffer& y) {
    if (w.codes)
      device_ternary_gemm(model_.stream, n_rows, w.n_out, w.n_in, x.as<float>(), w.codes, w.scale,
                          model_.state.ternary.ensure<std::byte>(device_ternary_scratch_bytes(n_rows, w.n_in)),
                          y.as<float>());
    else device_gemm(model_.stream, n_rows, w.n_out, w.n_in, x.as<float>(), w.data, y.as<float>());
  }

  CudaModel& model_;
  const int n_ctx_, n_ubatch_, n_seq_;
  int n_active_, n_past_ = 0;
  std::vector<DeviceKvStore> k_, v_;
  gpu::Buffer logits_;  // [n_logits_, vocab_size]
  int64_t n_logits_ = 0;
  gpu::Buffer scores_;  // [n_seq * n_ctx] RowScore
  int64_t n_scores_ = 0;
};

void CudaSession::layer(int i, int n_tokens) {
  const Config& c = model_.config;
  const DeviceLayer& l = model_.layers[size_t(i)];
  DeviceState& s = model_.state;
  const gpu::Stream& stream = model_.stream;
  const int64_t n = int64_t(n_active_) * n_tokens;
  auto *x = s.x.as<float>(), *h = s.h.as<float>(), *q = s.q.as<float>(), *k = s.k.as<float>(), *v = s.v.as<float>();
  auto *attn = s.attn.as<float>(), *gate = s.gate.as<float>();

  device_rms_norm(stream, n, c.d_model, x, l.attn_norm.as<float>(), c.rms_eps, h);
  gemm(l.q, n, s.h, s.q);
  gemm(l.k, n, s.h, s.k);
  gemm(l.v, n, s.h, s.v);
  if (c.qkv_bias) {
    device_add_bias(stream, n, c.q_dim(), q, l.q_bias.as<float>());
    device_add_bias(stream, n, c.kv_dim(), k, l.k_bias.as<float>());
    device_add_bias(stream, n, c.kv_dim(), v, l.v_bias.as<float>());
  }
  if (c.qk_norm) {
    device_rms_norm(stream, n * c.n_heads, c.head_dim, q, l.q_norm.as<float>(), c.rms_eps, q);
    device_rms_norm(stream, n * c.n_kv_heads, c.head_dim, k, l.k_norm.as<float>(), c.rms_eps, k);
  }
  const auto rope = [&](int n_heads, float* rows) {
    device_apply_rope(stream, n_active_, n_tokens, n_heads, c.head_dim, model_.n_pairs, model_.rope_halves,
                      s.cosines.as<float>(), s.sines.as<float>(), rows);
  };
  rope(c.n_heads, q);
  rope(c.n_kv_heads, k);
  DeviceKvStore &k_store = k_[size_t(i)], &v_store = v_[size_t(i)];
  const DeviceKvSide k_side = k_store.append(stream, n_active_, n_past_, n_tokens, k, s.k_scratch);
  const DeviceKvSide v_side = v_store.append(stream, n_active_, n_past_, n_tokens, v, s.v_scratch);
  k_store.rotate_queries(stream, n * c.n_heads, q);
  device_attn(stream, {.n_seq = n_active_,
                       .n_heads = c.n_heads,
                       .n_kv_heads = c.n_kv_heads,
                       .head_dim = c.head_dim,
                       .n_tokens = n_tokens,
                       .n_keys = n_past_ + n_tokens,
                       .scale = 1.0f / std::sqrt(float(c.head_dim)),
                       .q = q,
                       .k = k_side,
                       .v = v_side,
                       .out = attn});
  v_store.restore_output(stream, n_active_, n_tokens, c.n_heads, attn);
  if (c.sub_norm) device_rms_norm(stream, n, c.q_dim(), attn, l.attn_sub_norm.as<float>(), c.rms_eps, attn);
  gemm(l.o, n, s.attn, s.h);
  device_add(stream, n * c.d_model, x, h);

  device_rms_norm(stream, n, c.d_model, x, l.ffn_norm.as<float>(), c.rms_eps, h);
  gemm(l.gate, n, s.h, s.gate);
  gemm(l.up, n, s.h, s.up);
  if (c.activation == Activation::relu2) device_relu2_glu(stream, n * c.d_ff, gate, s.up.as<float>());
  else device_swiglu(stream, n * c.d_ff, gate, s.up.as<float>());
  if (c.sub_norm) device_rms_norm(stream, n, c.d_ff, gate, l.ffn_sub_norm.as<float>(), c.rms_eps, gate);
  gemm(l.down, n, s.gate, s.h);
  device_add(stream, n * c.d_model, x, h);
}

void CudaSession::forward(std::span<const int32_t> tokens, LogitRows rows) {
  gpu::use_device(model_.device_);
  const Config& c = model_.config;
  const auto n = int64_t(tokens.size());
  const int n_tokens = int(n / n_active_);
  RIDGE_CHECK(n > 0 && n % n_active_ == 0 && n_tokens <= n_ubatch_ && n_past_ + n_tokens <= n_ctx_,
              "{} tokens for {} sequences at {} of {}, batch {}", n, n_active_, n_past_, n_ctx_, n_ubatch_);
  for (const int32_t token : tokens)
    RIDGE_CHECK(token >= 0 && token < c.vocab_size, "token {} of a vocabulary of {}", token, c.vocab_size);
  DeviceState& s = model_.state;
  s.x.ensure(n * c.d_model);
  s.h.ensure(n * c.d_model);
  s.q.ensure(n * c.q_dim());
  s.attn.ensure(n * c.q_dim());
  s.k.ensure(n * c.kv_dim());
  s.v.ensure(n * c.kv_dim());
  s.gate.ensure(n * c.d_ff);
  s.up.ensure(n * c.d_ff);
  s.tokens.ensure<int32_t>(n);
  s.cosines.ensure(int64_t(n_tokens) * model_.n_pairs);
  s.sines.ensure(int64_t(n_tokens) * model_.n_pairs);

  gpu::upload(model_.stream, s.tokens.as<void>(), tokens.data(), 4 * n);
  device_embed(model_.stream, n, c.d_model, s.tokens.as<int32_t>(), model_.embedding.data, s.x.as<float>());
  device_rope_tables(model_.stream, n_past_, n_tokens, model_.n_pairs, model_.rope_frequency.as<double>(),
                     model_.rope_magnitude, s.cosines.as<float>(), s.sines.as<float>());
  for (int i = 0; i < c.n_layers; ++i) layer(i, n_tokens);
  n_past_ += n_tokens;

  n_logits_ = rows == LogitRows::none ? 0 : rows == LogitRows::all ? n : n_active_;
  if (n_logits_ == 0) return;
  RIDGE_CHECK(rows == LogitRows::all || n_active_ == 1 || n_tokens == 1, "last rows of {} sequences of {} tokens",
              n_active_, n_tokens);
  const float* scored = s.x.as<float>() + (n - n_logits_) * c.d_model;
  device_rms_norm(model_.stream, n_logits_, c.d_model, scored, model_.output_norm.as<float>(), c.rms_eps,
                  s.h.as<float>());
  logits_.ensure(n_logits_ * c.vocab_size);
  gemm(model_.output, n_logits_, s.h, logits_);
}

View2<float> CudaSession::logits() {
  gpu::use_device(model_.device_);
  const int64_t vocab = model_.config.vocab_size;
  float* host = model_.state.host.ensure(n_logits_ * vocab);
  gpu::download(model_.stream, host, logits_.as<void>(), 4 * n_logits_ * vocab);
  model_.stream.synchronize();
  return {host, n_logits_, vocab};
}

void CudaSession::score(DeviceSession* base, std::span<const int32_t> targets) {
  gpu::use_device(model_.device_);
  const auto* other = static_cast<CudaSession*>(base);
  const auto n = int64_t(targets.size());
  const int64_t capacity = int64_t(n_seq_) * n_ctx_;
  RIDGE_CHECK(n == n_logits_ && (!other || other->n_logits_ == n) && n_scores_ + n <= capacity,
              "{} targets for {} rows, {} of {} scores waiting", n, n_logits_, n_scores_, capacity);
  for (const int32_t target : targets)
    RIDGE_CHECK(target >= 0 && target < model_.config.vocab_size, "target {} of {}", target, model_.config.vocab_size);
  auto* const scores = scores_.ensure<RowScore>(capacity);
  auto* const on_device = model_.state.targets.ensure<int32_t>(n);
  gpu::upload(model_.stream, on_device, targets.data(), 4 * n);
  device_score(model_.stream, n, model_.config.vocab_size, other ? other->logits_.as<float>() : nullptr,
               logits_.as<float>(), on_device, scores + n_scores_);
  n_scores_ += n;
}

std::vector<RowScore> CudaSession::take_scores() {
  gpu::use_device(model_.device_);
  std::vector<RowScore> scores(static_cast<size_t>(n_scores_));
  if (n_scores_ > 0)
    gpu::download(model_.stream, scores.data(), scores_.as<void>(), n_scores_ * int64_t(sizeof(RowScore)));
  model_.stream.synchronize();
  n_scores_ = 0;
  return scores;
}

void CudaSession::fill_random(int n, uint64_t seed) {
  gpu::use_device(model_.device_);
  RIDGE_CHECK(n_seq_ == 1 && n <= n_ctx_, "{} random rows for {} sequences of {}", n, n_seq_, n_ctx_);
  reset(1);
  constexpr int kBatch = 256;
  const Config& c = model_.config;
  std::vector<float> rows(size_t(kBatch) * size_t(c.kv_dim()));
  DeviceState& s = model_.state;
  for (int i = 0; i < c.n_layers; ++i)
    for (const bool is_k : {true, false}) {
      Rng rng(seed + 2 * uint64_t(i) + (is_k ? 0 : 1));
      for (float& x : rows) x = float(rng.uniform() * 3.46 - 1.73);
      for (int past = 0; past < n; past += kBatch) {
        gpu::upload(model_.stream, s.k.ensure(int64_t(rows.size())), rows.data(), int64_t(4 * rows.size()));
        (is_k ? k_ : v_)[size_t(i)].append(model_.stream, 1, past, std::min(kBatch, n - past), s.k.as<float>(),
                                           s.k_scratch);
      }
    }
  n_past_ = n;
  model_.stream.synchronize();
}

std::vector<KvStoreFacts> CudaSession::kv_facts(bool is_k) const {
  gpu::use_device(model_.device_);
  std::vector<KvStoreFacts> facts;
  for (const DeviceKvStore& store : is_k ? k_ : v_)
    facts.push_back({store.config(), store.allocated_bytes() / n_seq_, store.saturated(model_.stream)});
  return facts;
}

std::unique_ptr<DeviceSession> CudaModel::open(std::span<const KvSideConfig> k, std::span<const KvSideConfig> v,
                                               const KvRoundingTools& tools, int n_ctx, int n_ubatch, int n_seq) {
  for (const auto& sides : {k, v})
    for (const KvSideConfig& side : sides)
      if (side.policy.recent != "f16" && side.policy.recent != "i8r")
        throw Error(
            ErrorKind::usage,
            fmt::format("--device cuda keeps the window in f16 or i8r, not {} (use recent=i8r)", side.policy.recent));
  RIDGE_CHECK(int(k.size()) == config.n_layers && int(v.size()) == config.n_layers && n_seq > 0, "{} layers", k.size());
  return std::make_unique<CudaSession>(*this, k, v, tools, n_ctx, std::min(n_ubatch, n_ctx), n_seq);
}

/// Refuses models the kernels here cannot run.
void check_supported(const Config& c) {
  if (c.head_dim % 4 != 0 || c.head_dim > kMaxDeviceHeadDim)
    throw Error(ErrorKind::usage,
                fmt::format("--device cuda needs a head_dim that is a multiple of 4 up to {}, this model has {} (use "
                            "--device cpu)",
                            kMaxDeviceHeadDim, c.head_dim));
}

int64_t float_bytes(const Weights& w) {
  int64_t bytes = 4 * w.embedding.n_out * w.embedding.n_in;
  if (w.output.rows != w.embedding.rows) bytes += 4 * w.output.n_out * w.output.n_in;
  for (const LayerWeights& l : w.layers)
    for (const Linear* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      bytes += (m->int8_activations ? 1 : 4) * m->n_out * m->n_in;
  return bytes;
}

}  // namespace

std::unique_ptr<DeviceModel> open_device_model(int device, const Config& config, const Weights& weights,
                                               const Rope& rope) {
  const gpu::DeviceReport report = gpu::query_devices();
  if (device < 0 || size_t(device) >= report.devices.size())
    throw Error(ErrorKind::no_device,
                fmt::format("device cuda:{} is not available: {} (use --device cpu)", device,
                            report.devices.empty() ? report.why_none
                                                   : fmt::format("there are {} devices", report.devices.size())));
  check_supported(config);
  gpu::use_device(device);
  const int64_t needed = float_bytes(weights), free = gpu::free_bytes();
  if (needed > free)
    throw Error(
        ErrorKind::no_memory,
        fmt::format("device cuda:{}: the weights need {:.1f} GiB as float32, {:.1f} GiB are free (use a smaller "
                    "model or --device cpu)",
                    device, double(needed) / (1 << 30), double(free) / (1 << 30)));
  return std::make_unique<CudaModel>(device, fmt::format("cuda:{} {}", device, report.devices[size_t(device)].name),
                                     config, weights, rope);
}

}  // namespace ridge
