// Weights on a CUDA device.
#include "gpu/device_query.h"
#include "model/cuda_model.h"
#include "model/cuda_session.h"

namespace ridge {
namespace {

gpu::Buffer upload_vector(const gpu::Stream& stream, const std::vector<float>& values) {
  return gpu::to_device(stream, std::span(values));
}

}  // namespace

CudaModel::CudaModel(int device_index, std::string device_name, const Config& c, const Weights& w, const Rope& rope,
                     const DeviceOptions& device_options)
    : device(device_index),
      options(device_options),
      config(c),
      rope_halves(rope.pairs == RopePairs::halves),
      rope_magnitude(rope.magnitude),
      n_pairs(int(rope.frequency.size())),
      name_(std::move(device_name)) {
  const auto one = [&](const Linear& m) {
    const Linear* const matrices[] = {&m};
    const std::vector<float>* const biases[] = {nullptr};
    return DeviceProduct(stream, matrices, biases, false, options.int4_planes);
  };
  rope_frequency = gpu::to_device(stream, std::span(rope.frequency));
  embedding = upload_as_floats(stream, w.embedding);
  output_norm = upload_vector(stream, w.output_norm);
  output = one(w.output);
  for (const LayerWeights& from : w.layers) {
    DeviceLayer& layer = layers.emplace_back();
    layer.attn_norm = upload_vector(stream, from.attn_norm);
    layer.q_norm = upload_vector(stream, from.q_norm);
    layer.k_norm = upload_vector(stream, from.k_norm);
    layer.attn_sub_norm = upload_vector(stream, from.attn_sub_norm);
    layer.ffn_norm = upload_vector(stream, from.ffn_norm);
    layer.ffn_sub_norm = upload_vector(stream, from.ffn_sub_norm);
    const Linear* const qkv[] = {&from.q, &from.k, &from.v};
    const std::vector<float>* const biases[] = {&from.q_bias, &from.k_bias, &from.v_bias};
    layer.qkv = DeviceProduct(stream, qkv, biases, false, options.int4_planes);
    layer.o = one(from.o);
    const Linear* const gate_up[] = {&from.gate, &from.up};
    const std::vector<float>* const none[] = {nullptr, nullptr};
    layer.gate_up = DeviceProduct(stream, gate_up, none, true, options.int4_planes);
    layer.down = one(from.down);
  }
  stream.synchronize();
}

int64_t CudaModel::matrix_bytes() const {
  int64_t sum = output.bytes();
  for (const DeviceLayer& l : layers)
    for (const DeviceProduct* p : {&l.qkv, &l.o, &l.gate_up, &l.down}) sum += p->bytes();
  return sum;
}

int64_t CudaModel::free_bytes() const {
  gpu::use_device(device);
  return gpu::free_bytes();
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

namespace {

/// Refuses models the kernels here cannot run.
void check_supported(const Config& c) {
  if (c.head_dim % 4 != 0 || c.head_dim > kMaxDeviceHeadDim)
    throw Error(ErrorKind::usage,
                fmt::format("--device cuda needs a head_dim that is a multiple of 4 up to {}, this model has {} (use "
                            "--device cpu)",
                            kMaxDeviceHeadDim, c.head_dim));
}

/// What the weights take on the device, and the largest matrix once more while it is packed.
int64_t upload_bytes(const Weights& w) {
  int64_t bytes = 4 * w.embedding.n_out * w.embedding.n_in + device_product_bytes(w.output), largest = w.output.bytes();
  for (const LayerWeights& l : w.layers)
    for (const Linear* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) {
      bytes += device_product_bytes(*m);
      largest = std::max(largest, m->bytes());
    }
  return bytes + 2 * largest;
}

}  // namespace

std::unique_ptr<DeviceModel> open_device_model(int device, const Config& config, const Weights& weights,
                                               const Rope& rope, const DeviceOptions& options) {
  const gpu::DeviceReport report = gpu::query_devices();
  if (device < 0 || size_t(device) >= report.devices.size())
    throw Error(ErrorKind::no_device,
                fmt::format("device cuda:{} is not available: {} (use --device cpu)", device,
                            report.devices.empty() ? report.why_none
                                                   : fmt::format("there are {} devices", report.devices.size())));
  check_supported(config);
  gpu::use_device(device);
  const int64_t needed = upload_bytes(weights), free = gpu::free_bytes();
  if (needed > free)
    throw Error(ErrorKind::no_memory,
                fmt::format("device cuda:{}: the weights need {:.1f} GiB there, {:.1f} GiB are free (use a smaller "
                            "model or --device cpu)",
                            device, double(needed) / (1 << 30), double(free) / (1 << 30)));
  return std::make_unique<CudaModel>(device, fmt::format("cuda:{} {}", device, report.devices[size_t(device)].name),
                                     config, weights, rope, options);
}

}  // namespace ridge
