// A model's weights and working memory on a CUDA device; sessions (device_session_cuda.cpp) run on them.
#pragma once

#include <map>

#include "model/device_model.h"
#include "model/device_product.h"

namespace ridge {

struct DeviceLayer {
  gpu::Buffer attn_norm, q_norm, k_norm, attn_sub_norm, ffn_norm, ffn_sub_norm;  // empty where the model has none
  DeviceProduct qkv, o, gate_up, down;
};

class CudaModel : public DeviceModel {
 public:
  CudaModel(int device_index, std::string device_name, const Config& c, const Weights& w, const Rope& rope,
            const DeviceOptions& device_options);

  std::unique_ptr<DeviceSession> open(std::span<const KvSideConfig> k, std::span<const KvSideConfig> v,
                                      const KvRoundingTools& tools, int n_ctx, int n_ubatch, int n_seq) override;
  const std::string& name() const override { return name_; }
  int64_t matrix_bytes() const override;
  int64_t free_bytes() const override;

  const int device;
  const DeviceOptions options;
  const Config config;
  gpu::Stream stream;
  bool rope_halves;
  float rope_magnitude;
  int n_pairs;
  gpu::Buffer rope_frequency;  // double [n_pairs]
  gpu::Buffer embedding;       // float [vocab_size, d_model]
  std::vector<DeviceLayer> layers;
  gpu::Buffer output_norm;
  DeviceProduct output;

 private:
  const std::string name_;
};

}  // namespace ridge
