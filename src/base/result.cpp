#include "base/result.h"

namespace ridge {

std::string four_parts(std::string_view what, std::string_view where, std::string_view why, std::string_view next) {
  std::string text(what);
  for (const std::string_view part : {where, why}) {
    if (part.empty()) continue;
    if (!text.empty()) text += ": ";
    text += part;
  }
  if (!next.empty()) text += fmt::format(" ({})", next);
  return text;
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  const std::string_view path(file);
  const auto slash = path.rfind("src/");
  throw_error(ErrorKind::failure, "internal check failed at {}:{}: {}: {} (please report this with the command line)",
              slash == std::string_view::npos ? path : path.substr(slash), line, condition, message);
}

}  // namespace ridge
