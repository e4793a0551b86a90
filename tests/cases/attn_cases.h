// Shapes that attention kernels are tested on.
#pragma once

#include <fmt/format.h>

#include <string>

namespace ridge {

struct HeadLayout {
  int n_heads = 0;
  int n_kv_heads = 0;
};

struct AttnCase {
  HeadLayout heads;
  int head_dim = 0;
  int n_keys = 0;
  std::string name() const {
    return fmt::format("heads {}/{} head_dim {} keys {}", heads.n_heads, heads.n_kv_heads, head_dim, n_keys);
  }
};

}  // namespace ridge
