// Attention on a device over tiles of rows, in floats and on tensor cores.
#include "gpu/attention_cases.h"

namespace ridge {
namespace {

using namespace attention_cases;

/// Rules of exact rows on either side, with a sequence's queries in blocks together and each alone. `format`: of a side
/// that has no such rules.
std::vector<Case> windows_and_sinks(const char* format) {
  const std::pair<KvSideConfig, KvSideConfig> mixes[] = {
      {side(format), side("rotor-3s", kCentred)},
      {side("rotor-3", kCentred), side("rotor-3u", {Rotation::hadamard, true, 0, 3})},
      {side("q8_0", kWindow), side("q4_0", kWide)},
      {side("i8r", kSinks), side("f16", {Rotation::planar, true, 0, 0})}};
  std::vector<Case> cases;
  for (const auto& [k, v] : mixes)
    for (const bool alone : {false, true})
      for (const Sequence s : {Sequence{0, 1}, {0, 40}, {64, 9}, {63, 1}, {150, 20}})
        cases.push_back({.k = k,
                         .v = v,
                         .dim = 32,
                         .group = 2,
                         .sequences = {s, {70, 2}},
                         .padding = alone ? 2 : 0,
                         .alone = alone,
                         .row_parts = s.n_new == 9 ? 8 : 3,  // more parts than tiles
                         .prefill_blocks = 8,
                         .prefill_least_tiles = 1});
  return cases;
}

TEST_F(AttentionCuda, RowsOfEveryFormat) {
  for (const KvFormat& format : kv_formats())
    for (const int dim : {32, 96})
      check({.k = side(format.name.data()),
             .v = side(format.name.data()),
             .dim = dim,
             .group = 3,
             .sequences = {{37, 5}}},
            Kernel::rows);
  for (const int dim : {8, 64, 128, 192, 256, 320, 512})
    check({.k = side("f16"), .v = side("bf16"), .dim = dim, .sequences = {{20, 30}}}, Kernel::rows);
  for (const int dim : {8, 24, 192, 512})
    check({.k = side("rotor-3"), .v = side("rotor-4"), .dim = dim, .sequences = {{37, 5}}}, Kernel::rows);
  check({.k = side("q8_0", kWindow), .v = side("q4_0", kWide), .dim = 512, .sequences = {{70, 2}}}, Kernel::rows);
}

TEST_F(AttentionCuda, RowsOfWindowsAndSinks) {
  for (const Case& c : windows_and_sinks("f32")) check(c, Kernel::rows);
}

TEST_F(AttentionCuda, RowsInF16OfEveryFormat) {
  for (const KvFormat& format : kv_formats()) {
    if (format.name == "f32" || format.name == "bf16") continue;
    for (const int dim : {32, 96})
      for (const bool alone : {false, true})
        check({.k = side(format.name.data()),
               .v = side(format.name.data()),
               .dim = dim,
               .group = 3,
               .sequences = {{37, 5}},
               .alone = alone},
              Kernel::rows_f16);
  }
  for (const int dim : {16, 80, 128, 192, 256, 320, 512}) {
    check({.k = side("f16"), .v = side("q8_0"), .dim = dim / 32 * 32 + 32 * (dim < 32), .sequences = {{20, 30}}},
          Kernel::rows_f16);
    check({.k = side("f16"), .v = side("f16"), .dim = dim, .sequences = {{70, 2}}, .alone = true}, Kernel::rows_f16);
  }
  check({.k = side("q8_0", kWindow), .v = side("q4_0", kWide), .dim = 512, .sequences = {{70, 2}}}, Kernel::rows_f16);
}

TEST_F(AttentionCuda, RowsInF16OfWindowsAndSinks) {
  for (const Case& c : windows_and_sinks("f16")) check(c, Kernel::rows_f16);
}

/// Groups that fill no block, and more than one.
TEST_F(AttentionCuda, RowsInF16OfAnyGroup) {
  for (const int group : {1, 16, 17, 40})
    for (const bool alone : {false, true})
      check({.k = side("f16"),
             .v = side("f16"),
             .dim = 96,
             .n_kv_heads = 1,
             .group = group,
             .sequences = {{40, 4}},
             .sink_logits = true,
             .alone = alone},
            Kernel::rows_f16);
}

/// A centre of K that turns is added to keys before they are rounded.
TEST_F(AttentionCuda, RowsInF16WithATurningCentre) {
  for (const int dim : {96, 512})
    for (const bool alone : {false, true})
      check({.k = side("rotor-3", kCentred),
             .v = side("rotor-3", kCentred),
             .dim = dim,
             .sequences = {{90, 3}},
             .n_pairs = 16,
             .alone = alone},
            Kernel::rows_f16);
}

TEST_F(AttentionCuda, AttentionWindowsOverRows) {
  for (const Kernel kernel : {Kernel::rows, Kernel::rows_f16})
    for (const auto& [k, v] : {std::pair{kPlain, kPlain}, {kCentred, kWindow}, {kSinks, kWide}})
      for (const int window : {1, 31, 32, 63, 97, 400})
        for (const bool alone : {false, true})
          check({.k = side("rotor-3", k),
                 .v = side("q8_0", v),
                 .dim = 32,
                 .sequences = {{190, 20}, {2, 40}},
                 .window = window,
                 .sink_logits = window % 2 == 1,
                 .alone = alone},
                kernel);
}

}  // namespace
}  // namespace ridge
