// Libraries that are opened when they are wanted: a program that does not use one runs where it is not installed.
#pragma once

#include <dlfcn.h>

#include <span>
#include <string_view>

#include "base/result.h"

namespace ridge::gpu {

/// The first of `names` that opens, for the rest of the program; null when none does.
inline void* open_library(std::span<const char* const> names) {
  for (const char* name : names)
    if (void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  return nullptr;
}

/// Throws Error(no_device) when the library has no such function.
template <class Function>
void find_function(void* handle, std::string_view library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (!function) throw_error(ErrorKind::no_device, "{} has no {} (is it another release?)", library, name);
}

}  // namespace ridge::gpu
