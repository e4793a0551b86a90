#include "capi/guard.h"

#include <exception>
#include <new>

#include "base/build_info.h"

namespace ridge::capi {
namespace {

thread_local std::string last_error;

}  // namespace

ridge_status failed(ErrorKind kind, std::string_view message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return ridge_status(kind);
}

ridge_status failed_with_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return failed(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ErrorKind::no_memory, "not enough memory");
  } catch (const std::exception& error) {
    return failed(ErrorKind::failure, error.what());
  } catch (...) {
    return failed(ErrorKind::failure, "an exception of an unknown type");
  }
}

void check_size(size_t size, size_t known) {
  if (size < sizeof(size_t) || size > known)
    throw_error(ErrorKind::usage,
                "a struct says that it has {} bytes, this library knows {} (call its _init function, or set `size`; or "
                "the program is newer than the library)",
                size, known);
}

}  // namespace ridge::capi

using ridge::ErrorKind;

uint32_t ridge_abi_version(void) { return RIDGE_ABI_VERSION; }

const char* ridge_version(void) {
  static const std::string version = fmt::format("{} ({})", ridge::build_info().version, ridge::build_info().commit);
  return version.c_str();
}

const char* ridge_status_name(ridge_status status) {
  switch (status) {
    case RIDGE_OK: return "ok";
    case RIDGE_FAILURE: return "failure";
    case RIDGE_USAGE: return "usage";
    case RIDGE_BAD_FILE: return "bad file";
    case RIDGE_NO_MEMORY: return "no memory";
    case RIDGE_NO_DEVICE: return "no device";
    case RIDGE_INTERRUPTED: return "interrupted";
  }
  return "unknown";
}

const char* ridge_last_error(void) { return ridge::capi::last_error.c_str(); }
