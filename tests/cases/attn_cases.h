// The shapes every attention kernel is tested on: head layouts of real models, odd head sizes, key counts around tiles.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

namespace ridge {

struct HeadLayout {
  int n_heads = 0;
  int n_kv_heads = 0;
};
inline constexpr std::array<HeadLayout, 5> kHeadLayouts = {{{8, 2}, {12, 2}, {6, 6}, {20, 5}, {7, 1}}};
inline constexpr std::array kHeadDims = {8, 16, 64, 80, 96, 128, 256};

struct AttnCase {
  HeadLayout heads;
  int head_dim = 0;
  int n_keys = 0;
  std::string name() const {
    return fmt::format("heads {}/{} head_dim {} keys {}", heads.n_heads, heads.n_kv_heads, head_dim, n_keys);
  }
};

/// Every head layout with every head size, over key counts on both sides of a tile of 32 and of a work item.
inline std::vector<AttnCase> attn_cases() {
  std::vector<AttnCase> cases;
  for (const int n_keys : {1, 2, 31, 32, 33, 64, 500, 1031})
    for (const int head_dim : kHeadDims)
      for (const HeadLayout heads : kHeadLayouts) {
        // The long ones once per layout and once per head size: they add splits, not shapes.
        if (n_keys >= 500 && heads.n_heads != 12 && head_dim != 64) continue;
        cases.push_back({heads, head_dim, n_keys});
      }
  return cases;
}

}  // namespace ridge
