// Result, Status and the macros that pass failures on.
#include <gtest/gtest.h>

#include <memory>

#include "base/result.h"

namespace ridge {
namespace {

Result<int> parse(int value) {
  if (value < 0) return bad_file("field 'n' is {}, expected 0 or more", value);
  return value;
}

Result<std::string> twice(int value) {
  RIDGE_TRY(const int n, parse(value));
  RIDGE_TRY(const int m, parse(n + 1));
  return std::to_string(n + m);
}

Status check(int value) {
  RIDGE_TRY_STATUS(value < 0 ? Status(fail(ErrorKind::usage, "negative {}", value)) : Status());
  return {};
}

Result<int> checked(int value) {
  RIDGE_TRY_STATUS(check(value));
  return value;
}

TEST(Result, HoldsAValueOrAFailure) {
  EXPECT_EQ(parse(4).value(), 4);
  const Result<int> bad = parse(-1);
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error().kind, ErrorKind::bad_file);
  EXPECT_EQ(bad.error().message, "field 'n' is -1, expected 0 or more");
}

TEST(Result, TryPassesTheFailureOnUnchanged) {
  EXPECT_EQ(*twice(3), "7");
  EXPECT_EQ(twice(-5).error().message, "field 'n' is -5, expected 0 or more");
  EXPECT_EQ(checked(2).value(), 2);
  EXPECT_EQ(checked(-2).error().kind, ErrorKind::usage);
  EXPECT_EQ(checked(-2).error().message, "negative -2");
}

TEST(Result, MovesWhatCannotBeCopied) {
  const auto make = [](bool ok) -> Result<std::unique_ptr<int>> {
    if (!ok) return bad_file("no");
    return std::make_unique<int>(9);
  };
  const auto use = [&](bool ok) -> Result<int> {
    RIDGE_TRY(const std::unique_ptr<int> pointer, make(ok));
    return *pointer;
  };
  EXPECT_EQ(use(true).value(), 9);
  EXPECT_FALSE(use(false));
  EXPECT_EQ(*make(true).value(), 9);
}

TEST(Result, WrongAccessIsOurBugAndNamesTheReason) {
  try {
    (void)parse(-1).value();
    FAIL() << "value() of a failure";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    EXPECT_NE(std::string(error.what()).find("field 'n' is -1"), std::string::npos);
  }
  const Result<int> good = parse(1);
  EXPECT_THROW((void)good.error(), Error);
  EXPECT_THROW((void)Status().error(), Error);
}

TEST(Result, OrThrowKeepsKindAndMessage) {
  EXPECT_EQ(parse(1).or_throw(), 1);
  EXPECT_NO_THROW(check(1).or_throw());
  for (const auto& call : {+[] { (void)parse(-1).or_throw(); }, +[] { check(-1).or_throw(); }}) {
    try {
      call();
      FAIL();
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::bad_file || error.kind() == ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find("-1"), std::string::npos);
    }
  }
}

TEST(Result, OrThrowKeepsTheField) {
  const auto field_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.field();
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(field_of([] { Result<int>(wrong_field("n_ctx", "n_ctx is {}", 3)).or_throw(); }), "n_ctx");
  EXPECT_EQ(field_of([] { Status(wrong_field("top_k", "top_k is {}", 3)).or_throw(); }), "top_k");
  EXPECT_EQ(field_of([] { Result<int>(bad_file("f")).or_throw(); }), "");
}

TEST(FourParts, LeavesEmptyPartsOut) {
  EXPECT_EQ(four_parts("cannot load", "a.gguf", "truncated", "download it again"),
            "cannot load: a.gguf: truncated (download it again)");
  EXPECT_EQ(four_parts("cannot load", "", "truncated", ""), "cannot load: truncated");
  EXPECT_EQ(four_parts("", "", "", ""), "");
}

TEST(Check, SaysWhereAndWithWhatValues) {
  try {
    RIDGE_CHECK(1 + 1 == 3, "sum {}", 2);
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const char* part : {"result_test.cpp", "1 + 1 == 3", "sum 2"})
      EXPECT_NE(what.find(part), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace ridge
