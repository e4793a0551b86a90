#include "lab/model/bench_check.h"

#include <gtest/gtest.h>

#include "engine/kv_choice.h"

namespace ridge::lab {
namespace {

/// A layer of every kind: plain, sliding, with experts, with sink logits, latent, with a state, with heads of its own,
/// without a mixer. One sequence and three.
TEST(BenchCheck, EveryKindOfLayerPasses) {
  for (const char* path :
       {"synth:tiny", "synth:tiny-bitnet", "synth:tiny-gemma", "synth:tiny-experts", "synth:tiny-oss",
        "synth:tiny-latent", "synth:tiny-index", "synth:tiny-delta", "synth:tiny-gemma4", "synth:tiny-nemotron"}) {
    const Model model = Model::load(path, {.n_threads = 2});
    BenchReference reference(path);
    for (const char* kv : {"f16", "rotor-3"})
      for (const int n_seq : {1, 3}) {
        const CheckCase of{.kv = parse_kv_list(kv).or_throw()[0], .depth = 100, .n_seq = n_seq};
        const BenchCheck check = reference.compare(model, of, 7, std::nullopt);
        EXPECT_TRUE(check.done && check.passed)
            << path << ' ' << kv << ": " << check.nmse << " of " << check.bound << ", " << check.what;
      }
  }
}

}  // namespace
}  // namespace ridge::lab
