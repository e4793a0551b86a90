#include "base/closest.h"

#include <gtest/gtest.h>

#include <array>

namespace ridge {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"f16", "q8_0", "rotor-3", "rotor-3s", "rotor-4", "chat"};

TEST(Closest, LettersLeftOutAddedChangedOrSwapped) {
  EXPECT_EQ(closest_word("rotor3", kNames), "rotor-3");
  EXPECT_EQ(closest_word("rottor-4", kNames), "rotor-4");
  EXPECT_EQ(closest_word("q8-0", kNames), "q8_0");
  EXPECT_EQ(closest_word("chta", kNames), "chat");
  EXPECT_EQ(closest_word("hcat", kNames), "chat");
  EXPECT_EQ(closest_word("Q8_0", kNames), "q8_0") << "as other programs write it";
}

TEST(Closest, FarWordsGetNoSuggestion) {
  for (const char* word : {"", "x", "nonsense", "chart-maker"}) EXPECT_EQ(closest_word(word, kNames), "") << word;
  EXPECT_EQ(closest_word(std::string(100000, 'r'), kNames), "");
}

TEST(Closest, OfNamesAsNearTheLongestIsMeant) {
  constexpr std::array<std::string_view, 2> kNear = {"run", "runs"};
  EXPECT_EQ(closest_word("ruxn", kNear), "run");
  constexpr std::array<std::string_view, 2> kAlike = {"abd", "abcde"};
  EXPECT_EQ(closest_word("abcd", kAlike), "abcde");
}

TEST(Closest, ChoicesNameAllAndAskWhereOneIsNear) {
  constexpr std::array<std::string_view, 2> kTwo = {"f16", "rotor-3"};
  EXPECT_EQ(choices_text("rotor3", kTwo), "did you mean rotor-3? there are: f16, rotor-3");
  EXPECT_EQ(choices_text("spin", kTwo), "there are: f16, rotor-3");
}

}  // namespace
}  // namespace ridge
