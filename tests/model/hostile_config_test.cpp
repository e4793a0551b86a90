// Every field of every known config.json made absurd: refused with what was found and expected, or without effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cases/paths.h"
#include "model/arch/arch.h"
#include "model/plan.h"

namespace ridge {
namespace {

using Json = nlohmann::json;

/// Configurations that load, by name.
std::map<std::string, Json> known_configs() {
  std::map<std::string, Json> configs;
  for (const auto& entry : std::filesystem::directory_iterator(RIDGE_SOURCE_DIR "/tests/fuzz/corpus/config")) {
    std::ifstream file(entry.path());
    Json config = Json::parse(file);
    if (config_from_hf(config.dump(), "f")) configs[entry.path().filename().string()] = std::move(config);
  }
  return configs;
}

TEST(HostileConfig, AnAbsurdValueIsRefusedWithTheReasonOrHasNoEffect) {
  const Json absurd[] = {-1, 0, int64_t(1) << 31, int64_t(1) << 40, 2.5, 1e300, "text", Json::array(), Json::object()};
  const auto configs = known_configs();
  EXPECT_GE(configs.size(), 14u);
  int n_refused = 0;
  for (const auto& [name, config] : configs)
    for (const auto& [key, value] : config.items())
      for (const Json& bad : absurd) {
        Json changed = config;
        changed[key] = bad;
        const auto result = config_from_hf(changed.dump(), "f");
        if (result) {
          EXPECT_NO_THROW(make_plan(*result, result->rope_scaling.short_factors, result->rope_scaling.long_factors));
          continue;
        }
        ++n_refused;
        EXPECT_EQ(result.error().kind, ErrorKind::bad_file);
        EXPECT_THAT(result.error().message,
                    testing::ContainsRegex("^f: .*(expected|supported|must be|is not a|is missing)"))
            << name << " " << key << " = " << bad;
      }
  EXPECT_GT(n_refused, 1000);
}

TEST(HostileConfig, WhatDecidesResultsMayNotBeAbsurd) {
  const auto configs = known_configs();
  const std::tuple<const char*, const char*, Json> cases[] = {
      {"qwen3_moe", "num_experts", int64_t(1) << 31},
      {"qwen3_moe", "num_experts", -1},
      {"qwen3_moe", "num_experts_per_tok", 0},
      {"qwen3_moe", "num_experts_per_tok", 1 << 20},
      {"qwen3_moe", "moe_intermediate_size", 0},
      {"gpt_oss", "num_local_experts", int64_t(1) << 31},
      {"gpt_oss", "sliding_window", -1},
      {"mistral_swa", "sliding_window", -1},
      {"gemma3", "sliding_window", -1},
      {"granite", "residual_multiplier", "text"},
      {"granite", "logits_scaling", 0},
      {"qwen2_moe", "shared_expert_intermediate_size", -1},
      {"gemma4_moe", "layer_types", nullptr},
      {"gemma4_moe", "layer_types", Json::array({"sliding_attention"})},
      {"gemma4_moe", "layer_types", Json::array({"sliding_attention", 7, "full_attention"})},
      {"gemma4_moe", "global_head_dim", 0},
      {"gemma4_moe", "global_head_dim", 1 << 20},
      {"gemma4_moe", "num_global_key_value_heads", 3},
      {"gemma4_moe", "num_kv_shared_layers", 3},
      {"gemma4_moe", "num_kv_shared_layers", 1},
      {"gemma4_moe", "hidden_size_per_layer_input", 1 << 20},
      {"gemma4_moe", "final_logit_softcapping", -1},
      {"gemma4_moe", "top_k_experts", 9},
      {"gemma4_moe", "use_bidirectional_attention", true},
      {"nemotron_h_moe", "hybrid_override_pattern", "MEM*"},
      {"nemotron_h_moe", "hybrid_override_pattern", "MEM*X"},
      {"nemotron_h_moe", "hybrid_override_pattern", "MEMME"},
      {"nemotron_h_moe", "hybrid_override_pattern", "EE***"},
      {"nemotron_h_moe", "mamba_num_heads", 0},
      {"nemotron_h_moe", "n_groups", 3},
      {"nemotron_h_moe", "ssm_state_size", 1 << 20},
      {"nemotron_h_moe", "n_shared_experts", 2},
      {"nemotron_h_moe", "rms_norm_eps", 1e-6},
      {"nemotron_h_moe", "time_step_limit", Json::array({0.0, 0.1})},
      {"nemotron_h_moe", "mlp_hidden_act", "silu"},
      {"nemotron_h_moe", "moe_latent_size", 32},
      {"deepseek_v32", "index_topk", 0},
      {"deepseek_v32", "index_topk", -1},
      {"deepseek_v32", "index_topk", int64_t(1) << 31},
      {"deepseek_v32", "index_topk", nullptr},
      {"deepseek_v32", "index_n_heads", 0},
      {"deepseek_v32", "index_n_heads", 1 << 20},
      {"deepseek_v32", "index_head_dim", 4},
      {"deepseek_v32", "index_head_dim", 1 << 20},
      {"deepseek_v32", "q_lora_rank", nullptr},
      {"deepseek_v32", "indexer_rope_interleave", true},
      {"glm_moe_dsa", "indexer_rope_interleave", false},
  };
  for (const auto& [name, key, bad] : cases) {
    Json changed = configs.at(name);
    changed[key] = bad;
    const auto result = config_from_hf(changed.dump(), "f");
    EXPECT_FALSE(result) << name << " " << key << " = " << bad;
  }
}

}  // namespace
}  // namespace ridge
