#include "rank/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/rng.h"
#include "cases/thread_ranks.h"
#include "rank/mpi.h"

namespace ridge {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> values_of(int rank, int64_t n) {
  Rng rng(uint64_t(100 + rank));
  std::vector<float> values(size_t(n), 0.0f);
  for (float& value : values) value = float(rng.normal()) * (rank % 2 ? 1e-3f : 1e3f);
  return values;
}

TEST(Ranks, OneSendsBytesToAnother) {
  on_ranks(3, [](Ranks& ranks) {
    std::vector<float> values = values_of(ranks.rank(), 77);
    const std::span<float> all(values);
    ranks.send(2, 0, std::as_bytes(all), std::as_writable_bytes(all));
    EXPECT_EQ(values, values_of(ranks.rank() == 0 ? 2 : ranks.rank(), 77)) << ranks.rank();
  });
}

TEST(Ranks, SumsAreThoseOfTheOrderOfRanksOnEveryRank) {
  for (const int n_ranks : {1, 2, 3, 4, 7})
    for (const int64_t n :
         {int64_t(0), int64_t(1), int64_t(5), int64_t(300), kSplitSum - 1, kSplitSum, kSplitSum + 3}) {
      std::vector<float> expected = values_of(0, n);
      for (int r = 1; r < n_ranks; ++r) {
        const std::vector<float> more = values_of(r, n);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += more[i];
      }
      on_ranks(n_ranks, [&](Ranks& ranks) {
        std::vector<float> values = values_of(ranks.rank(), n);
        ranks.all_reduce(values);
        EXPECT_EQ(values, expected) << n_ranks << " ranks, " << n << " values, rank " << ranks.rank();
      });
    }
}

TEST(Ranks, ColumnsComeToTheirPlaces) {
  const std::vector<int64_t> borders{0, 3, 3, 10};
  on_ranks(3, [&](Ranks& ranks) {
    const int64_t first = borders[size_t(ranks.rank())], n = borders[size_t(ranks.rank()) + 1] - first;
    std::vector<float> own(size_t(2 * (n + 4)), -1.0f), whole(2 * 10, 0.0f);  // rows of `own` are apart
    for (int64_t t = 0; t < 2; ++t)
      for (int64_t i = 0; i < n; ++i) own[size_t(t * (n + 4) + i)] = float(100 * t + first + i);
    ranks.gather_columns(View2<const float>(own.data(), 2, n, n + 4), borders, View2<float>(whole.data(), 2, 10));
    for (int64_t t = 0; t < 2; ++t)
      for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(whole[size_t(t * 10 + i)], float(100 * t + i)) << ranks.rank();
  });
}

TEST(Ranks, TextsOfEveryLength) {
  on_ranks(3, [](Ranks& ranks) {
    const std::string own(size_t(ranks.rank() * 1000), char('a' + ranks.rank()));
    EXPECT_THAT(ranks.gather(own), ElementsAre("", std::string(1000, 'b'), std::string(2000, 'c')));
    EXPECT_EQ(ranks.from_first(ranks.is_first() ? "seed 5" : "other"), "seed 5");
    ranks.barrier();
  });
}

TEST(Ranks, TheFirstOneTellsTheOthers) {
  on_ranks(3, [](Ranks& ranks) {
    for (const std::string& text : {std::string("one"), std::string(), std::string(100000, 'x')}) {
      if (ranks.is_first()) ranks.tell(text);
      else EXPECT_EQ(ranks.hear(), text) << ranks.rank();
    }
  });
}

TEST(Ranks, TextsForEachRankComeInPieces) {
  for (const int64_t most : {1, 7, 1000})
    on_ranks(3, [&](Ranks& ranks) {
      std::vector<std::string> texts;
      for (int to = 0; to < 3; ++to) texts.push_back(std::string(size_t(20 * ranks.rank() + to), char('a' + to)));
      std::vector<BytesOut> bytes;
      for (const std::string& text : texts) bytes.push_back(std::as_bytes(std::span(text)));
      const size_t own = size_t(ranks.rank());
      const char letter = char('a' + ranks.rank());
      EXPECT_THAT(ranks.trade(bytes, 60, most),
                  ElementsAre(std::string(own, letter), std::string(20 + own, letter), std::string(40 + own, letter)));
    });
}

TEST(Ranks, OfAStageAddAmongThemselves) {
  on_ranks(6, [](Ranks& ranks) {
    ranks.set_names({"a", "b", "c", "d", "e", "f"});
    ranks.set_stages(2);
    const std::unique_ptr<Ranks> part = ranks.of_stage();
    Ranks& stage = *part;
    const int first = ranks.rank() / 3 * 3;
    EXPECT_EQ(stage.size(), 3);
    EXPECT_EQ(stage.rank(), ranks.rank() - first);
    EXPECT_EQ(stage.name(1), first == 0 ? "b" : "e");
    std::vector<float> values = {float(ranks.rank()), 1};
    stage.all_reduce(values);
    EXPECT_THAT(values, ElementsAre(3 * first + 3, 3));
    values[0] = float(ranks.rank());
    ranks.send(2, 5, std::as_bytes(std::span(values)), std::as_writable_bytes(std::span(values)), 60);
    EXPECT_EQ(values[0], ranks.rank() == 5 ? 2 : ranks.rank());
    ranks.all_reduce(values);
    EXPECT_EQ(values[0], 0 + 1 + 2 + 3 + 4 + 2);
    EXPECT_THROW(ranks.set_stages(4), Error);
  });
}

TEST(Ranks, OfAStageNameWhoDoesNotCome) {
  on_ranks(
      4,
      [](Ranks& ranks) {
        ranks.set_names({"a", "b", "c", "d"});
        ranks.set_stages(2);
        if (ranks.rank() != 2) return;
        const std::unique_ptr<Ranks> stage = ranks.of_stage();
        std::vector<float> values(8, 1.0f);
        try {
          stage->all_reduce(values);
          ADD_FAILURE() << "a rank that is not there has added";
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("c: no answer from d within"));
        }
      },
      0.2);
}

TEST(Ranks, ADifferenceNamesTheRank) {
  on_ranks(3, [](Ranks& ranks) {
    ranks.set_names({"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"});
    ranks.require_same("the model", "x", "give all the same", 60);
    try {
      ranks.require_same("the model", ranks.rank() == 2 ? "y" : "x", "give all the same", 60);
      ADD_FAILURE() << "no difference was seen";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_STREQ(error.what(), "the model of rank 2 (c) is y, that of rank 0 (a) is x (give all the same)");
    }
  });
}

TEST(Ranks, WhoDoesNotComeIsNamedWithinTheTime) {
  on_ranks(
      3,
      [](Ranks& ranks) {
        if (ranks.rank() == 1) return;
        std::vector<float> values(8, 1.0f);
        const auto start = std::chrono::steady_clock::now();
        try {
          ranks.all_reduce(values);
          ADD_FAILURE() << "rank 1 was not missed";
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::failure);
          EXPECT_THAT(error.what(), HasSubstr("no answer from rank 1 within 0.2 s"));
        }
        EXPECT_THROW(ranks.barrier(), Error) << "nothing is exchanged any more";
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 30);
      },
      0.2);
}

TEST(Ranks, RanksOfDifferentStepsAreNoticed) {
  on_ranks(2, [](Ranks& ranks) {
    std::vector<float> values(size_t(8 + ranks.rank()), 1.0f);
    EXPECT_THROW(ranks.all_reduce(values), Error);
  });
}

TEST(Mpi, AProcessAloneIsNoJob) {
  EXPECT_EQ(joined_ranks(), nullptr);
  try {
    join_mpi(2, 1, 1);
    ADD_FAILURE() << "a rank of nothing";
  } catch (const Error& error) {
    if (mpi_version().empty()) {
      EXPECT_EQ(error.kind(), ErrorKind::no_device);
      EXPECT_THAT(error.what(), HasSubstr("apt-get install libopenmpi-dev"));
    } else {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), HasSubstr("mpirun -np N"));
    }
  }
}

}  // namespace
}  // namespace ridge
