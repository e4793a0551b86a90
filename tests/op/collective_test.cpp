#include "op/collective/collective.h"

#include <gmock/gmock.h>

namespace ridge {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string_view chosen(int64_t n_floats, const CollectiveProblem& links, const ForcedKernels& forced = {}) {
  return select_row(forced, "all_reduce", all_reduce_variants(n_floats),
                    [&](const CollectiveVariant& row) { return row.supports(links); })
      .name;
}

TEST(Collective, SmallSumsAreOneShotAndLargeOnesOfNcclWhereBothCan) {
  EXPECT_EQ(chosen(1, {}), "one-shot");
  EXPECT_EQ(chosen(kOneShotFloats, {}), "one-shot");
  EXPECT_EQ(chosen(kOneShotFloats + 1, {}), "nccl");
  EXPECT_EQ(chosen(kOneShotFloats + 1, {}, {{"all_reduce", "one-shot"}}), "one-shot");
  EXPECT_EQ(chosen(1, {}, {{"all_reduce", "nccl"}}), "nccl");
  EXPECT_EQ(chosen(1 << 30, {.why_no_nccl = "not installed"}), "one-shot");
  EXPECT_EQ(chosen(1, {.why_no_peers = "no link"}), "nccl");
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
