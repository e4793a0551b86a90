// Functions of newer versions of glibc that libstdc++ and libgcc ask for, so that a package runs with older ones
// (RIDGE_STATIC_DEPS). With RIDGE_OLD_GLIBC the package is linked against a glibc before 2.32.
#include <link.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" {

/// glibc 2.36; std::random_device calls it. Weak: libbsd, which libedit brings, has one too.
__attribute__((weak)) uint32_t arc4random() {
  uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != ssize_t(sizeof value)) abort();
  return value;
}

#ifdef RIDGE_OLD_GLIBC
/// glibc 2.32: whether there is one thread. No is always safe.
char __libc_single_threaded = 0;

namespace {

/// Looks for the object that holds an address.
struct ObjectSearch {
  uintptr_t address;
  dl_find_object* found;
};

int search(dl_phdr_info* info, size_t, void* data) {
  auto& s = *static_cast<ObjectSearch*>(data);
  const void* eh_frame = nullptr;
  uintptr_t first = 0, last = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_GNU_EH_FRAME) eh_frame = reinterpret_cast<const void*>(begin);
    if (part.p_type == PT_LOAD && s.address >= begin && s.address < begin + part.p_memsz)
      first = begin, last = begin + part.p_memsz;
  }
  if (last == 0 || !eh_frame) return 0;
  *s.found = {};
  s.found->dlfo_map_start = reinterpret_cast<void*>(first);
  s.found->dlfo_map_end = reinterpret_cast<void*>(last);
  s.found->dlfo_eh_frame = const_cast<void*>(eh_frame);
  return 1;
}

}  // namespace

/// glibc 2.35: the tables by which libgcc unwinds the stack of an exception.
int _dl_find_object(void* address, dl_find_object* found) {
  ObjectSearch s{reinterpret_cast<uintptr_t>(address), found};
  return dl_iterate_phdr(search, &s) == 1 ? 0 : -1;
}
#endif
}
