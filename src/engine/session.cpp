// Model and Session behind the public API.
#include <algorithm>
#include <charconv>
#include <chrono>

#include "engine/model_impl.h"
#include "engine/run_ahead.h"
#include "io/mapped_file.h"
#include "model/forward.h"
#include "model/kv_state.h"
#include "op/attn/attn.h"

namespace ridge {
namespace {

/// Notes "op=name" after checking that the op and the kernel exist.
void force_kernel(CpuContext& context, const std::string& choice) {
  const size_t equals = choice.find('=');
  const std::string op = choice.substr(0, equals), name = equals == std::string::npos ? "" : choice.substr(equals + 1);
  std::string ops, names;
  const auto look = [&](std::string_view table_op, const auto& variants) {
    ops += (ops.empty() ? "" : ", ") + std::string(table_op);
    if (op != table_op) return;
    for (const auto& variant : variants) {
      names += (names.empty() ? "" : ", ") + std::string(variant.name);
      if (variant.name == name) context.forced[op] = name;
    }
  };
  look("gemv", gemv_variants());
  look("gemm", gemm_variants());
  look("attn_decode", attn_decode_variants());
  look("attn_prefill", attn_prefill_variants());
  look("norm_rope", norm_rope_variants());
  look("kv_round", kv_round_variants());
  if (context.forced.contains(op) && context.forced[op] == name) return;
  if (names.empty())
    throw Error(ErrorKind::usage, fmt::format("--kernel {}: unknown op '{}' (there are: {})", choice, op, ops));
  throw Error(ErrorKind::usage,
              fmt::format("--kernel {}: op {} has no kernel '{}' (there are: {})", choice, op, name, names));
}

ModelInfo describe(const std::string& path, LoadedModel& model, const CpuContext& context) {
  const Config& c = model.config;
  ModelInfo info{.path = path,
                 .name = c.name,
                 .arch = c.arch,
                 .weight_format = "",
                 .n_layers = c.n_layers,
                 .n_heads = c.n_heads,
                 .n_kv_heads = c.n_kv_heads,
                 .head_dim = c.head_dim,
                 .d_model = c.d_model,
                 .d_ff = c.d_ff,
                 .vocab_size = c.vocab_size,
                 .n_ctx_train = c.n_ctx_train,
                 .tied_output = c.tied_output,
                 .n_params = model.weights.n_params,
                 .weight_bytes = model.weights.stored_bytes,
                 .decode_weight_bytes = 0,
                 .has_tokenizer = model.tokenizer.has_value(),
                 .add_bos = model.tokenizer && model.tokenizer->spec().add_bos,
                 .device = "cpu",
                 .isa = std::string(isa_name(context.isa)),
                 .n_threads = context.pool.size()};
  std::map<std::string_view, int64_t> by_format;
  for_each_matrix(model.weights, [&](Linear& m, std::string_view) {
    info.decode_weight_bytes += m.bytes();
    const bool repacked = m.int8_activations && model.weights.ternary_source;
    by_format[repacked ? model.weights.ternary_source->name : m.format->name] += m.n_out * m.n_in;
  });
  const auto most =
      std::max_element(by_format.begin(), by_format.end(), [](auto& a, auto& b) { return a.second < b.second; });
  info.weight_format = most->first;
  return info;
}

/// What the options say, over what the format's policy says, for side "K" or "V" of a model.
KvSideConfig side_config(const KvSideOptions& options, std::string_view side, const Config& model) {
  const KvFormat& format = *find_kv_format(options.format).or_throw();
  KvSideConfig config = default_kv_side(format, side == "K", model.qkv_bias);
  if (options.rotation) config.policy.rotation = find_rotation(*options.rotation).or_throw();
  if (options.centre) config.policy.centre = *options.centre;
  if (options.window) config.policy.window = *options.window;
  if (options.sinks) config.policy.sinks = *options.sinks;
  if (options.scale) config.policy.scale = find_scale(*config.format, *options.scale).or_throw();
  if (options.rounding) config.policy.rounding = find_rounding(*options.rounding).or_throw();
  if (options.recent) config.policy.recent = find_kv_format(*options.recent).or_throw()->name;
  // An f16 or f32 cache is exact already: windows and sinks would only store the same rows elsewhere.
  if (config.format->name == "f16" || config.format->name == "f32") config.policy.window = config.policy.sinks = 0;
  check_kv_side(config, side, model.head_dim).or_throw();
  return config;
}

}  // namespace

LayerConfigs layer_configs(const SessionOptions& options, const Config& c) {
  LayerConfigs configs{std::vector<KvSideConfig>(size_t(c.n_layers), side_config(options.k, "K", c)),
                       std::vector<KvSideConfig>(size_t(c.n_layers), side_config(options.v, "V", c))};
  std::vector<bool> taken(size_t(c.n_layers), false);
  for (const KvLayerOptions& own : options.kv_layers) {
    if (own.first < 0 || own.last < own.first || own.last >= c.n_layers)
      throw Error(ErrorKind::usage,
                  fmt::format("--kv-layers {}-{}: this model has layers 0 to {}", own.first, own.last, c.n_layers - 1));
    const KvSideConfig k = side_config(own.k, "K", c), v = side_config(own.v, "V", c);
    for (auto layer = size_t(own.first); layer <= size_t(own.last); ++layer) {
      if (taken[layer])
        throw Error(ErrorKind::usage,
                    fmt::format("--kv-layers: layer {} is given twice (ranges may not overlap)", layer));
      taken[layer] = true;
      configs.k[layer] = k;
      configs.v[layer] = v;
    }
  }
  return configs;
}

namespace {

/// Layers of one side: the settings are those of most of them (of the first, when it is a tie), the bytes their sums.
KvSideReport side_report(std::span<const KvStoreFacts> layers, const Config& c) {
  size_t typical = 0;
  int64_t most = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto same = std::ranges::count_if(
        layers, [&](const KvStoreFacts& other) { return kv_side_difference(layers[i].config, other.config).empty(); });
    if (same > most) typical = i, most = same;
  }
  const KvSideConfig& config = layers[typical].config;
  KvSideReport side{.format = std::string(config.format->name),
                    .rotation = std::string(rotation_name(config.policy.rotation)),
                    .scale = std::string(scale_name(config.policy.scale)),
                    .rounding = std::string(rounding_name(config.policy.rounding)),
                    .recent = std::string(config.policy.recent),
                    .centre = config.policy.centre,
                    .window = config.policy.window,
                    .sinks = config.policy.sinks};
  for (const KvStoreFacts& layer : layers) {
    const KvBytes bytes = kv_bytes(layer.config, c.n_kv_heads, c.head_dim);
    side.bytes_per_token += bytes.per_token;
    side.fixed_bytes += bytes.fixed;
    side.held_bytes_4k += kv_held_bytes(layer.config, c.n_kv_heads, c.head_dim, 4096);
    side.allocated_bytes += layer.allocated_bytes;
    side.saturated += layer.saturated;
  }
  side.bits_per_value = 8.0 * double(side.bytes_per_token) / (double(layers.size()) * c.n_kv_heads * c.head_dim);
  return side;
}

KvReport make_report(std::span<const KvStoreFacts> k, std::span<const KvStoreFacts> v, const Config& c, int n_ctx) {
  KvReport report{.k = side_report(k, c), .v = side_report(v, c), .n_ctx = n_ctx, .layers = {}};
  const auto equal = [&](size_t a, size_t b) {
    return kv_side_difference(k[a].config, k[b].config).empty() && kv_side_difference(v[a].config, v[b].config).empty();
  };
  for (size_t first = 0, n = 1; first < k.size(); first += n) {
    for (n = 1; first + n < k.size() && equal(first, first + n);) ++n;
    report.layers.push_back(
        {int(first), int(first + n) - 1, side_report(k.subspan(first, n), c), side_report(v.subspan(first, n), c)});
  }
  return report;
}

}  // namespace

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::load(const std::string& path, const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (options.n_threads < 0 || options.n_threads > 1024)
    throw Error(ErrorKind::usage, fmt::format("--threads {} is out of range (0 to 1024)", options.n_threads));
  const std::optional<int> device = parse_device(options.device);
  if (device && !options.isa.empty())
    throw Error(ErrorKind::usage, "--isa chooses CPU kernels: leave it out with --device cuda");
  const DeviceOptions device_options = device ? parse_device_kernels(options.kernels) : DeviceOptions();
  // A device reads rows as stored, so the CPU packs nothing for it.
  auto impl = std::make_unique<Impl>(options.n_threads, device ? Isa::scalar : find_isa(options.isa).or_throw());
  if (!device)
    for (const std::string& choice : options.kernels) force_kernel(impl->context, choice);
  constexpr std::string_view kSynth = "synth:";
  impl->loaded = path.starts_with(kSynth) ? make_synth_model(impl->context, path.substr(kSynth.size())).or_throw()
                                          : load_model(path).or_throw();
  if (options.float_activations)
    for_each_matrix(impl->loaded.weights, [](Linear& m, std::string_view) { m.int8_activations = false; });
  if (!device) pack_weights(impl->context, impl->loaded.weights);
  const auto& factors = impl->loaded.weights.rope_factors;
  impl->rope = make_rope(impl->loaded.config, factors.empty() ? nullptr : factors.data());
  impl->info = describe(path, impl->loaded, impl->context);
  if (device) {
    impl->device = open_device_model(*device, impl->loaded.config, impl->loaded.weights, impl->rope, device_options);
    impl->info.device = impl->device->name();
    impl->info.isa.clear();
    impl->info.decode_weight_bytes = impl->device->matrix_bytes();
  }
  impl->info.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return Model(std::move(impl));
}

const ModelInfo& Model::info() const { return impl_->info; }
std::vector<std::string> synth_shapes() { return synth_shape_names(); }

const io::Tokenizer& Model::Impl::tokenizer() const {
  if (!loaded.tokenizer)
    throw Error(ErrorKind::usage, fmt::format("{} has no tokenizer (use a model with one, or token ids)", info.path));
  return *loaded.tokenizer;
}

std::vector<int32_t> Model::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  return impl_->tokenizer().encode(text, add_special, parse_special);
}
std::string Model::piece(int32_t token, bool special) const { return impl_->tokenizer().piece(token, special); }
std::string Model::detokenize(std::span<const int32_t> tokens, bool special) const {
  return impl_->tokenizer().decode(tokens, special);
}
bool Model::is_end(int32_t token) const { return impl_->loaded.tokenizer && impl_->loaded.tokenizer->is_end(token); }
std::optional<int32_t> Model::bos() const {
  return impl_->loaded.tokenizer ? impl_->loaded.tokenizer->spec().bos : std::nullopt;
}

KvRoundingTools Model::Impl::rounding_tools(std::span<const KvSideConfig> k, std::span<const KvSideConfig> v) {
  const auto weighted = [](const KvSideConfig& side) { return side.policy.rounding == KvRounding::weighted; };
  if (std::ranges::none_of(k, weighted) && std::ranges::none_of(v, weighted)) return {};
  if (!kv_metric) kv_metric = make_kv_metric(context, loaded.config, loaded.weights, rope);
  return {.metric = &*kv_metric, .round = select_round_row(context, loaded.config.head_dim)};
}

std::optional<int> parse_device(std::string_view device) {
  if (device == "cpu") return std::nullopt;
  int index = 0;
  if (device != "cuda") {
    const std::string_view digits = device.substr(std::min<size_t>(device.size(), 5));
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (!device.starts_with("cuda:") || error != std::errc() || end != digits.data() + digits.size() || index < 0)
      throw Error(ErrorKind::usage, fmt::format("--device: expects cpu or cuda[:N], found '{}'", device));
  }
  return index;
}

namespace {

/// Tokens of a prefill step where nobody says. A GPU decodes the whole cache once a step, and its products gain from
/// more tokens; on a CPU more only take memory.
constexpr int kHostUbatch = 512, kDeviceUbatch = 2048;

/// A session's options, checked and completed for every layer.
struct SessionPlan {
  SessionPlan(const Config& c, const SessionOptions& options, bool on_device)
      : n_ctx(options.n_ctx == 0 ? c.n_ctx_train : options.n_ctx),
        n_ubatch(options.n_ubatch != 0 ? options.n_ubatch
                 : on_device           ? kDeviceUbatch
                                       : kHostUbatch) {
    if (n_ctx < 1 || n_ctx > (1 << 26))
      throw Error(ErrorKind::usage, fmt::format("--ctx-size {} is out of range (1 to 2^26)", n_ctx));
    if (n_ubatch < 1 || n_ubatch > 65536)
      throw Error(ErrorKind::usage, fmt::format("--ubatch-size {} is out of range (1 to 65536)", n_ubatch));
    n_ubatch = std::min(n_ubatch, n_ctx);
    LayerConfigs configs = layer_configs(options, c);
    k = std::move(configs.k);
    v = std::move(configs.v);
  }

  int n_ctx, n_ubatch;
  std::vector<KvSideConfig> k, v;
};

}  // namespace

std::unique_ptr<DeviceSession> open_device_session(const Model& model, const SessionOptions& options, int n_seq) {
  Model::Impl& m = model.impl();
  RIDGE_CHECK(m.device != nullptr, "{} runs on the CPU", m.info.path);
  const SessionPlan plan(m.loaded.config, options, true);
  return m.device->open(plan.k, plan.v, m.rounding_tools(plan.k, plan.v), plan.n_ctx, plan.n_ubatch, n_seq);
}

KvReport device_kv_report(const Model::Impl& model, const DeviceSession& session) {
  return make_report(session.kv_facts(true), session.kv_facts(false), model.loaded.config, session.n_ctx());
}

struct Session::Impl {
  /// Cache and activations of a session on the CPU.
  struct Host {
    Host(const Config& c, const SessionPlan& plan, const KvRoundingTools& tools)
        : cache(plan.k, plan.v, c.n_kv_heads, c.head_dim, plan.n_ctx, tools), state(c, plan.n_ubatch) {}
    KvCache cache;
    ForwardState state;
  };

  Impl(Model::Impl& m, const SessionOptions& options) : model(m), plan(m.loaded.config, options, m.device != nullptr) {
    const KvRoundingTools tools = m.rounding_tools(plan.k, plan.v);
    if (m.device) device = m.device->open(plan.k, plan.v, tools, plan.n_ctx, plan.n_ubatch, 1);
    else host = std::make_unique<Host>(m.loaded.config, plan, tools);
  }

  View2<float> run(std::span<const int32_t> tokens, LogitRows rows) {
    if (!device)
      return forward(model.context, model.loaded.config, model.loaded.weights, model.rope, tokens, rows, host->cache,
                     host->state);
    device->forward(tokens, rows);
    return rows == LogitRows::none ? View2<float>() : device->logits();
  }
  int n_past() const { return device ? device->n_past() : host->cache.n_past; }
  /// For what works on rows in host memory.
  KvCache& host_cache() const {
    if (device)
      throw Error(ErrorKind::usage,
                  "caches on a device cannot be saved, restored, copied, cut or shifted yet (use --device cpu)");
    return host->cache;
  }
  /// Refuses what does not fit or is not a token, before anything is changed.
  void check(std::span<const int32_t> tokens) const {
    if (tokens.empty())
      throw Error(ErrorKind::usage, "no tokens to run (the prompt is empty; give at least one token)");
    for (const int32_t token : tokens)
      if (token < 0 || token >= model.loaded.config.vocab_size)
        throw Error(ErrorKind::usage,
                    fmt::format("token id {} is outside the vocabulary of {}", token, model.loaded.config.vocab_size));
    if (int64_t(tokens.size()) > plan.n_ctx - n_past())
      throw Error(
          ErrorKind::usage,
          fmt::format("context full: {} tokens do not fit after {} of {} (raise --ctx-size or shorten the prompt)",
                      tokens.size(), n_past(), plan.n_ctx));
  }

  Model::Impl& model;
  SessionPlan plan;
  std::unique_ptr<Host> host;  // one of these two
  std::unique_ptr<DeviceSession> device;
  std::span<const float> last;  // logits that draw() starts from
  int32_t drawn = 0;
};

Session::Session(const Model& model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(model.impl(), options)) {}
Session::Session(Session&&) noexcept = default;
Session::~Session() = default;

std::span<const float> Session::prefill(std::span<const int32_t> tokens) {
  impl_->check(tokens);
  View2<float> logits;
  for (size_t first = 0; first < tokens.size();) {
    const size_t n = std::min(tokens.size() - first, size_t(impl_->plan.n_ubatch));
    logits = impl_->run(tokens.subspan(first, n), first + n == tokens.size() ? LogitRows::last : LogitRows::none);
    first += n;
  }
  return impl_->last = logits.row(0);
}

void Session::prefill(std::span<const int32_t> tokens, const LogitsCallback& callback) {
  impl_->check(tokens);
  for (size_t first = 0; first < tokens.size();) {
    const size_t n = std::min(tokens.size() - first, size_t(impl_->plan.n_ubatch));
    const View2<float> logits = impl_->run(tokens.subspan(first, n), LogitRows::all);
    callback(int(first), int(n), logits.data);
    first += n;
    impl_->last = logits.row(logits.rows - 1);
  }
}

std::span<const float> Session::decode(int32_t token) {
  const std::span<const int32_t> one(&token, 1);
  impl_->check(one);
  return impl_->last = impl_->run(one, LogitRows::last).row(0);
}

namespace {

/// Tokens a device may be ahead of the host: one step hides the host's work on a token, another one its hiccups.
constexpr int kStepsAhead = 3;

class DrawnSteps final : public DeviceSteps {
 public:
  DrawnSteps(DeviceSession& session, const SamplerOptions& options, std::span<const int32_t> recent)
      : session_(session), options_(options), recent_(recent) {}
  void launch(int64_t step) override {
    if (step == 0) session_.start_drawing(options_, recent_);
    else session_.advance();
  }
  bool read(int64_t step, std::span<int32_t> tokens) override { return session_.read_drawn(step, tokens); }
  bool idle() override { return session_.idle(); }
  void finish() override { session_.finish(); }

 private:
  DeviceSession& session_;
  const SamplerOptions& options_;
  std::span<const int32_t> recent_;
};

}  // namespace

int Session::draw(const SamplerOptions& options, std::span<const int32_t> recent, int n_max,
                  const std::function<bool(int32_t)>& on_token) {
  const int n_most = std::min(n_max, n_ctx() - n_past() + 1);
  if (DeviceSession* device = impl_->device.get()) {
    DrawnSteps steps(*device, options, recent);
    RunAhead run_ahead(steps, 1, std::min(kStepsAhead, 1 + device->max_rewind()));
    const RunAheadResult result =
        run_ahead.run(n_most, [&](std::span<const int32_t> tokens) { return on_token(tokens[0]); });
    device->rewind(int(result.n_launched - result.n_taken));
    return int(result.n_taken);
  }
  Sampler sampler(options, impl_->model.info.vocab_size);
  sampler.accept(recent);
  for (int n = 0; n < n_most; ++n) {
    if (n > 0) impl_->last = impl_->run(std::span<const int32_t>(&impl_->drawn, 1), LogitRows::last).row(0);
    impl_->drawn = sampler.sample(impl_->last);
    if (!on_token(impl_->drawn)) return n + 1;
  }
  return n_most;
}

void Session::reset() {
  if (impl_->device) impl_->device->reset(1);
  else impl_->host->cache.reset();
}

void Session::save(const std::string& path) const {
  Model::Impl& m = impl_->model;
  save_kv_state(impl_->host_cache(), model_hash(m.loaded.config, m.loaded.weights), path).or_throw();
}

void Session::restore(const std::string& path) {
  Model::Impl& m = impl_->model;
  const io::MappedFile file = io::MappedFile::open(path).or_throw();
  restore_kv_state(impl_->host_cache(), model_hash(m.loaded.config, m.loaded.weights), file.bytes(), path).or_throw();
}

void Session::copy_from(const Session& other) {
  if (&other == this) return;
  if (&other.impl_->model != &impl_->model)
    throw Error(ErrorKind::usage, "a cache can be copied between sessions of one model only");
  impl_->host_cache().copy_from(other.impl_->host_cache()).or_throw();
}

void Session::truncate(int n) {
  if (n < 0 || n > n_past())
    throw Error(ErrorKind::usage, fmt::format("cannot go back to {} tokens: the cache holds {}", n, n_past()));
  impl_->host_cache().truncate(n);
}

void Session::shift(int n_keep, int n_discard) {
  if (n_keep < 0 || n_discard < 0 || n_keep > n_past() || n_discard > n_past() - n_keep)
    throw Error(ErrorKind::usage, fmt::format("cannot discard {} tokens after the first {}: the cache holds {}",
                                              n_discard, n_keep, n_past()));
  Model::Impl& m = impl_->model;
  const Config& c = m.loaded.config;
  Rope rope = m.rope;
  rope.magnitude = 1;  // the rows have theirs already
  impl_->host_cache().discard(n_keep, n_discard, [&](float* row) {
    apply_rope(m.context, rope, -n_discard, 1, c.head_dim, View2<float>(row, 1, c.head_dim));
  });
}

void Session::fill_codes(int n, uint64_t seed) {
  reset();
  if (n < 0 || n > n_ctx())
    throw Error(ErrorKind::usage,
                fmt::format("depth {} does not fit in a context of {} (raise --ctx-size)", n, n_ctx()));
  if (impl_->device) impl_->device->fill_codes(n, seed);
  else fill_random(n, seed);
}

void Session::fill_random(int n, uint64_t seed) {
  reset();
  if (n < 0 || n > n_ctx())
    throw Error(ErrorKind::usage,
                fmt::format("depth {} does not fit in a context of {} (raise --ctx-size)", n, n_ctx()));
  if (impl_->device) return impl_->device->fill_random(n, seed);
  KvCache& cache = impl_->host->cache;
  for (int layer = 0; layer < cache.n_layers(); ++layer) {
    cache.k(layer).fill_random(impl_->model.context, n, seed + 2 * uint64_t(layer), cache.k_scratch);
    cache.v(layer).fill_random(impl_->model.context, n, seed + 2 * uint64_t(layer) + 1, cache.v_scratch);
  }
  cache.n_past = n;
}

int Session::n_past() const { return impl_->n_past(); }
int Session::n_ctx() const { return impl_->plan.n_ctx; }

KvReport Session::kv_report() const {
  if (impl_->device) return device_kv_report(impl_->model, *impl_->device);
  const KvCache& cache = impl_->host->cache;
  std::vector<KvStoreFacts> k, v;
  for (int layer = 0; layer < cache.n_layers(); ++layer) {
    k.push_back(cache.k(layer).facts());
    v.push_back(cache.v(layer).facts());
  }
  return make_report(k, v, impl_->model.loaded.config, cache.n_ctx());
}

int64_t Session::decode_read_bytes() const {
  const Model::Impl& m = impl_->model;
  const int n_keys = std::min(n_past() + 1, n_ctx());
  if (impl_->device) return m.device->matrix_bytes() + impl_->device->kv_read_bytes(n_keys);
  return decode_work(m.loaded.config, m.loaded.weights, impl_->host->cache, n_keys).read_bytes;
}

std::vector<std::string> Session::kernels() const {
  const Model::Impl& m = impl_->model;
  if (m.device) return impl_->device->kernels();
  const LayerWeights& layer = m.loaded.weights.layers[0];
  const KvCache& cache = impl_->host->cache;
  AttnDecode decode;
  decode.head_dim = m.loaded.config.head_dim;
  decode.k = kv_side_without_rows(*cache.k(0).config().format, decode.head_dim, n_ctx());
  decode.v = kv_side_without_rows(*cache.v(0).config().format, decode.head_dim, n_ctx());
  const AttnPrefill prefill;
  const auto name = [&](std::string_view op, const auto& variants, const auto&... problem) {
    return fmt::format("{}={}", op, select_variant(m.context, op, variants, problem...).name);
  };
  return {name("gemv", gemv_variants(), layer.gate),
          name("gemm", gemm_variants(), layer.gate),
          name("attn_decode", attn_decode_variants(), decode),
          name("attn_prefill", attn_prefill_variants(), prefill),
          name("norm_rope", norm_rope_variants()),
          name("kv_round", kv_round_variants(), m.loaded.config.head_dim)};
}

}  // namespace ridge
