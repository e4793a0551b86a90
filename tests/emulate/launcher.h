// A library that runs kernels in the place of the emulated GPU, as C declarations. RIDGE_LAUNCHER names its file. It
// gets each launch with the address of the kernel's host function, whose name the device code has too, and with the
// arguments as a device gets them. Memory, streams and graphs stay the emulated ones, guard pages included.
#pragma once

#include <cstdint>

extern "C" {
struct ridge_launch {
  const void* kernel;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;    // dynamic
  uint32_t argument_bytes;  // without what a device's compiler adds behind them
  const void* arguments;    // each at a multiple of its alignment
  // What a runtime of a whole program knows besides (tools/amd/runtime.cpp); null here.
  const void* bundle;   // the device code that has the kernel
  const char* name;     // of the kernel in it
  void* const* places;  // where each argument is
  void* packed;         // where they are to be put as `arguments`; then nothing runs, and the bytes are returned
};
/// The library's only function. Returns 1 when the kernel has run, 0 when the emulated GPU is to run it.
using ridge_run = int (*)(const ridge_launch*);
/// The library's only variable, of the name ridge_shared_bytes: what a block may have, which the emulated device
/// reports then. Static shared memory counts.
}

namespace emulate {
/// That one block may have: what the library says; without one what RIDGE_EMULATED_SHARED_KIB says, else 227 KiB. Ends
/// the program where RIDGE_LAUNCHER names a file that cannot be loaded.
unsigned most_shared_bytes();
}  // namespace emulate
