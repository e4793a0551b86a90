#include "op/collective/collective.h"

namespace ridge {
namespace {

Support with_peers(const CollectiveProblem& p) { return {p.why_no_peers.empty(), p.why_no_peers}; }
Support with_nccl(const CollectiveProblem& p) { return {p.why_no_nccl.empty(), p.why_no_nccl}; }

constexpr CollectiveVariant kNccl{"nccl", with_nccl}, kOneShot{"one-shot", with_peers},
    kTwoShot{"two-shot", with_peers};

}  // namespace

std::span<const CollectiveVariant> all_reduce_variants(int64_t n_floats, int n_ranks) {
  static constexpr CollectiveVariant kFew[] = {kNccl, kTwoShot, kOneShot}, kMore[] = {kNccl, kOneShot, kTwoShot},
                                     kMany[] = {kOneShot, kTwoShot, kNccl};
  if (n_floats > kPacketFloats) return kMany;
  return n_ranks == 2 || n_floats * (n_ranks - 1) <= kOneShotFloats ? kFew : kMore;
}

std::span<const CollectiveVariant> gather_columns_variants() {
  static constexpr CollectiveVariant kVariants[] = {kNccl, kOneShot};
  return kVariants;
}

}  // namespace ridge
