// Errors that cross the public API.
//
// Three kinds of trouble, three means: untrusted input returns Result<T> (base/result.h), a machine that failed
// throws Error, and a broken precondition of ours stops at RIDGE_CHECK (base/check.h).
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace ridge {

/// Class of an error; the value is the process exit code of the command line.
enum class ErrorKind : int {
  failure = 1,       ///< the run failed for a reason outside the input (I/O error, internal check)
  usage = 2,         ///< the command line or an API argument is wrong
  gate = 3,          ///< a correctness or quality gate failed
  bad_file = 4,      ///< a file is malformed, unsafe or unsupported
  no_memory = 5,     ///< not enough memory for what was asked
  no_device = 6,     ///< a device, driver or needed package is missing
  interrupted = 130  ///< Ctrl-C
};

/// A failure of the machine or of a request, thrown by the public API.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string field = {})
      : std::runtime_error(message), kind_(kind), field_(std::move(field)) {}
  ErrorKind kind() const noexcept { return kind_; }
  /// The field of an options struct that is wrong, as the header spells it ("n_ctx"); empty where none is.
  const std::string& field() const noexcept { return field_; }

 private:
  ErrorKind kind_;
  std::string field_;
};

}  // namespace ridge
