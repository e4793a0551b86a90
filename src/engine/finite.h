// Logits that are not finite: what every step that samples looks at, and what is said then.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/weights.h"
#include "ridge/error.h"

namespace ridge {

class Engine;

/// Begins the message of every such error.
inline constexpr std::string_view kNotFiniteText = "the model's logits are not finite";

/// Thrown where a token is to be sampled from logits of which one is NaN or infinite, or all are -infinity. Single ones
/// of -infinity are tokens that never come.
class NotFiniteError : public Error {
 public:
  explicit NotFiniteError(const std::string& why = "")
      : Error(ErrorKind::bad_file, std::string(kNotFiniteText) + (why.empty() ? "" : ": " + why)) {}
};

/// Throws NotFiniteError.
void check_logits(std::span<const float> logits);
/// The token as it is; throws NotFiniteError where a device marked it (kNotFiniteToken).
int32_t checked_token(int32_t token);

/// The first matrix of `weights` with a value that is not finite, as the file calls it, with the place:
/// "blk.0.ffn_up.weight has nan in row 3"; empty where all are finite. Reads all rows that are held.
std::string find_not_finite(CpuContext& context, const Weights& weights);
/// Looks at the residual stream of every step from here on, and throws NotFiniteError that names the first block whose
/// output is not finite. Throws usage where steps cannot be watched.
void watch_finite(Engine& engine);

}  // namespace ridge
