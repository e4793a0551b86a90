#include "op/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace ridge {
namespace {

/// Something that kernels ask the processor for.
struct Ability {
  std::string_view name;
  bool (*has)();
};

#if defined(__x86_64__)
constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512};

bool has_avx2() {
  __builtin_cpu_init();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // clang 14 does not know "f16c" by name
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}
bool has_avxvnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}
constexpr Ability kAbilities[] = {{"avx2", has_avx2}, {"avx_vnni", has_avxvnni}, {"avx512", has_avx512}};

#elif defined(__aarch64__)
constexpr Isa kIsas[] = {Isa::scalar, Isa::neon};

#if defined(__linux__)
// Bits of the kernel's words, which old headers do not name.
bool has_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }
bool has_i8mm() { return getauxval(AT_HWCAP2) >> 13 & 1; }
constexpr Ability kAbilities[] = {{"asimddp", has_dotprod}, {"i8mm", has_i8mm}};
#elif defined(__APPLE__)
bool has_feature(const char* name) {
  int value = 0;
  size_t bytes = sizeof value;
  return sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 && value != 0;
}
bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
constexpr Ability kAbilities[] = {{"FEAT_DotProd", has_dotprod}, {"FEAT_I8MM", has_i8mm}};
#else
#error "how does this system tell whether the processor has dot products?"
#endif

#else
constexpr Isa kIsas[] = {Isa::scalar};
constexpr std::array<Ability, 0> kAbilities{};
#endif

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"scalar", "neon", "avx2", "avx512"};
  return kNames[size_t(isa)];
}

std::span<const Isa> isas() { return kIsas; }

std::string isa_names() {
  std::string names;
  for (const Isa isa : kIsas) names.append(names.empty() ? "" : ", ").append(isa_name(isa));
  return names;
}

Result<Isa> find_isa(std::string_view name) {
  if (name.empty()) return isas().back();
  for (const Isa isa : kIsas)
    if (isa_name(isa) == name) return isa;
  return wrong_field("isa", "isa '{}' is unknown (there are: {})", name, isa_names());
}

bool is_allowed(const ForcedKernels& forced, std::string_view op, std::string_view name) {
  const auto choice = forced.find(op);
  return choice == forced.end() || ('+' + choice->second + '+').find(fmt::format("+{}+", name)) != std::string::npos;
}

Isa detect_isa() {
#if defined(__x86_64__)
  if (has_avx512()) return Isa::avx512;
  if (has_avx2()) return Isa::avx2;
#elif defined(__aarch64__)
  if (has_dotprod()) return Isa::neon;
#endif
  return Isa::scalar;
}

std::vector<std::string_view> cpu_abilities() {
  std::vector<std::string_view> found;
  for (const Ability& ability : kAbilities)
    if (ability.has()) found.push_back(ability.name);
  return found;
}

bool has_ability(std::string_view name) {
  static const std::vector<std::string_view> known = cpu_abilities();
  return std::ranges::count(known, name) > 0;
}

}  // namespace ridge
