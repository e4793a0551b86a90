#include "op/collective/collective.h"

#include <gmock/gmock.h>

namespace ridge {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string_view chosen(int64_t n_floats, const CollectiveProblem& links, const ForcedKernels& forced = {},
                        int n_ranks = 2) {
  return select_row(forced, "all_reduce", all_reduce_variants(n_floats, n_ranks),
                    [&](const CollectiveVariant& row) { return row.supports(links); })
      .name;
}

TEST(Collective, TwoRanksAddSmallSumsInOneShotAndNcclAddsLargeOnes) {
  EXPECT_EQ(chosen(1, {}), "one-shot");
  EXPECT_EQ(chosen(kPacketFloats, {}), "one-shot");
  EXPECT_EQ(chosen(kPacketFloats + 1, {}), "nccl");
  EXPECT_EQ(chosen(kPacketFloats + 1, {}, {{"all_reduce", "one-shot"}}), "one-shot");
  EXPECT_EQ(chosen(1, {}, {{"all_reduce", "nccl"}}), "nccl");
  EXPECT_EQ(chosen(1 << 30, {.why_no_nccl = "not installed"}), "two-shot");
  EXPECT_EQ(chosen(1, {.why_no_peers = "no link"}), "nccl");
}

TEST(Collective, ThreeRanksAndMoreAddInTwoShotsWhereOneWouldSendMore) {
  for (const int n_ranks : {3, 4, 8}) {
    const int64_t most = kOneShotFloats / (n_ranks - 1);
    EXPECT_EQ(chosen(most, {}, {}, n_ranks), "one-shot");
    EXPECT_EQ(chosen(most + 1, {}, {}, n_ranks), "two-shot");
    EXPECT_EQ(chosen(kPacketFloats, {}, {}, n_ranks), "two-shot");
    EXPECT_EQ(chosen(kPacketFloats + 1, {}, {}, n_ranks), "nccl");
    EXPECT_EQ(chosen(kPacketFloats + 1, {.why_no_nccl = "not installed"}, {}, n_ranks), "two-shot");
  }
}

TEST(Collective, WhatCannotServeSaysWhy) {
  const auto message = [](const CollectiveProblem& links, const ForcedKernels& forced) -> std::string {
    try {
      return std::string(chosen(1, links, forced));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
  };
  EXPECT_THAT(message({.why_no_peers = "no link", .why_no_nccl = "not installed"}, {}),
              AllOf(HasSubstr("op all_reduce has no kernel"), HasSubstr("nccl: not installed"),
                    HasSubstr("one-shot: no link")));
  EXPECT_THAT(message({.why_no_nccl = "not installed"}, {{"all_reduce", "nccl"}}),
              AllOf(HasSubstr("all_reduce=nccl cannot serve"), HasSubstr("nccl: not installed")));
}

}  // namespace
}  // namespace ridge
