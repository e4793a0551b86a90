// KL base files: the layout byte by byte, what the 16 bits cost, and hostile images.
#include "io/kl_base.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/metrics.h"
#include "base/rng.h"
#include "cases/temp_dir.h"

namespace ridge::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
void put(std::string& bytes, std::initializer_list<T> values) {
  for (const T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

/// n_ctx 4 scores one row per chunk; 3 entries are padded to 4. Written out by hand from the layout's description.
std::string by_hand() {
  std::string file = "_logits_";
  put<int32_t>(file, {4, 3, 2});
  put<int32_t>(file, {0, 1, 2, 1, 2, 2, 0, 1});
  put<float>(file, {0.0001f, -7.0f});
  put<uint16_t>(file, {65535, 10000, 0, 0});
  put<float>(file, {0.0f, -1.0986123f});
  put<uint16_t>(file, {0, 0, 0, 0});
  return file;
}

TEST(KlBase, AFileWrittenByHandIsRead) {
  const std::string file = by_hand();
  const KlBase base = parse_kl_base(as_bytes(file)).or_throw();
  EXPECT_EQ(base.shape.n_ctx, 4);
  EXPECT_EQ(base.shape.n_vocab, 3);
  EXPECT_EQ(base.shape.n_chunks, 2);
  EXPECT_THAT(base.tokens(), ElementsAre(0, 1, 2, 1, 2, 2, 0, 1));
  std::vector<float> row(3);
  ASSERT_TRUE(base.read_row(0, row));
  EXPECT_NEAR(row[0], -0.4465, 1e-5);
  EXPECT_NEAR(row[1], -6, 1e-5);
  EXPECT_EQ(row[2], -7);
  ASSERT_TRUE(base.read_row(1, row));
  EXPECT_THAT(row, testing::Each(-1.0986123f));
}

TEST(KlBase, TheWriterMakesTheBytesOfTheLayout) {
  TempDir dir;
  const std::filesystem::path path = dir / "base.kld";
  KlBaseWriter writer(path);
  const KlBaseShape shape{.n_ctx = 4, .n_vocab = 3, .n_chunks = 2};
  ASSERT_EQ(shape.row_bytes(), 16);
  const std::vector<int32_t> tokens{0, 1, 2, 1, 2, 2, 0, 1};
  ASSERT_TRUE(writer.create(shape, tokens));
  std::vector<std::byte> row(16);
  // Logits 20 apart: the least is cut to 16 below the top, the middle lies 12 of 16 nats above that.
  encode_kl_row(std::vector<float>{10, 6, -10}, row);
  ASSERT_TRUE(writer.add(row));
  encode_kl_row(std::vector<float>{2, 2, 2}, row);
  ASSERT_TRUE(writer.add(row));
  EXPECT_THAT(dir.names(), testing::Not(testing::Contains("base.kld")));  // nothing under the name before it is whole
  ASSERT_TRUE(writer.commit());
  EXPECT_THAT(dir.names(), ElementsAre("base.kld"));

  const double log_sum = std::log(1 + std::exp(-4.0) + std::exp(-20.0));
  std::string wanted = "_logits_";
  put<int32_t>(wanted, {4, 3, 2, 0, 1, 2, 1, 2, 2, 0, 1});
  put<float>(wanted, {16.0f / 65535, float(-16 - log_sum)});
  put<uint16_t>(wanted, {65535, 49151, 0, 0});  // 12 / 16 * 65535 = 49151.25
  put<float>(wanted, {0.0f, float(-std::log(3.0))});
  put<uint16_t>(wanted, {0, 0, 0, 0});
  EXPECT_EQ(read_text_file(path, 1 << 20).or_throw(), wanted);
  EXPECT_EQ(KlBaseFile::open(path).or_throw().base().shape.n_chunks, 2);
}

TEST(KlBase, RowsAreExactToHalfAStepAboveTheCut) {
  Rng rng(5);
  for (const int n_vocab : {1, 2, 7, 1000}) {
    std::vector<float> logits(static_cast<size_t>(n_vocab)), log_probs(logits.size());
    for (float& x : logits) x = float(rng.uniform() * 30 - 15);
    std::vector<std::byte> row(size_t(KlBaseShape{.n_vocab = n_vocab}.row_bytes()));
    encode_kl_row(logits, row);
    ASSERT_TRUE(decode_kl_row(row, log_probs));
    const double log_sum = log_sum_exp(logits), top = *std::max_element(logits.begin(), logits.end());
    for (size_t i = 0; i < logits.size(); ++i) {
      // Half a step, and float rounding of values around 30.
      const double wanted = std::max(double(logits[i]), top - 16) - log_sum;
      EXPECT_NEAR(log_probs[i], wanted, 0.5 * 16 / 65535 + 1e-5) << n_vocab << " " << i;
    }
  }
}

TEST(KlBase, EveryTruncationIsRefusedAndSoIsATail) {
  const std::string file = by_hand();
  for (size_t size = 0; size < file.size(); ++size) EXPECT_FALSE(parse_kl_base(as_bytes(file).first(size))) << size;
  EXPECT_FALSE(parse_kl_base(as_bytes(file + "x")));
}

TEST(KlBase, HostileHeadersAreRefusedWithAReason) {
  struct Case {
    int at;
    int32_t value;
    const char* why;
  };
  for (const Case& c :
       {Case{0, 0x12345678, "does not start with"}, Case{8, 0, "n_ctx is 0"}, Case{8, -1, "n_ctx is -1"},
        Case{8, 3, "n_ctx is 3"}, Case{8, INT32_MAX, "n_ctx"}, Case{8, 1 << 26, "need"}, Case{12, 0, "n_vocab is 0"},
        Case{12, INT32_MIN, "n_vocab"}, Case{12, 1 << 24, "need"}, Case{12, 2, "need"}, Case{16, 0, "n_chunk is 0"},
        Case{16, -5, "n_chunk"}, Case{16, INT32_MAX, "need"}, Case{20, -1, "token 0 is -1"},
        Case{48, 3, "token 7 is 3"}}) {
    std::string file = by_hand();
    std::memcpy(file.data() + c.at, &c.value, 4);
    const auto base = parse_kl_base(as_bytes(file));
    ASSERT_FALSE(base) << c.at << " " << c.value;
    EXPECT_EQ(base.error().kind, ErrorKind::bad_file);
    EXPECT_THAT(base.error().message, HasSubstr(c.why));
  }
  std::string all_large = by_hand();
  for (const auto& [at, value] : {std::pair{8, 1 << 26}, {12, 1 << 24}, {16, INT32_MAX}})
    std::memcpy(all_large.data() + at, &value, 4);
  EXPECT_THAT(parse_kl_base(as_bytes(all_large)).error().message, HasSubstr("more than 2^64"));
}

TEST(KlBase, RowsThatAreNoProbabilitiesAreRefusedNamingThePlace) {
  struct Case {
    float scale, least;
  };
  for (const Case& c :
       {Case{NAN, -1}, {INFINITY, -1}, {-1e-5f, -1}, {1e-5f, NAN}, {1e-5f, -INFINITY}, {1e-3f, -1}, {0, 1}}) {
    std::string file = by_hand();
    std::memcpy(file.data() + file.size() - 16, &c, 8);
    const KlBase base = parse_kl_base(as_bytes(file)).or_throw();
    std::vector<float> row(3);
    EXPECT_TRUE(base.read_row(0, row));
    const Status status = base.read_row(1, row);
    ASSERT_FALSE(status) << c.scale << " " << c.least;
    EXPECT_THAT(status.error().message, HasSubstr("chunk 1, row 0"));
  }
}

TEST(KlBase, AnInterruptedWriterLeavesNothing) {
  TempDir dir;
  {
    KlBaseWriter writer(dir / "base.kld");
    const std::vector<int32_t> tokens(4);
    ASSERT_TRUE(writer.create({.n_ctx = 4, .n_vocab = 3, .n_chunks = 1}, tokens));
  }
  EXPECT_TRUE(dir.names().empty());
}

TEST(KlBase, FilesNameThemselvesInErrors) {
  TempDir dir;
  const auto path = dir.write("no.kld", "hello");
  EXPECT_THAT(KlBaseFile::open(path).error().message, HasSubstr("no.kld"));
  EXPECT_FALSE(KlBaseFile::open(dir.path()));
  EXPECT_FALSE(KlBaseFile::open(dir / "missing"));
}

}  // namespace
}  // namespace ridge::io
