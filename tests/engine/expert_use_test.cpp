// Which experts a device keeps, by how often they were chosen.
#include "engine/expert_use.h"

#include <gmock/gmock.h>

namespace ridge {
namespace {

using testing::ElementsAre;

/// Tokens of one choice each, n times.
void choose(ExpertUse& use, int32_t expert, int n) {
  const std::vector<int32_t> numbers(size_t(n), expert);
  use.count(numbers);
}

std::vector<int32_t> experts_of(const std::vector<ExpertMove>& moves) {
  std::vector<int32_t> experts;
  for (const ExpertMove& move : moves) experts.push_back(move.expert);
  return experts;
}

TEST(ExpertUse, PlacesAreEmptyUntilExpertsAreChosen) {
  ExpertUse use(6, 1, 3);
  EXPECT_THAT(use.places(), ElementsAre(-1, -1, -1, -1, -1, -1));
  EXPECT_TRUE(use.exchange(100).empty());
  choose(use, 4, 1);
  choose(use, 2, 2);
  EXPECT_THAT(experts_of(use.exchange(0)), ElementsAre(2, 4)) << "those chosen most come first, into empty places";
  EXPECT_THAT(use.places(), ElementsAre(-1, -1, 0, -1, 1, -1));
  EXPECT_TRUE(use.exchange(100).empty());
}

TEST(ExpertUse, AnExpertChosenClearlyMoreOftenTakesThePlaceOfTheLeastChosen) {
  ExpertUse use(4, 1, 2);
  choose(use, 0, 40);
  choose(use, 1, 20);
  use.exchange(0);
  choose(use, 2, 28);
  EXPECT_TRUE(use.exchange(100).empty()) << "28 are not clearly more than 20";
  choose(use, 2, 1);
  EXPECT_TRUE(use.exchange(0).empty()) << "none may be driven out";
  const std::vector<ExpertMove> moves = use.exchange(100);
  ASSERT_THAT(experts_of(moves), ElementsAre(2));
  EXPECT_EQ(moves[0].place, 1);
  EXPECT_THAT(use.places(), ElementsAre(0, -1, 1, -1));
}

TEST(ExpertUse, SoManyAreDrivenOutAtATime) {
  ExpertUse use(6, 1, 3);
  for (const int32_t e : {0, 1, 2}) choose(use, e, 1);
  use.exchange(0);
  for (const int32_t e : {3, 4, 5}) choose(use, e, 10 * e);
  EXPECT_THAT(experts_of(use.exchange(2)), ElementsAre(5, 4));
  EXPECT_THAT(experts_of(use.exchange(2)), ElementsAre(3));
}

TEST(ExpertUse, CountsFade) {
  ExpertUse use(2, 1, 1);
  choose(use, 0, 2 * ExpertUse::kHalfLife);
  use.exchange(0);
  choose(use, 1, ExpertUse::kHalfLife / 2);
  EXPECT_TRUE(use.exchange(1).empty());
  choose(use, 1, ExpertUse::kHalfLife / 2);  // 1024, halved; of the first one's 2048 there are 384
  EXPECT_THAT(experts_of(use.exchange(1)), ElementsAre(1));
}

TEST(ExpertUse, TakesWhatIsThereFromTheHost) {
  ExpertUse use(4, 2, 2);
  use.count(std::vector<int32_t>{1, 3, 1, 3});
  use.exchange(0);
  std::vector<int32_t> numbers{0, 1, -1, -1, 1, 3, 1 << 30, 2};  // one row is of padding
  use.take(numbers);
  EXPECT_THAT(numbers, ElementsAre(0, -1, -1, -1, -1, -1, 1 << 30, 2));
  EXPECT_EQ(use.hits().n_chosen, 5);
  EXPECT_EQ(use.hits().n_found, 3);
  EXPECT_DOUBLE_EQ(use.hits().share(), 0.6);
}

TEST(ExpertUse, MorePlacesThanExpertsAreUsedHoldThemAll) {
  ExpertUse use(3, 1, 3);
  for (const int32_t e : {0, 1, 2}) choose(use, e, 1);
  use.exchange(0);
  choose(use, 2, 100);
  EXPECT_TRUE(use.exchange(100).empty());
  std::vector<int32_t> numbers{0, 1, 2};
  use.take(numbers);
  EXPECT_THAT(numbers, ElementsAre(-1, -1, -1));
}

}  // namespace
}  // namespace ridge
