// write_gguf(): what is written reads back the same, and a failure leaves nothing behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cases/bytes.h"
#include "cases/temp_dir.h"
#include "format/list.h"
#include "io/gguf.h"

namespace ridge::io {
namespace {

using Metadata = std::map<std::string, GgufValue, std::less<>>;

const WeightFormat* format(std::string_view name) { return find_weight_format(name).or_throw(); }

Metadata every_kind() {
  return {
      {"general.architecture", std::string("llama")},
      {"bool", true},
      {"int", int64_t(-7)},
      {"int.wide", int64_t(-5'000'000'000)},
      {"uint", uint64_t(42)},
      {"uint.edge", uint64_t(UINT32_MAX)},
      {"uint.wide", uint64_t(1) << 63},
      {"float", 0.25},
      {"float.wide", 1e300},
      {"float.infinite", -std::numeric_limits<double>::infinity()},
      {"text.empty", std::string()},
      {"bools", std::vector<bool>{true, false}},
      {"ints", std::vector<int64_t>{1, -2}},
      {"ints.wide", std::vector<int64_t>{1, INT64_MIN}},
      {"uints", std::vector<uint64_t>{1, 2}},
      {"uints.wide", std::vector<uint64_t>{1, UINT64_MAX}},
      {"floats", std::vector<double>{-1.5, 0}},
      {"floats.wide", std::vector<double>{-1.5, 1e200}},
      {"texts", std::vector<std::string>{"a", "", "\xE2\x96\x81"}},
      {"texts.none", std::vector<std::string>{}},
  };
}

/// Three tensors whose sizes need different padding.
std::vector<GgufTensorSpec> three_tensors() {
  return {{"embed", format("f32"), {3, 5}}, {"q", format("q4_0"), {2, 64}}, {"norm", format("bf16"), {2, 1, 1, 3}}};
}

Status pattern(size_t index, std::vector<std::byte>& out) {
  EXPECT_TRUE(out.empty());
  constexpr size_t kBytes[] = {60, 72, 12};
  out.resize(kBytes[index], std::byte(index + 1));
  return {};
}

TEST(GgufWrite, ReadsBackTheSameMetadataTensorsAndBytes) {
  const TempDir dir;
  const Status written = write_gguf(dir / "m.gguf", every_kind(), three_tensors(), pattern);
  ASSERT_TRUE(written.has_value()) << written.error().message;
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"m.gguf"}));
  const auto file = open_gguf(dir / "m.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->gguf.version, 3u);
  EXPECT_EQ(file->gguf.metadata, every_kind());
  const auto specs = three_tensors();
  ASSERT_EQ(file->gguf.tensors.size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const Tensor& tensor = file->gguf.tensors[i];
    EXPECT_EQ(tensor.name, specs[i].name);
    EXPECT_EQ(tensor.format, specs[i].format);
    EXPECT_EQ(tensor.shape, specs[i].shape);
    std::vector<std::byte> expected;
    ASSERT_TRUE(pattern(i, expected).has_value());
    EXPECT_TRUE(std::ranges::equal(tensor.data, expected)) << tensor.name;
  }
}

TEST(GgufWrite, PaddingIsZeroAndDataIsAligned) {
  const TempDir dir;
  write_gguf(dir / "m.gguf", {}, three_tensors(), pattern).or_throw();
  const GgufFile file = open_gguf(dir / "m.gguf").or_throw();
  const auto bytes = file.files[0].bytes();
  EXPECT_EQ(bytes.size() % 32, 0u);
  for (const Tensor& tensor : file.gguf.tensors) {
    const size_t start = size_t(tensor.data.data() - bytes.data());
    EXPECT_EQ(start % 32, 0u);
    for (size_t at = start + tensor.data.size(); at % 32 != 0; ++at) EXPECT_EQ(bytes[at], std::byte{0}) << at;
  }
}

TEST(GgufWrite, AlignmentOfTheMetadataIsKept) {
  const TempDir dir;
  write_gguf(dir / "m.gguf", {{"general.alignment", uint64_t(4096)}}, three_tensors(), pattern).or_throw();
  const GgufFile file = open_gguf(dir / "m.gguf").or_throw();
  EXPECT_EQ(size_t(file.gguf.tensors[1].data.data() - file.files[0].bytes().data()) % 4096, 0u);
}

TEST(GgufWrite, NumbersAreAsNarrowAsOtherReadersExpect) {
  const TempDir dir;
  write_gguf(dir / "m.gguf", {{"k", uint64_t(9)}}, {}, pattern).or_throw();
  const std::string text = read_text_file(dir / "m.gguf", 1000).or_throw();
  const std::string expected("\1\0\0\0\0\0\0\0k\4\0\0\0\x9\0\0\0", 17);  // key length, key, type u32, value
  EXPECT_EQ(text.substr(24, expected.size()), expected);
}

TEST(GgufWrite, WithoutTensorsItIsAVocabulary) {
  const TempDir dir;
  write_gguf(dir / "v.gguf", every_kind(), {}, pattern).or_throw();
  EXPECT_EQ(open_gguf(dir / "v.gguf").or_throw().gguf.metadata, every_kind());
}

TEST(GgufWrite, ReplacesAFileAndLeavesItAloneOnFailure) {
  const TempDir dir;
  dir.write("m.gguf", "old");
  const auto broken = [](size_t, std::vector<std::byte>&) { return Status(bad_file("the weights are broken")); };
  expect_refused(write_gguf(dir / "m.gguf", {}, three_tensors(), broken), "the weights are broken");
  EXPECT_EQ(read_text_file(dir / "m.gguf", 10).or_throw(), "old");
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"m.gguf"}));
  write_gguf(dir / "m.gguf", {}, three_tensors(), pattern).or_throw();
  EXPECT_EQ(open_gguf(dir / "m.gguf").or_throw().gguf.tensors.size(), 3u);
}

TEST(GgufWrite, AnExceptionOfThePayloadLeavesNothingBehind) {
  const TempDir dir;
  const auto thrower = [](size_t, std::vector<std::byte>&) -> Status { throw Error(ErrorKind::no_memory, "full"); };
  EXPECT_THROW((void)write_gguf(dir / "m.gguf", {}, three_tensors(), thrower), Error);
  EXPECT_TRUE(dir.names().empty());
}

TEST(GgufWrite, APayloadOfTheWrongSizeIsRefused) {
  const TempDir dir;
  const auto short_one = [](size_t, std::vector<std::byte>& out) { return out.resize(59), Status(); };
  expect_refused(write_gguf(dir / "m.gguf", {}, three_tensors(), short_one),
                 "tensor 'embed' came with 59 bytes, expected 60");
  EXPECT_TRUE(dir.names().empty());
}

struct BadSpec {
  const char* name;
  std::function<void(Metadata&, std::vector<GgufTensorSpec>&)> mutate;
  const char* message;
};
void PrintTo(const BadSpec& spec, std::ostream* out) { *out << spec.name; }
class BadSpecTest : public testing::TestWithParam<BadSpec> {};

TEST_P(BadSpecTest, IsRefusedBeforeAnythingIsWritten) {
  const TempDir dir;
  Metadata metadata = every_kind();
  std::vector<GgufTensorSpec> tensors = three_tensors();
  GetParam().mutate(metadata, tensors);
  expect_refused(write_gguf(dir / "m.gguf", metadata, tensors, pattern), GetParam().message);
  EXPECT_TRUE(dir.names().empty());
}

const BadSpec kBadSpecs[] = {
    {"KeyEmpty", [](auto& m, auto&) { m[""] = true; }, "key '' is empty"},
    {"KeyWithNul", [](auto& m, auto&) { m[std::string("a\0b", 3)] = true; }, "holds a NUL byte"},
    {"KeyBrokenUtf8", [](auto& m, auto&) { m["\xFF"] = true; }, "is not valid UTF-8"},
    {"Alignment7", [](auto& m, auto&) { m["general.alignment"] = uint64_t(7); }, "'general.alignment' is 7"},
    {"NameTwice", [](auto&, auto& t) { t[1].name = "embed"; }, "tensor 'embed' appears twice"},
    {"NameEmpty", [](auto&, auto& t) { t[1].name = ""; }, "tensor name '' is empty"},
    {"NameTooLong", [](auto&, auto& t) { t[1].name = std::string(64, 'n'); }, "has 64 bytes, expected at most 63"},
    {"NoDims", [](auto&, auto& t) { t[0].shape = {}; }, "tensor 'embed' has no dimensions"},
    {"FiveDims",
     [](auto&, auto& t) {
       t[0].shape = {1, 1, 1, 1, 1};
     },
     "has 5 dimensions, expected at most 4"},
    {"ZeroDim",
     [](auto&, auto& t) {
       t[0].shape = {3, 0};
     },
     "has dimension 1 of size 0"},
    {"RowsNotOfGroups",
     [](auto&, auto& t) {
       t[1].shape = {2, 48};
     },
     "has rows of 48 elements"},
    {"ProductOverflows",
     [](auto&, auto& t) {
       t[0].shape = {INT64_MAX, 2};
     },
     "more elements than 63 bits"},
    {"SumOverflows",
     [](auto&, auto& t) {
       for (auto& tensor : t) tensor = {tensor.name, format("f32"), {int64_t(1) << 61}};
     },
     "ends past 64 bits"},
};
INSTANTIATE_TEST_SUITE_P(All, BadSpecTest, testing::ValuesIn(kBadSpecs),
                         [](const testing::TestParamInfo<BadSpec>& test) { return std::string(test.param.name); });

TEST(GgufWrite, ATargetThatCannotBeWrittenIsReported) {
  const TempDir dir;
  const auto expect_failure = [&](const std::filesystem::path& path, std::string_view part) {
    const Status written = write_gguf(path, {}, three_tensors(), pattern);
    ASSERT_FALSE(written.has_value()) << path;
    EXPECT_THAT(written.error().message, testing::HasSubstr(std::string(part)));
  };
  expect_failure(dir / "none/m.gguf", "there is no folder");
  expect_failure(dir.write("file", "x") / "m.gguf", "Not a directory");
  expect_failure(dir.path() / "", "not a file name");
  std::filesystem::create_directory(dir / "taken.gguf");
  expect_failure(dir / "taken.gguf", "Is a directory");
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"file", "taken.gguf"}));
}

/// Lets files grow to `bytes` only while it lives, like a disk that fills up.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) : old_handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallDisk() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    ::signal(SIGXFSZ, old_handler_);
  }

 private:
  sighandler_t old_handler_;
  rlimit old_limit_{};
};

TEST(GgufWrite, ADiskThatFillsUpIsReportedAndNothingIsLeftBehind) {
  const TempDir dir;
  write_gguf(dir / "whole.gguf", every_kind(), three_tensors(), pattern).or_throw();
  const uint64_t whole = std::filesystem::file_size(dir / "whole.gguf");
  for (const uint64_t room : {uint64_t(0), uint64_t(10), whole / 2, whole - 100, whole - 1}) {
    const SmallDisk disk(room);
    const Status written = write_gguf(dir / "m.gguf", every_kind(), three_tensors(), pattern);
    ASSERT_FALSE(written.has_value()) << room;
    EXPECT_EQ(written.error().kind, ErrorKind::failure);
    EXPECT_THAT(written.error().message, testing::HasSubstr("File too large"));
    EXPECT_EQ(dir.names(), (std::vector<std::string>{"whole.gguf"})) << room;
  }
}

TEST(GgufWrite, TheFileHasTheUsualMode) {
  const TempDir dir;
  const mode_t mask = ::umask(022);
  write_gguf(dir / "m.gguf", {}, {}, pattern).or_throw();
  ::umask(mask);
  struct stat facts {};
  ASSERT_EQ(::stat((dir / "m.gguf").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0644u);
}

}  // namespace
}  // namespace ridge::io
