// Conversion: honest ones load again, near the model that they were made of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include "cases/paths.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "model/convert.h"
#include "model/convert_rows.h"
#include "model/weights.h"

namespace ridge {
namespace {

const char* const kTiny = RIDGE_SOURCE_DIR "/models/stories260K.gguf";

TEST(Convert, EveryWritableFormatLoadsAndStaysClose) {
  const LoadedModel source = load_model(kTiny).or_throw();
  for (const WeightFormat& format : weight_formats()) {
    // Formats without an encoder and i2_s are not written, int4_g128 is no GGUF type.
    if (!format.encode || format.tail_bytes > 0 || format.gguf_type < 0) continue;
    const TempDir directory;
    const std::filesystem::path path = directory.path() / "out.gguf";
    const int n_scales = format.largest > 0 ? 5 * 6 + 1 : 0;  // q, k, v, o, gate, up; output
    int reported = 0;
    QuantizeType type(format);
    type.n_threads = 1;
    const auto converted = convert_to_gguf(kTiny, path, type, [&](int done, int total, std::string_view) {
      EXPECT_EQ(done, ++reported);
      EXPECT_EQ(total, 47 + 1 + n_scales);
    });
    ASSERT_TRUE(converted) << format.name << ": " << converted.error().message;
    EXPECT_EQ(reported, 48 + n_scales);
    type.n_threads = 3;
    convert_to_gguf(kTiny, directory / "threads.gguf", type, nullptr).or_throw();
    const auto bytes = [](const auto& file) { return io::read_text_file(file, 1 << 24).or_throw(); };
    EXPECT_TRUE(bytes(directory / "threads.gguf") == bytes(path)) << format.name << ": other bytes with three threads";
    const LoadedModel model = load_model(path.string()).or_throw();
    EXPECT_EQ(model.config.name, source.config.name);
    // d_model is 64 and d_ff 172: rows of the one are too short for super-blocks, the other divides by no group at all.
    const std::map<std::string_view, std::string_view> shorter{
        {"q4_k", "q5_0"}, {"q5_k", "q5_1"}, {"q6_k", "q8_0"}, {"iq4_xs", "iq4_nl"}, {"tq1_0", "f16"}, {"tq2_0", "f16"}};
    const bool fits = 64 % format.group == 0;
    const std::string_view q = fits ? format.name : shorter.at(format.name);
    EXPECT_EQ(model.weights.layers[0].q.format->name, q);
    EXPECT_EQ(model.weights.layers[0].down.format->name, format.group == 1 ? format.name : "f16");
    // Every matrix that fell back is named: 5 ffn_down of 172, or with super-blocks all 7 x 5 and the two embeddings.
    // Ternary formats leave the embeddings alone.
    const size_t embeddings = format.name.starts_with("tq") ? 0 : 2;
    EXPECT_EQ(converted->fallbacks.size(), format.group == 1 ? 0u : fits ? 5u : 35u + embeddings) << format.name;
    for (const Fallback& f : converted->fallbacks) {
      EXPECT_EQ(f.wanted->name, format.name);
      EXPECT_EQ(f.got->name, f.n_in == 172 ? "f16" : q) << f.tensor;
    }
    EXPECT_EQ(model.tokenizer->encode("Once upon a time", true, false),
              source.tokenizer->encode("Once upon a time", true, false));
  }
}

/// The values of a matrix, its scale in them.
std::vector<float> values_of(const Linear& m) {
  std::vector<float> values(size_t(m.n_out * m.n_in), 0.0f);
  m.format->decode(m.rows, ssize(values), values.data());
  for (float& value : values) value *= m.scale;
  return values;
}
/// The scale that nvfp4 gives a matrix, and its values within a tenth of their size.
void expect_nvfp4_of(const Linear& from, const Linear& to) {
  const std::vector<float> before = values_of(from), after = values_of(to);
  double error = 0, size = 0;
  float largest = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    error += std::pow(double(after[i]) - before[i], 2), size += double(before[i]) * before[i];
    largest = std::max(largest, std::abs(before[i]));
  }
  EXPECT_EQ(to.format->name, "nvfp4");
  EXPECT_EQ(to.scale, largest / 2688);
  EXPECT_LT(error, 0.01 * size);
  EXPECT_GT(error, 0);
}

TEST(Convert, MatricesOfNvfp4HaveAScaleOfTheirOwn) {
  const TempDir directory;
  const QuantizeType type = find_quantize_type("nvfp4").or_throw();
  const auto path = [&](const char* name) { return (directory.path() / name).native(); };
  convert_to_gguf(kTiny, path("once"), type, nullptr).or_throw();
  const LoadedModel before = load_model(kTiny).or_throw(), after = load_model(path("once")).or_throw();
  for (size_t i = 0; i < before.weights.layers.size(); ++i)
    for (Linear LayerWeights::*m : {&LayerWeights::q, &LayerWeights::v, &LayerWeights::o, &LayerWeights::gate})
      expect_nvfp4_of(before.weights.layers[i].*m, after.weights.layers[i].*m);
  expect_nvfp4_of(before.weights.output, after.weights.output);
  EXPECT_EQ(after.weights.embedding.format->name, "q8_0");
  // Blocks and scales are kept as they are.
  EXPECT_EQ(convert_to_gguf(path("once"), path("twice"), type, nullptr).or_throw().n_requantized, 0);
  EXPECT_TRUE(io::read_text_file(path("once"), 1 << 24).or_throw() ==
              io::read_text_file(path("twice"), 1 << 24).or_throw());
}

TEST(Convert, EveryExpertOfNvfp4HasAScaleOfItsOwn) {
  const auto data = reference_data();
  if (!data || !std::filesystem::exists(*data / "parity/models/qwen3_moe")) GTEST_SKIP() << "needs the reference data";
  const TempDir directory;
  const std::string from = (*data / "parity/models/qwen3_moe").native(), to = (directory.path() / "m.gguf").native();
  convert_to_gguf(from, to, find_quantize_type("nvfp4").or_throw(), nullptr).or_throw();
  const LoadedModel before = load_model(from).or_throw(), after = load_model(to).or_throw();
  std::set<float> scales;
  for (size_t i = 0; i < before.weights.layers.size(); ++i)
    for (size_t e = 0; e < before.weights.layers[i].experts.size(); ++e) {
      expect_nvfp4_of(before.weights.layers[i].experts[e].gate, after.weights.layers[i].experts[e].gate);
      scales.insert(after.weights.layers[i].experts[e].gate.scale);
    }
  EXPECT_GT(scales.size(), 2u);
}

TEST(Convert, TheFirstRowThatFailsIsNamedWithAnyNumberOfThreads) {
  for (const int n_threads : {1, 4}) {
    ThreadPool pool(n_threads);
    std::vector<int64_t> done(100, 0);
    const Status status = for_each_row(pool, 100, 3, [&](int64_t r, std::vector<float>& row) -> Status {
      EXPECT_EQ(row.size(), 3u);
      done[size_t(r)] = 1;
      if (r % 40 == 39) return bad_file("row {}", r);
      return {};
    });
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "row 39");
    EXPECT_EQ(std::accumulate(done.begin(), done.begin() + 40, 0), 40) << "all rows before it";
  }
}

TEST(Convert, FormatsWithoutAnEncoderAreRefusedByNameAndNotOffered) {
  for (const WeightFormat& format : weight_formats()) {
    if (format.encode) continue;
    const auto type = find_quantize_type(format.name);
    ASSERT_FALSE(type) << format.name;
    EXPECT_NE(type.error().message.find(std::string(format.name) + ": this format is read, not written"),
              std::string::npos);
    EXPECT_NE(type.error().message.find("q8_0, q6_k"), std::string::npos) << "what there is instead";
    EXPECT_EQ((", " + quantize_type_names() + ",").find(fmt::format(", {},", format.name)), std::string::npos);
  }
}

TEST(Convert, AMixGivesTheBetterFormatToTheTensorsThatNeedIt) {
  // Five layers: the last eighth is layer 4, every third is layer 2. Every format falls back here, q4_k to q5_0 and
  // q6_k to q8_0, which shows all the same who was meant to get what.
  const TempDir directory;
  const std::string path = (directory.path() / "out.gguf").native();
  const std::vector<Fallback> fallbacks =
      convert_to_gguf(kTiny, path, find_quantize_type("q4_k_m").or_throw(), nullptr).or_throw().fallbacks;
  std::map<std::string, std::string_view> wanted;
  for (const Fallback& f : fallbacks) wanted[f.tensor] = f.wanted->name;
  EXPECT_EQ(wanted.at("output.weight"), "q6_k");
  EXPECT_EQ(wanted.at("token_embd.weight"), "q4_k");
  const LoadedModel model = load_model(path).or_throw();
  EXPECT_EQ(std::get<io::GgufFile>(model.weights.source).gguf.integer("general.file_type").value(), 15);
  EXPECT_EQ(model.weights.output.format->name, "q8_0");
  for (int i = 0; i < 5; ++i) {
    const LayerWeights& layer = model.weights.layers[size_t(i)];
    const bool better = i == 2 || i == 4;
    EXPECT_EQ(layer.v.format->name, better ? "q8_0" : "q5_0") << i;
    EXPECT_EQ(wanted.at(fmt::format("blk.{}.ffn_down.weight", i)), better ? "q6_k" : "q4_k") << i;
    for (const Linear* m : {&layer.q, &layer.k, &layer.o, &layer.gate, &layer.up}) EXPECT_EQ(m->format->name, "q5_0");
  }
  EXPECT_FALSE(find_quantize_type("q4_k_l"));
}

TEST(Convert, CompressedMatricesAreRoundedAgainOnlyWhenAsked) {
  const TempDir directory;
  const auto path = [&](const char* name) { return (directory.path() / name).native(); };
  const auto type = [](const char* name) { return find_quantize_type(name).or_throw(); };
  const Converted first = convert_to_gguf(kTiny, path("q4_1"), type("q4_1"), nullptr).or_throw();
  EXPECT_EQ(first.n_requantized, 0) << "the original is f32";
  for (const char* next : {"q8_0", "q4_0", "q4_k_m", "bf16"}) {
    const auto refused = convert_to_gguf(path("q4_1"), path("no"), type(next), nullptr);
    ASSERT_FALSE(refused) << next;
    EXPECT_EQ(refused.error().kind, ErrorKind::usage);
    EXPECT_NE(refused.error().message.find("in q4_1)"), std::string::npos) << refused.error().message;
    EXPECT_NE(refused.error().message.find("--allow-requantize"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(path("no")));
  // The same format is the same bytes, and f16 and f32 keep what the codes say.
  for (const char* next : {"q4_1", "f16", "f32"})
    EXPECT_EQ(convert_to_gguf(path("q4_1"), path("again"), type(next), nullptr).or_throw().n_requantized, 0) << next;
  QuantizeType asked = type("q8_0");
  asked.requantizes = true;
  EXPECT_GT(convert_to_gguf(path("q4_1"), path("q8_0"), asked, nullptr).or_throw().n_requantized, 30);
}

TEST(Convert, RowsThatRopeDoesNotTurnStay) {
  const auto data = reference_data();
  if (!data || !std::filesystem::exists(*data / "parity/models/llama3")) GTEST_SKIP() << "needs the reference data";
  const TempDir directory;
  const std::filesystem::path from = directory.path() / "m", to = directory.path() / "m.gguf";
  std::filesystem::copy(*data / "parity/models/llama3", from);
  const auto config = from / "config.json";
  std::string text = io::read_text_file(config, 1 << 16).or_throw();
  text.insert(text.find('{') + 1, "\"partial_rotary_factor\": 0.5, ");
  std::filesystem::permissions(config, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
  std::ofstream(config) << text;
  convert_to_gguf(from, to, find_quantize_type("f32").or_throw(), nullptr).or_throw();
  const LoadedModel halves = load_model(from.string()).or_throw(), pairs = load_model(to.string()).or_throw();
  const int64_t head_dim = halves.config.head_dim, rope_dim = halves.config.rope_dim;
  ASSERT_EQ(rope_dim, head_dim / 2);
  const auto row_of = [](const Linear& m, int64_t row) {
    std::vector<float> values(size_t(m.n_in));
    m.format->decode(m.rows + row * m.format->row_bytes(m.n_in), m.n_in, values.data());
    return values;
  };
  const Linear &q = halves.weights.layers[0].q, &turned = pairs.weights.layers[0].q;
  for (int64_t i = 0; i < q.n_out; ++i) {
    const int64_t r = i % head_dim, of_pairs = r % 2 * (rope_dim / 2) + r / 2;
    EXPECT_EQ(row_of(turned, i), row_of(q, i - r + (r < rope_dim ? of_pairs : r))) << i;
  }
}

TEST(Convert, SaysHowManyBitsAWeightThereAre) {
  const TempDir directory;
  const auto bits = [&](const char* name) {
    const std::string path = (directory.path() / name).native();
    const Converted made = convert_to_gguf(kTiny, path, find_quantize_type(name).or_throw(), nullptr).or_throw();
    EXPECT_EQ(made.n_weights, load_model(path).or_throw().weights.n_params);
    EXPECT_LT(made.n_bytes, int64_t(std::filesystem::file_size(path)));
    return 8.0 * double(made.n_bytes) / double(made.n_weights);
  };
  EXPECT_EQ(bits("f32"), 32);
  EXPECT_GT(bits("q4_k_m"), 5.5) << "most rows are too short for super-blocks";
}

TEST(Convert, RefusesToOverwriteItsInputAndNonsense) {
  const WeightFormat& f16 = *find_weight_format("f16").or_throw();
  const TempDir directory;
  const std::filesystem::path never = directory.path() / "never.gguf";
  EXPECT_FALSE(convert_to_gguf(kTiny, kTiny, f16, nullptr));
  EXPECT_FALSE(convert_to_gguf("no-such-model", never, f16, nullptr));
  EXPECT_FALSE(std::filesystem::exists(never));
}

}  // namespace
}  // namespace ridge
