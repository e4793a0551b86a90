// The forward pass on a CUDA device.
#include <cmath>
#include <optional>

#include "base/rng.h"
#include "gpu/launch_log.h"
#include "model/cuda_session.h"
#include "op/attn/prefill_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"
#include "op/score/score_cuda.h"

namespace ridge {
namespace {

/// For the launch log: an op on rows that stay in the device's cache.
gpu::LoggedOp small_op(std::string_view op, int64_t n_floats, int layer = -1) {
  return {.op = op, .layer = layer, .read_bytes = 4 * n_floats, .write_bytes = 4 * n_floats};
}

}  // namespace

CudaSession::CudaSession(CudaModel& model, std::span<const KvSideConfig> k, std::span<const KvSideConfig> v,
                         const KvRoundingTools& tools, int n_ctx, int n_ubatch, int n_seq)
    : model_(model),
      n_ctx_(n_ctx),
      n_ubatch_(n_ubatch),
      n_seq_(n_seq),
      n_active_(n_seq),
      sampler_(n_seq, model.config.vocab_size),
      ring_(n_seq, kDrawnSteps) {
  gpu::use_device(model.device);
  const Config& c = model.config;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const auto open = [&](bool is_k, std::span<const KvSideConfig> sides, std::vector<DeviceKvStore>& stores) {
      const KvSideConfig& side = sides[size_t(layer)];
      stores.emplace_back(model.stream, side, is_k, layer, c.n_kv_heads, c.head_dim, n_ctx, n_seq,
                          tools.metric_of(is_k, layer));
      const DeviceKvStore& store = stores.back();
      all_tiled_ = all_tiled_ && store.tiled();
      if (!store.tiled()) step_unsupported_ = "a format without tiles";
      else if (const char* why =
                   decode_append_unsupported(store.append_side().kind, side.policy.scale, store.layout().retention))
        step_unsupported_ = why;
      else if (store.layout().ring_rows > 0 && store.layout().retention.window == 0)
        step_unsupported_ = "centred rows without a window";
    };
    open(true, k, k_);
    open(false, v, v_);
    if (const char* why =
            tile_attn_unsupported(c.head_dim, k_.back().config().policy.sinks, v_.back().config().policy.sinks))
      step_unsupported_ = why;
  }
  model.stream.synchronize();
}

void CudaSession::reset(int n_active) {
  RIDGE_CHECK(n_active > 0 && n_active <= n_seq_, "{} of {} sequences", n_active, n_seq_);
  n_active_ = n_active;
  n_past_ = 0;
  step_.past = -1;
  for (auto* side : {&k_, &v_})
    for (DeviceKvStore& store : *side) store.reset(model_.stream);
}

int64_t CudaSession::kv_read_bytes(int n_keys) const {
  int64_t bytes = 0;
  for (const auto* side : {&k_, &v_})
    for (const DeviceKvStore& store : *side) bytes += store.read_bytes(n_keys);
  return bytes;
}

void CudaSession::forward(std::span<const int32_t> tokens, LogitRows rows) {
  gpu::use_device(model_.device);
  const Config& c = model_.config;
  const auto n = int64_t(tokens.size());
  const int n_tokens = int(n / n_active_);
  RIDGE_CHECK(n > 0 && n % n_active_ == 0 && n_tokens <= n_ubatch_ && n_past_ + n_tokens <= n_ctx_,
              "{} tokens for {} sequences at {} of {}, batch {}", n, n_active_, n_past_, n_ctx_, n_ubatch_);
  for (const int32_t token : tokens)
    RIDGE_CHECK(token >= 0 && token < c.vocab_size, "token {} of a vocabulary of {}", token, c.vocab_size);
  if (n_tokens == 1 && step_unsupported() == nullptr) step_forward(tokens, rows != LogitRows::none);
  else batch_forward(tokens, n_tokens, rows);
}

gpu::LoggedOp CudaSession::append_op(int layer, int n_tokens) const {
  const Config& c = model_.config;
  const DeviceKvStore &k = k_[size_t(layer)], &v = v_[size_t(layer)];
  const int64_t n = int64_t(n_active_) * n_tokens;
  return {.op = "append",
          .what = fmt::format("{}/{}", k.config().format->name, v.config().format->name),
          .layer = layer,
          .read_bytes = 4 * n * (c.q_dim() + 2 * c.kv_dim()),
          .write_bytes = n * (4 * c.q_dim() + c.n_kv_heads * (k.layout().row_bytes + v.layout().row_bytes))};
}

gpu::LoggedOp CudaSession::attention_op(int layer, int n_tokens) const {
  const Config& c = model_.config;
  const DeviceKvStore &k = k_[size_t(layer)], &v = v_[size_t(layer)];
  const int64_t n = int64_t(n_active_) * n_tokens, n_keys = n_past_ + n_tokens;
  const int64_t pairs = int64_t(n_tokens) * n_past_ + int64_t(n_tokens) * (n_tokens + 1) / 2;
  return {.op = "attention",
          .what = fmt::format("{}/{}/{} {}/{}", c.n_heads, c.n_kv_heads, c.head_dim, k.config().format->name,
                              v.config().format->name),
          .layer = layer,
          .read_bytes = n_active_ * (k.read_bytes(int(n_keys)) + v.read_bytes(int(n_keys))) + 4 * n * c.q_dim(),
          .write_bytes = 4 * n * c.q_dim(),
          .flops = 4 * n_active_ * c.q_dim() * pairs};
}

void CudaSession::finish_layer(const DeviceLayer& l, const LayerRows& rows, ProductScratch& scratch) {
  const Config& c = model_.config;
  const auto run = [&](const DeviceProduct& product, const float* in, const gpu::Buffer* norm, ProductOutput output,
                       float* out) {
    product.run(model_.stream,
                {.n_tokens = rows.n,
                 .x = in,
                 .norm_weight = norm ? norm->as<float>() : nullptr,
                 .norm_eps = c.rms_eps,
                 .output = output,
                 .y = {out},
                 .overlap = rows.overlap,
                 .layer = rows.layer},
                scratch);
  };
  run(l.o, rows.attn, c.sub_norm ? &l.attn_sub_norm : nullptr, ProductOutput::add, rows.x);
  run(l.gate_up, rows.x, &l.ffn_norm,
      c.activation == Activation::relu2 ? ProductOutput::relu2_glu : ProductOutput::silu_glu, rows.ff);
  run(l.down, rows.ff, c.sub_norm ? &l.ffn_sub_norm : nullptr, ProductOutput::add, rows.x);
}

// --- Many tokens a sequence ---

void CudaSession::batch_layer(int i, int n_tokens) {
  const Config& c = model_.config;
  const DeviceLayer& l = model_.layers[size_t(i)];
  BatchState& s = batch_;
  const gpu::Stream& stream = model_.stream;
  const int64_t n = int64_t(n_active_) * n_tokens;
  auto *x = s.x.as<float>(), *q = s.q.as<float>(), *k = s.k.as<float>(), *v = s.v.as<float>();
  auto *attn = s.attn.as<float>(), *ff = s.ff.as<float>();

  l.qkv.run(stream,
            {.n_tokens = n,
             .x = x,
             .norm_weight = l.attn_norm.as<float>(),
             .norm_eps = c.rms_eps,
             .y = {q, k, v},
             .layer = i},
            s.products);
  const int64_t qkv_floats = n * (c.q_dim() + 2 * c.kv_dim());
  if (c.qk_norm) {
    const gpu::OpRange range([&] { return small_op("norm", qkv_floats, i); });
    device_rms_norm(stream, n * c.n_heads, c.head_dim, q, l.q_norm.as<float>(), c.rms_eps, q);
    device_rms_norm(stream, n * c.n_kv_heads, c.head_dim, k, l.k_norm.as<float>(), c.rms_eps, k);
  }
  const auto rope = [&](int n_heads, float* rows) {
    device_apply_rope(stream, n_active_, n_tokens, n_heads, c.head_dim, model_.n_pairs, model_.rope_halves,
                      s.cosines.as<float>(), s.sines.as<float>(), rows);
  };
  {
    const gpu::OpRange range([&] { return small_op("rope", qkv_floats, i); });
    rope(c.n_heads, q);
    rope(c.n_kv_heads, k);
  }
  DeviceKvStore &k_store = k_[size_t(i)], &v_store = v_[size_t(i)];
  DeviceKvSide k_side, v_side;
  {
    const gpu::OpRange range([&] { return append_op(i, n_tokens); });
    k_side = k_store.append(stream, n_active_, n_past_, n_tokens, k, s.k_scratch);
    v_side = v_store.append(stream, n_active_, n_past_, n_tokens, v, s.v_scratch);
  }
  std::optional<gpu::OpRange> range(std::in_place, [&] { return attention_op(i, n_tokens); });
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
  range.reset();
  finish_layer(l, {.n = n, .x = x, .attn = attn, .ff = ff, .layer = i}, s.products);
}

void CudaSession::batch_forward(std::span<const int32_t> tokens, int n_tokens, LogitRows rows) {
  const Config& c = model_.config;
  const auto n = int64_t(tokens.size());
  BatchState& s = batch_;
  s.x.ensure(n * c.d_model);
  s.q.ensure(n * c.q_dim());
  s.attn.ensure(n * c.q_dim());
  s.k.ensure(n * c.kv_dim());
  s.v.ensure(n * c.kv_dim());
  s.ff.ensure(n * c.d_ff);
  s.tokens.ensure<int32_t>(n);
  s.cosines.ensure(int64_t(n_tokens) * model_.n_pairs);
  s.sines.ensure(int64_t(n_tokens) * model_.n_pairs);

  gpu::upload(model_.stream, s.tokens.as<void>(), tokens.data(), 4 * n);
  {
    const gpu::OpRange range([&] { return small_op("embed", n * c.d_model); });
    device_embed(model_.stream, n, c.d_model, s.tokens.as<int32_t>(), model_.embedding.as<float>(), s.x.as<float>());
    device_rope_tables(model_.stream, n_past_, n_tokens, model_.n_pairs, model_.rope_frequency.as<double>(),
                       model_.rope_magnitude, s.cosines.as<float>(), s.sines.as<float>());
  }
  for (int i = 0; i < c.n_layers; ++i) batch_layer(i, n_tokens);
  n_past_ += n_tokens;

  n_logits_ = rows == LogitRows::none ? 0 : rows == LogitRows::all ? n : n_active_;
  if (n_logits_ == 0) return;
  RIDGE_CHECK(rows == LogitRows::all || n_active_ == 1 || n_tokens == 1, "last rows of {} sequences of {} tokens",
              n_active_, n_tokens);
  float* const logits = batch_logits_.ensure(n_logits_ * c.vocab_size);
  model_.output.run(model_.stream,
                    {.n_tokens = n_logits_,
                     .x = s.x.as<float>() + (n - n_logits_) * c.d_model,
                     .norm_weight = model_.output_norm.as<float>(),
                     .norm_eps = c.rms_eps,
                     .y = {logits}},
                    s.products);
  logits_ = logits;
}

// --- One token a sequence ---

const char* CudaSession::step_unsupported() const {
  if (step_unsupported_) return step_unsupported_;
  for (const auto* side : {&k_, &v_})
    for (const DeviceKvStore& store : *side)
      if (!store.steps_from(n_past_)) return "this step sets centres";
  return nullptr;
}

void CudaSession::queue_step(bool leaving, bool with_logits) {
  const Config& c = model_.config;
  StepState& s = step_;
  const gpu::Stream& stream = model_.stream;
  const bool overlap = model_.options.overlap;
  const int64_t n = n_active_;
  auto *x = s.x.as<float>(), *attn = s.attn.as<float>(), *ff = s.ff.as<float>();
  // [n, q_dim], [n, kv_dim], [n, kv_dim]: for one sequence a joint row.
  float *q = s.qkv.as<float>(), *k = q + n * c.q_dim(), *v = k + n * c.kv_dim();
  // The embedding last: it is a plain launch, so that its successors find angles and coded tiles in memory however
  // early they start.
  {
    const gpu::OpRange range([&] { return small_op("rope", n * model_.n_pairs); });
    device_step_rope(stream, n_active_, s.n_past.as<int32_t>(), model_.n_pairs, model_.rope_frequency.as<double>(),
                     model_.rope_magnitude, s.cosines.as<float>(), s.sines.as<float>());
  }
  if (leaving) {
    const gpu::OpRange range([&] { return small_op("append", n); });
    encode_leaving(stream, {.n_seq = n_active_,
                            .n_kv_heads = c.n_kv_heads,
                            .head_dim = c.head_dim,
                            .n_sides = 2 * c.n_layers,
                            .sides = s.sides.as<AppendSide>(),
                            .n_past = s.n_past.as<int32_t>(),
                            .overlap = overlap});
  }
  {
    const gpu::OpRange range([&] { return small_op("embed", n * c.d_model); });
    device_embed(stream, n, c.d_model, s.tokens.as<int32_t>(), model_.embedding.as<float>(), x);
  }
  for (int i = 0; i < c.n_layers; ++i) {
    const DeviceLayer& l = model_.layers[size_t(i)];
    const DeviceKvStore &k_store = k_[size_t(i)], &v_store = v_[size_t(i)];
    l.qkv.run(stream,
              {.n_tokens = n,
               .x = x,
               .norm_weight = l.attn_norm.as<float>(),
               .norm_eps = c.rms_eps,
               .y = {q, k, v},
               .overlap = overlap,
               .layer = i},
              s.products);
    const DecodeAppend append{.n_seq = n_active_,
                              .n_heads = c.n_heads,
                              .n_kv_heads = c.n_kv_heads,
                              .head_dim = c.head_dim,
                              .n_past = s.n_past.as<int32_t>(),
                              .q = q,
                              .k = k,
                              .v = v,
                              .q_pitch = c.q_dim(),
                              .k_pitch = c.kv_dim(),
                              .v_pitch = c.kv_dim(),
                              .q_norm = c.qk_norm ? l.q_norm.as<float>() : nullptr,
                              .k_norm = c.qk_norm ? l.k_norm.as<float>() : nullptr,
                              .norm_eps = c.rms_eps,
                              .cosines = s.cosines.as<float>(),
                              .sines = s.sines.as<float>(),
                              .n_pairs = model_.n_pairs,
                              .rope_halves = model_.rope_halves,
                              .q_out = s.q.as<float>(),
                              .k_side = k_store.append_side(),
                              .v_side = v_store.append_side(),
                              .overlap = overlap};
    {
      const gpu::OpRange range([&] { return append_op(i, 1); });
      append_decode(stream, append);
    }
    std::optional<gpu::OpRange> range(std::in_place, [&] { return attention_op(i, 1); });
    tile_attn(stream,
              {.n_seq = n_active_,
               .n_heads = c.n_heads,
               .n_kv_heads = c.n_kv_heads,
               .head_dim = c.head_dim,
               .scale = 1.0f / std::sqrt(float(c.head_dim)),
               .n_keys = s.n_keys.as<int32_t>(),
               .q = s.q.as<float>(),
               .k = k_store.tile_side(),
               .v = v_store.tile_side(),
               .out = attn,
               .scratch = s.attn_scratch.as<std::byte>()},
              {.overlap = overlap});
    range.reset();
    finish_layer(l, {.n = n, .x = x, .attn = attn, .ff = ff, .overlap = overlap, .layer = i}, s.products);
  }
  if (with_logits)
    model_.output.run(stream,
                      {.n_tokens = n,
                       .x = x,
                       .norm_weight = model_.output_norm.as<float>(),
                       .norm_eps = c.rms_eps,
                       .y = {s.logits.as<float>()},
                       .overlap = overlap},
                      s.products);
  const gpu::OpRange range([&] { return small_op("other", n); });
  device_next_position(stream, n_active_, s.n_past.as<int32_t>(), s.n_keys.as<int32_t>());
}

void CudaSession::allocate_step() {
  const Config& c = model_.config;
  StepState& s = step_;
  if (s.x.bytes() > 0) return;
  s.tokens.ensure<int32_t>(n_seq_);
  s.n_past.ensure<int32_t>(n_seq_);
  s.n_keys.ensure<int32_t>(n_seq_);
  s.cosines.ensure(int64_t(n_seq_) * std::max(1, model_.n_pairs));
  s.sines.ensure(int64_t(n_seq_) * std::max(1, model_.n_pairs));
  s.qkv.ensure(n_seq_ * (c.q_dim() + 2 * c.kv_dim()));
  s.q.ensure(n_seq_ * c.q_dim());
  s.attn.ensure(n_seq_ * c.q_dim());
  s.ff.ensure(n_seq_ * c.d_ff);
  s.logits.ensure(int64_t(n_seq_) * c.vocab_size);
  s.attn_scratch =
      gpu::Buffer(tile_attn_scratch_bytes(n_seq_, c.n_heads, c.n_kv_heads, c.head_dim, tile_attn_blocks()));
  std::vector<AppendSide> sides;
  for (int i = 0; i < c.n_layers; ++i) {
    sides.push_back(k_[size_t(i)].append_side());
    sides.push_back(v_[size_t(i)].append_side());
  }
  s.sides = gpu::to_device(model_.stream, std::span<const AppendSide>(sides));
  model_.stream.synchronize();
  s.x.ensure(n_seq_ * c.d_model);
}

/// Keeps the launches of a step, for the log of replays, and hands them on to whoever logs now.
template <class Queue>
void CudaSession::queue_logged(Step& step, const Queue& queue) {
  step.log = {};
  const gpu::LogLaunches log(&step.log);
  queue();
}

void CudaSession::run_step(bool with_logits, bool draw_next) {
  const gpu::Stream& stream = model_.stream;
  StepState& s = step_;
  if (s.past != n_past_) {
    const std::vector<int32_t> past(size_t(n_active_), n_past_), keys(size_t(n_active_), n_past_ + 1);
    gpu::upload(stream, s.n_past.as<void>(), past.data(), 4 * n_active_);
    gpu::upload(stream, s.n_keys.as<void>(), keys.data(), 4 * n_active_);
  }
  bool leaving = false;
  for (const auto* side : {&k_, &v_})
    for (const DeviceKvStore& store : *side) {
      const KvRetention& r = store.layout().retention;
      leaving = leaving || (r.window > 0 && r.coded_end(n_past_ + 1) > r.coded_end(n_past_));
    }
  const DeviceSampler::Needs needs = sampler_.needs();
  const int drawing = draw_next ? 1 + 2 * int(needs.kind) + needs.penalty : 0;
  const auto queue = [&] {
    queue_step(leaving, with_logits);
    logits_ = s.logits.as<float>();
    if (draw_next) draw();
  };
  Step& step = steps_[{n_active_, leaving, with_logits, drawing}];
  if (!step.ran) {
    const auto places = s.products.places();
    queue_logged(step, queue);
    step.ran = true;
    // Recorded steps name the memory that products had before: they are recorded again.
    if (s.products.places() != places)
      for (auto& [key, recorded] : steps_) recorded.graph = gpu::Graph();
  } else {
    if (!step.graph) step.graph = gpu::Graph(stream, [&] { queue_logged(step, queue); });
    step.graph.launch(stream);
  }
  if (gpu::LaunchLog* log = gpu::launch_log()) log->append(step.log);
  s.past = ++n_past_;
  n_logits_ = with_logits ? n_active_ : 0;
  logits_ = s.logits.as<float>();
}

void CudaSession::step_forward(std::span<const int32_t> tokens, bool with_logits) {
  allocate_step();
  gpu::upload(model_.stream, step_.tokens.as<void>(), tokens.data(), 4 * int64_t(tokens.size()));
  run_step(with_logits, false);
}

// --- Steps that feed themselves ---

void CudaSession::draw() {
  const gpu::OpRange range([&] { return small_op("sample", int64_t(n_active_) * model_.config.vocab_size); });
  sampler_.sample(model_.stream, const_cast<float*>(logits_), step_.tokens.as<int32_t>(), ring_.view());
}

void CudaSession::start_drawing(const SamplerOptions& options, std::span<const int32_t> recent) {
  gpu::use_device(model_.device);
  RIDGE_CHECK(n_logits_ == n_active_ && n_active_ == n_seq_, "drawing from {} rows of {} sequences", n_logits_,
              n_active_);
  allocate_step();
  finish();
  for (int seq = 0; seq < n_seq_; ++seq) sampler_.set(model_.stream, seq, options, recent);
  ring_.reset(model_.stream);
  n_drawn_ = 0;
  draw();
}

void CudaSession::advance() {
  gpu::use_device(model_.device);
  RIDGE_CHECK(n_past_ < n_ctx_, "no room behind {} tokens", n_past_);
  if (step_unsupported() == nullptr) {
    run_step(true, true);
  } else {  // the host must see the tokens
    finish();
    std::vector<int32_t> tokens(static_cast<size_t>(n_active_));
    RIDGE_CHECK(ring_.read(n_drawn_, tokens), "step {} has left no tokens", n_drawn_);
    batch_forward(tokens, 1, LogitRows::last);
    draw();
  }
  ++n_drawn_;
}

void CudaSession::rewind(int n) {
  RIDGE_CHECK(n >= 0 && n <= n_past_ && n <= max_rewind(), "back {} of {} tokens", n, n_past_);
  n_past_ -= n;
}

// --- What both leave behind ---

View2<float> CudaSession::logits() {
  gpu::use_device(model_.device);
  const int64_t vocab = model_.config.vocab_size;
  float* host = batch_.host.ensure(n_logits_ * vocab);
  gpu::download(model_.stream, host, logits_, 4 * n_logits_ * vocab);
  model_.stream.synchronize();
  return {host, n_logits_, vocab};
}

void CudaSession::score(DeviceSession* base, std::span<const int32_t> targets) {
  gpu::use_device(model_.device);
  const auto* other = static_cast<CudaSession*>(base);
  const auto n = int64_t(targets.size());
  const int64_t capacity = int64_t(n_seq_) * n_ctx_;
  RIDGE_CHECK(n == n_logits_ && (!other || other->n_logits_ == n) && n_scores_ + n <= capacity,
              "{} targets for {} rows, {} of {} scores waiting", n, n_logits_, n_scores_, capacity);
  for (const int32_t target : targets)
    RIDGE_CHECK(target >= 0 && target < model_.config.vocab_size, "target {} of {}", target, model_.config.vocab_size);
  auto* const scores = scores_.ensure<RowScore>(capacity);
  auto* const on_device = batch_.targets.ensure<int32_t>(n);
  gpu::upload(model_.stream, on_device, targets.data(), 4 * n);
  device_score(model_.stream, n, model_.config.vocab_size, other ? other->logits_ : nullptr, logits_, on_device,
               scores + n_scores_);
  n_scores_ += n;
}

std::vector<RowScore> CudaSession::take_scores() {
  gpu::use_device(model_.device);
  std::vector<RowScore> scores(static_cast<size_t>(n_scores_));
  if (n_scores_ > 0)
    gpu::download(model_.stream, scores.data(), scores_.as<void>(), n_scores_ * int64_t(sizeof(RowScore)));
  model_.stream.synchronize();
  n_scores_ = 0;
  return scores;
}

void CudaSession::fill_random(int n, uint64_t seed) {
  gpu::use_device(model_.device);
  RIDGE_CHECK(n_seq_ == 1 && n <= n_ctx_, "{} random rows for {} sequences of {}", n, n_seq_, n_ctx_);
  reset(1);
  constexpr int kBatch = 256;
  const Config& c = model_.config;
  std::vector<float> rows(size_t(kBatch) * size_t(c.kv_dim()));
  BatchState& s = batch_;
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

void CudaSession::fill_codes(int n, uint64_t seed) {
  if (!all_tiled_) return fill_random(n, seed);
  gpu::use_device(model_.device);
  RIDGE_CHECK(n <= n_ctx_, "{} random rows of {}", n, n_ctx_);
  reset(n_active_);
  for (int i = 0; i < model_.config.n_layers; ++i) {
    k_[size_t(i)].fill_codes(model_.stream, n, seed + 6 * uint64_t(i));
    v_[size_t(i)].fill_codes(model_.stream, n, seed + 6 * uint64_t(i) + 3);
  }
  n_past_ = n;
  model_.stream.synchronize();
}

std::vector<std::string> CudaSession::kernels() const {
  std::string products, of_many;
  const auto add = [](std::string& to, const std::vector<std::string_view>& names) {
    for (const std::string_view name : names) {
      if (to.find(name) != std::string::npos) continue;
      if (!to.empty()) to += '+';
      to += name;
    }
  };
  const DeviceLayer& l = model_.layers[0];
  const DeviceProduct* const all[] = {&l.qkv, &l.gate_up, &l.down, &model_.output};
  for (const DeviceProduct* product : all) {
    add(products, product->kernels());
    add(of_many, product->kernels_of_many());
  }
  const bool steps = step_unsupported_ == nullptr;
  return {"product=" + products,
          "product_many=" + of_many,
          steps ? "append=step" : "append=rows",
          steps ? "attn_decode=tiles" : "attn_decode=rows-f32",
          prefill_attn_unsupported(model_.config.head_dim, sizeof(float)) ? "attn_prefill=tiled-f32"
                                                                          : "attn_prefill=tensor",
          steps ? (model_.options.overlap ? "launch=graph-overlap" : "launch=graph") : "launch=eager"};
}

std::vector<KvStoreFacts> CudaSession::kv_facts(bool is_k) const {
  gpu::use_device(model_.device);
  std::vector<KvStoreFacts> facts;
  for (const DeviceKvStore& store : is_k ? k_ : v_)
    facts.push_back({store.config(), store.allocated_bytes() / n_seq_, store.saturated(model_.stream)});
  return facts;
}

}  // namespace ridge
