#include "op/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ridge {

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512"};
  return kNames[size_t(isa)];
}

Result<Isa> find_isa(std::string_view name) {
  if (name.empty()) return Isa::avx512;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
    if (isa_name(isa) == name) return isa;
  return wrong_field("isa", "isa '{}' is unknown (there are: scalar, avx2, avx512)", name);
}

bool is_allowed(const ForcedKernels& forced, std::string_view op, std::string_view name) {
  const auto choice = forced.find(op);
  return choice == forced.end() || ('+' + choice->second + '+').find(fmt::format("+{}+", name)) != std::string::npos;
}

bool has_avxvnni() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return detect_isa() >= Isa::avx2 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
#else
  return false;
#endif
}

Isa detect_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // clang 14 does not know "f16c" by name
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  if (avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::scalar;
}

}  // namespace ridge
