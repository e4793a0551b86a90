#include "http/sse.h"

#include <algorithm>

#include "base/result.h"

namespace ridge::http {
namespace {

constexpr size_t kMaxEvent = size_t(16) << 20;

}  // namespace

std::string sse_event(std::string_view data, std::string_view name) {
  std::string out;
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  out += "data: ";
  for (size_t i = 0; i < data.size(); ++i) {
    const bool crlf = data[i] == '\r' && i + 1 < data.size() && data[i + 1] == '\n';
    if (crlf) continue;
    if (data[i] == '\n' || data[i] == '\r') out += "\ndata: ";
    else out += data[i];
  }
  return out += "\n\n";
}

Headers sse_headers() { return {{{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}}; }

bool SseReader::feed(std::string_view bytes, const std::function<bool(std::string_view data)>& on_data) {
  for (const char c : bytes) {
    const bool second_of_crlf = c == '\n' && after_cr_;
    after_cr_ = c == '\r';
    if (second_of_crlf) continue;
    if (c != '\n' && c != '\r') {
      line_ += c;
      if (line_.size() + data_.size() > kMaxEvent)
        throw_error(ErrorKind::failure, "an event of the server is longer than {} bytes", kMaxEvent);
    } else if (!line(on_data)) {
      return false;
    }
  }
  return true;
}

bool SseReader::line(const std::function<bool(std::string_view data)>& on_data) {
  const std::string text = std::exchange(line_, {});
  if (!text.empty()) {
    std::string_view value = text;
    if (!value.starts_with("data") || (value.size() > 4 && value[4] != ':')) return true;  // comments, other fields
    value.remove_prefix(std::min<size_t>(value.size(), 5));
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
    return true;
  }
  if (!has_data_) return true;
  has_data_ = false;
  return on_data(std::exchange(data_, {}));
}

}  // namespace ridge::http
