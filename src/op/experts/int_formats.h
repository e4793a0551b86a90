// The weight formats whose experts a device multiplies as integers, for a few tokens (int_experts_cuda.h,
// int_packs_cuda.h). Others go through f16 planes.
#pragma once

#include <string_view>

namespace ridge {

inline constexpr std::string_view kIntExpertFormats[] = {"int4_g128", "q4_k", "q5_k", "q6_k", "q8_0", "q4_0"};

}  // namespace ridge
