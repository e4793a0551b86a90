#include "op/collective/collective.h"

namespace ridge {
namespace {

Support with_peers(const CollectiveProblem& p) { return {p.why_no_peers.empty(), p.why_no_peers}; }
Support with_nccl(const CollectiveProblem& p) { return {p.why_no_nccl.empty(), p.why_no_nccl}; }

constexpr CollectiveVariant kNccl{"nccl", with_nccl}, kOneShot{"one-shot", with_peers};

}  // namespace

std::span<const CollectiveVariant> all_reduce_variants(int64_t n_floats) {
  static constexpr CollectiveVariant kFew[] = {kNccl, kOneShot}, kMany[] = {kOneShot, kNccl};
  return n_floats <= kOneShotFloats ? kFew : kMany;
}

std::span<const CollectiveVariant> gather_columns_variants() {
  static constexpr CollectiveVariant kVariants[] = {kNccl, kOneShot};
  return kVariants;
}

}  // namespace ridge
