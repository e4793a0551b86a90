// gpu/nccl.h where devices are emulated: NCCL knows none of them, whether or not this machine has it.
#include "base/result.h"
#include "gpu/nccl.h"

namespace ridge::gpu {
namespace {

constexpr const char* kWhyNot = "NCCL does not run on emulated devices";
[[noreturn]] void refuse() { throw Error(ErrorKind::no_device, kWhyNot); }

}  // namespace

std::string nccl_version() { return {}; }
std::string why_no_nccl() { return kWhyNot; }
Nccl::Nccl(std::span<const int>) { refuse(); }
Nccl::~Nccl() = default;
void Nccl::all_reduce(int, StreamHandle, float*, int64_t) { refuse(); }
void Nccl::gather(int, StreamHandle, const float*, std::span<float* const>, std::span<const int64_t>) { refuse(); }
void Nccl::check(int) const { refuse(); }
void Nccl::abort() {}

}  // namespace ridge::gpu
