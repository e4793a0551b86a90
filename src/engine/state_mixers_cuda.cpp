// Mixers with states on a device, beside the gated delta rule: x += output(mixer(norm(x))).
#include "engine/cuda_model.h"
#include "op/delta/mamba_cuda.h"
#include "op/delta/short_conv_cuda.h"

namespace ridge {

using B = StepBuffer;
namespace {

gpu::LoggedOp state_op(std::string_view op, int layer, const StepPlan& step, int64_t n_values, int64_t state_values) {
  int64_t n_sequences = 0;
  for (const DeltaSpan& span : step.sequences) n_sequences += span.n > 0;
  const int64_t states = 4 * n_sequences * state_values;
  return {.op = op,
          .layer = layer,
          .read_bytes = 4 * step.n_tokens * n_values + states,
          .write_bytes = 4 * step.n_tokens * n_values + states};
}

}  // namespace

void CudaRunner::project_mixed(int i, const StepPlan& step, const float* mixed) {
  const CudaLayer& layer = model_.layers[size_t(i)];
  MatmulCall call = block_out(i, step);
  call.x = mixed;
  layer.o.run(stream_, call, matmul_scratch_);
  end_block(i, step, layer.attn_post_norm);
}

void CudaRunner::mix_conv(int i, const StepPlan& step, DeviceKvMemory& memory) {
  const ConvPlan& plan = plan_.layers[size_t(i)].conv;
  const CudaLayer& layer = model_.layers[size_t(i)];
  auto *const bcx = buffers_[B::delta].as<float>(), *const out = bcx + 3 * step.n_rows() * plan.channels;
  MatmulCall call = block_in(i, step, layer.attn_norm);
  call.y[0] = bcx;
  layer.delta_in.run(stream_, call, matmul_scratch_);
  {
    const gpu::OpRange range([&] { return state_op("short_conv", i, step, 2 * plan.channels, plan.state_values()); });
    device_short_conv(stream_, {.kernel = plan.kernel,
                                .channels = plan.channels,
                                .weights = layer.conv.as<float>(),
                                .spans = buffers_[B::sequences].as<DeltaSpan>(),
                                .n_spans = int(step.sequences.size()),
                                .most = step.most_tokens,
                                .states = memory.states(i),
                                .bcx = bcx,
                                .out = out});
  }
  project_mixed(i, step, out);
}

void CudaRunner::mix_mamba(int i, const StepPlan& step, DeviceKvMemory& memory) {
  const MambaPlan& plan = plan_.layers[size_t(i)].mamba;
  const CudaLayer& layer = model_.layers[size_t(i)];
  const int64_t n = step.n_rows();
  StepMatrices matrix{buffers_[B::delta].as<float>(), n};
  float *const in = matrix(plan.columns()), *const mixed = matrix(plan.channels()), *const out = matrix(plan.inner()),
               *const chunks = matrix(0);
  MatmulCall call = block_in(i, step, layer.attn_norm);
  call.y[0] = in;
  layer.delta_in.run(stream_, call, matmul_scratch_);
  {
    const gpu::OpRange range([&] { return state_op("mamba2", i, step, plan.columns(), plan.state_values()); });
    device_mamba(stream_, {.shape = plan,
                           .conv = layer.conv.as<float>(),
                           .conv_bias = layer.conv_bias.as<float>(),
                           .decay = layer.mamba_decay.as<float>(),
                           .dt_bias = layer.mamba_dt_bias.as<float>(),
                           .d = layer.mamba_d.as<float>(),
                           .norm = layer.mamba_norm.as<float>(),
                           .norm_eps = plan_.norm_eps,
                           .spans = buffers_[B::sequences].as<DeltaSpan>(),
                           .n_spans = int(step.sequences.size()),
                           .most = step.most_tokens,
                           .n_rows = n,
                           .states = memory.states(i),
                           .in = in,
                           .mixed = mixed,
                           .out = out,
                           .n_chunked = step.n_chunked,
                           .chunks = chunks});
  }
  project_mixed(i, step, out);
}

}  // namespace ridge
