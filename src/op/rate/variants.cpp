// The rate table and the portable kernels. Every multiply-add is of ones, so a round adds its number of them.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "op/rate/kernels.h"

namespace ridge {
namespace {

Support always() { return {}; }

#if defined(__x86_64__)
/// A bit of the processor's leaf 7; false where there is none.
bool leaf7(unsigned sub_leaf, int which, int bit) {
  unsigned r[4] = {};
  return __get_cpuid_count(7, sub_leaf, &r[0], &r[1], &r[2], &r[3]) && (r[which] >> bit & 1);
}
Support has_bf16() { return {leaf7(1, 0, 5), "this processor has no AVX512-BF16"}; }
Support has_f16() { return {leaf7(0, 3, 23), "this processor has no AVX512-FP16"}; }
#endif

template <class T>
int64_t run_ref(int64_t n) {
  T one = 1, sums[kRateSums] = {};
  for (int64_t i = 0; i < n; ++i)
    for (T& sum : sums) {
      __asm__ volatile("" : "+m"(one));  // so that the product is made again
      sum += one * one;
    }
  int64_t total = 0;
  for (const T sum : sums) total += int64_t(sum);
  return total;
}

constexpr RateVariant row(std::string_view number, std::string_view name, Isa isa, Support (*supports)(), int lanes,
                          RateRun* run) {
  return {number, name, isa, supports, 2 * int64_t(kRateSums) * lanes, int64_t(kRateSums) * lanes, run};
}

}  // namespace

int64_t rate_f32_ref(int64_t n) { return run_ref<float>(n); }
int64_t rate_int8_ref(int64_t n) { return run_ref<int32_t>(n); }

std::span<const RateVariant> rate_variants() {
  static constexpr RateVariant kVariants[] = {
    row("f32", "f32-ref", Isa::scalar, always, 1, rate_f32_ref),
#if defined(__x86_64__)
    row("f32", "f32-avx2", Isa::avx2, always, 8, rate_f32_avx2),
    row("f32", "f32-avx512", Isa::avx512, always, 16, rate_f32_avx512),
#elif defined(__aarch64__)
    row("f32", "f32-neon", Isa::neon, always, 8, rate_f32_neon),
#endif
    row("int8", "int8-ref", Isa::scalar, always, 1, rate_int8_ref),
#if defined(__x86_64__)
    row("int8", "int8-avx2", Isa::avx2, always, 32, rate_int8_avx2),
    row("int8", "int8-avx512", Isa::avx512, always, 64, rate_int8_avx512),
    row("bf16", "bf16-avx512", Isa::avx512, has_bf16, 32, rate_bf16_avx512),
    row("f16", "f16-avx512", Isa::avx512, has_f16, 32, rate_f16_avx512),
#elif defined(__aarch64__)
    row("int8", "int8-neon", Isa::neon, always, 32, rate_int8_neon),
#endif
  };
  return kVariants;
}

}  // namespace ridge
