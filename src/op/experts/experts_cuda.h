// A layer's experts on a device: the router, which experts each token takes, matmuls that read those experts only, and
// the sum of what they give. Choices stay in device memory, so that a recorded launch serves every one.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "base/host_device.h"
#include "gpu/device.h"
#include "gpu/memory_use.h"
#include "op/cache/step_rows.h"
#include "op/experts/rule.h"
#include "op/gemm/expert_gemm_cuda.h"
#include "op/gemv/bricks_cuda.h"
#include "op/gemv/expert_packs.h"

namespace ridge {

struct Linear;  // op/linear.h

inline constexpr int kMostExperts = 1024;    ///< of a layer
inline constexpr int kMostUsedExperts = 32;  ///< of a token

/// The experts of a step's tokens. Pointers are device memory.
struct ExpertChoice {
  int64_t n_tokens = 0;
  int n_experts = 0, n_used = 0;
  bool shared = false;          ///< every token takes expert n_experts too
  float* scores = nullptr;      ///< [n_tokens, n_scores]
  float* weights = nullptr;     ///< [n_tokens, n_chosen]
  int32_t* experts = nullptr;   ///< [n_tokens, n_chosen], rising for each token
  ExpertPack* packs = nullptr;  ///< may be null for many tokens

  RIDGE_HD int n_chosen() const { return n_used + shared; }
  RIDGE_HD int n_scores() const { return n_experts + shared; }
  RIDGE_HD int64_t n_slots() const { return n_tokens * n_chosen(); }
  /// Room for packs; those that are not needed have no slots. Of one token every slot is a pack.
  RIDGE_HD int64_t n_packs() const {
    const int64_t full = n_slots() / ExpertPack::kMost + n_scores();
    return n_tokens == 1 || n_slots() < full ? n_slots() : full;
  }
  /// Room for areas of groups.
  int64_t n_areas() const {
    const int64_t full = n_slots() / group_columns() + n_scores();
    return n_slots() < full ? n_slots() : full;
  }
};

/// The most tokens whose scores are sums by warps, and whose experts are packs where there is no GEMM of groups.
inline constexpr int64_t kFewRoutedTokens = 64;

/// Operands of a router. Pointers are device memory.
struct ExpertRouter {
  ExpertRule rule;
  int64_t n_in = 0;
  const float* x = nullptr;            ///< [n_tokens, n_in]
  const float* norm_weight = nullptr;  ///< [n_in]: h = x RMS-normalised; null: h = x
  float norm_eps = 0;
  float* h = nullptr;  ///< [n_tokens, n_in], written where there is a norm
  /// [n_scores, n_in]. The row of a shared expert, which has no bias, is the gate of its weight: sigmoid of the score.
  const float* w = nullptr;
  const float* bias = nullptr;         ///< [n_experts], of scores; or null
  const float* choice_bias = nullptr;  ///< [n_experts], as in choose_experts (route.h); or null
  bool gates_shared = true;            ///< else the shared expert's weight is 1
  bool overlap = false;                ///< programmatic dependent launch
  // Settings for few tokens.
  bool scores_only = false;  ///< kernels of experts choose for themselves
  int rows = 0;              ///< scores of a block, 1, 2, 4 or 8; 0: as few as fill the device
};
/// scores = h w^T + bias in floats; experts, weights and packs of the scores, as choose_experts (route.h) defines them.
void device_route(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router);
/// The choice alone.
void device_choose_experts(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router);

/// The part of a choice that a device computes of a layer in host memory: `kept` has as many experts as places, and its
/// numbers become the places of the chosen experts, below 0 where they have none. places [n_experts]; below 0: none.
/// Numbers of rows of padding (StepRow, one a token) become -1 in both. Packs are those of `kept`.
void device_place_experts(gpu::StreamHandle stream, const ExpertChoice& choice, const int32_t* places,
                          const StepRow* rows, const ExpertChoice& kept);

/// The groups of a choice. counts [n_scores] is scratch memory. Two launches.
void device_group_experts(gpu::StreamHandle stream, const ExpertChoice& choice, int32_t* counts,
                          const ExpertGroups& groups);

struct IntExpertsCall;  // int_experts_cuda.h

/// Matrices of one role of all experts, or two roles with the same input (gate and up). Formats in bricks go through
/// tensor cores with activations in two planes (gemv's "bricks"), few tokens of some formats as integers
/// (int_experts_cuda.h, int_packs_cuda.h); all others go through rows that are decoded as they come.
class DeviceExpertMatmul {
 public:
  DeviceExpertMatmul() = default;
  /// matrices[r], biases[r]: of role r, one an expert; biases empty or null where there are none. `glu`: the roles are
  /// gate and up, whose matmul ends in the activation where is_gated(). Throws Error: usage for experts of different
  /// formats or shapes and for ternary ones with int8 activations; no_memory.
  DeviceExpertMatmul(const gpu::Stream& stream, std::span<const std::vector<const Linear*>> matrices,
                     std::span<const std::vector<const std::vector<float>*>> biases, bool glu = false);

  /// Memory for the experts, and none of them yet: fill() brings them.
  static DeviceExpertMatmul slot(std::span<const std::vector<const Linear*>> matrices,
                                 std::span<const std::vector<const std::vector<float>*>> biases, bool glu = false) {
    DeviceExpertMatmul product = planned(matrices, biases, glu);
    product.reserve();
    return product;
  }
  /// Where fill() reads a role of an expert: blocks as in the file, behind them the biases, which may be none.
  struct SourceRole {
    int64_t blocks = 0, biases = 0;  ///< offsets in bytes
  };
  /// Place of every role, then an entry for the end behind them.
  std::vector<SourceRole> source_roles() const;
  int64_t source_bytes() const;
  /// Expert e of a slot from `source` [source_bytes()] in device memory. `scales`: of each role's matrix.
  void fill(gpu::StreamHandle stream, int64_t e, const std::byte* source, std::span<const float> scales);

  /// As the constructor makes it, without device memory: it cannot run.
  static DeviceExpertMatmul planned(std::span<const std::vector<const Linear*>> matrices,
                                    std::span<const std::vector<const std::vector<float>*>> biases, bool glu = false) {
    DeviceExpertMatmul product;
    product.plan(matrices, biases, glu);
    return product;
  }
  /// Adds the allocations that hold bytes().
  void add_to(gpu::Allocations& all) const;
  /// Bytes of scratch that run_groups() takes.
  int64_t group_scratch_bytes(const ExpertGroups& groups) const;
  void run(gpu::StreamHandle stream, const ExpertCall& call) const;
  /// Gate and up are bricks of one format.
  bool is_gated() const { return groups_.size() == 1 && groups_[0].bricks.paired; }
  /// Whether run_sum() serves: one role, in bricks.
  bool can_sum() const { return roles_.size() == 1 && groups_[0].in_bricks; }
  void run_sum(gpu::StreamHandle stream, const ExpertSumCall& call) const;
  /// Whether run_groups() serves: one role, or is_gated(), in bricks that have a GEMM.
  bool can_group() const {
    return groups_.size() == 1 && groups_[0].in_bricks && groups_[0].bricks.n_parts == 1 &&
           has_expert_gemm(groups_[0].bricks.format);
  }
  /// Slots of an expert, on average, up to which packs take less time than groups, where can_group().
  double most_packed_slots() const;
  /// Biases are the matmul's own. Scratch grows as needed.
  void run_groups(gpu::StreamHandle stream, ExpertGroupCall call, gpu::Buffer& scratch) const;
  /// Whether run_chosen() serves one token: is_gated() or one role, without biases, where has_int_experts().
  bool can_choose(const ExpertChoice& choice, const ExpertRule& rule) const;
  void run_chosen(gpu::StreamHandle stream, const IntExpertsCall& call) const;
  int64_t bytes() const;  ///< of all experts
  /// "bricks" or "rows" of each launch; "groups" where many tokens have can_group().
  std::vector<std::string_view> kernels() const;
  /// Bytes that such a matmul would keep, and bytes that packing takes beside them.
  static std::array<int64_t, 2> bytes_of(std::span<const std::vector<const Linear*>> matrices,
                                         std::span<const std::vector<const std::vector<float>*>> biases,
                                         bool glu = false);

 private:
  struct Role {
    int64_t n_out = 0, bias_bytes = 0;
    int64_t matrix_bytes = 0;  ///< of an expert, as in the file
    gpu::Buffer bias;          ///< [n_experts, n_out] or empty
  };
  /// Roles that share a launch: one, or two in bricks of one format.
  struct Group {
    int64_t bytes(int64_t n_experts) const { return in_bricks ? n_experts * bricks.bytes() : row_bytes; }

    size_t first = 0, count = 1;
    int format = 0;  ///< row of weight_formats()
    bool in_bricks = false;
    BrickMatrix bricks;     ///< of one expert; its data holds all, one after another
    int64_t row_bytes = 0;  ///< as in the file, of all experts
    gpu::Buffer rows;       ///< blocks as in the file, expert after expert
  };
  void plan(std::span<const std::vector<const Linear*>> matrices,
            std::span<const std::vector<const std::vector<float>*>> biases, bool glu);
  void reserve();
  bool is_biased() const;

  int64_t n_in_ = 0, n_experts_ = 0;
  std::vector<Role> roles_;
  std::vector<Group> groups_;
};

/// Weights of device_expert_rows(): row-major blocks of any weight format [n_experts, n_out, n_in].
struct ExpertRows {
  int format = 0;
  int64_t n_in = 0, n_out = 0;
  const void* blocks = nullptr;
  const float* bias = nullptr;  ///< [n_experts, n_out] or null
};
/// y [slots, n_out] of the packs' slots.
void device_expert_rows(gpu::StreamHandle stream, const ExpertRows& w, const ExpertCall& call, float* y);

/// Operands of the sum over a token's experts: weights [n_tokens, n_used] times y [n_tokens, n_used, n], in order of
/// the experts' number, plus sigmoid(<gate, h>) times `shared` where that is not null; without a gate plus `shared`
/// itself.
struct ExpertSum {
  int64_t n_tokens = 0, n = 0;
  int n_used = 0;
  const float* weights = nullptr;  ///< null: all are 1
  const float* y = nullptr;
  const int32_t* experts = nullptr;  ///< [n_tokens, n_used]: below 0 adds nothing; null: all add
  const float* rest = nullptr;       ///< [n_tokens, n], added; or null
  const float* shared = nullptr;     ///< [n_tokens, n]
  const float* h = nullptr;          ///< [n_tokens, n]
  const float* gate = nullptr;       ///< [n] or null
  bool add = false;                  ///< to `out`, or in its place
  float* out = nullptr;              ///< [n_tokens, n]
  bool overlap = false;              ///< programmatic dependent launch
};
/// The weight of every chosen expert times factors [n_experts] of the experts.
void device_scale_experts(gpu::StreamHandle stream, const ExpertChoice& choice, const float* factors);

/// For steps that ExpertSumCall does not serve: many tokens, rows without bricks.
void device_sum_experts(gpu::StreamHandle stream, const ExpertSum& sum);

}  // namespace ridge
