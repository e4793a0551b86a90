#include "io/json.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "io/text.h"

namespace ridge::io {
namespace {

/// Builds a document from nlohmann's parse events and stops at the first thing that is not allowed. The parser keeps
/// its own stack on the heap, so depth is refused here before any recursive code can see it.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    const auto [place, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!is_new) return refuse(fmt::format("key {} appears twice in one object", in_quotes(name)));
    slot_ = &place->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    position_ = position;
    return refuse(brief(error.what()));
  }

  Json take() { return std::move(root_); }
  const std::string& reason() const { return reason_; }
  /// Bytes read when the parser itself found a fault; 0 when this class did.
  size_t position() const { return position_; }

 private:
  /// The library's reason without its prefix and without its echo of the input.
  static std::string brief(std::string_view what) {
    for (const std::string_view prefix : {"] ", ": "})
      if (const size_t at = what.find(prefix); at != what.npos) what.remove_prefix(at + prefix.size());
    return std::string(what.substr(0, std::min<size_t>(what.find("; last read"), 160)));
  }

  bool refuse(std::string reason) {
    if (reason_.empty()) reason_ = std::move(reason);
    return false;
  }

  /// Where the next value goes: the root, the slot of the last key, or the end of the open array.
  template <class Value>
  Json* place(Value&& value) {
    if (++values_ > kMaxJsonValues) {
      refuse(fmt::format("more than {} values", kMaxJsonValues));
      return nullptr;
    }
    if (open_.empty()) return &(root_ = std::forward<Value>(value));
    if (open_.back()->is_array()) return &open_.back()->emplace_back(std::forward<Value>(value));
    return &(*slot_ = std::forward<Value>(value));
  }

  template <class Value>
  bool put(Value&& value) {
    return place(std::forward<Value>(value)) != nullptr;
  }

  bool open(Json container) {
    if (int(open_.size()) == kMaxJsonDepth) return refuse(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    Json* const placed = place(std::move(container));
    if (placed == nullptr) return false;
    open_.push_back(placed);  // stays valid: its parent does not grow before it is closed
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;
  Json* slot_ = nullptr;
  int64_t values_ = 0;
  std::string reason_;
  size_t position_ = 0;
};

/// " at line L, column C" of a byte position (1 based), or nothing for 0.
std::string place_of(std::string_view text, size_t position) {
  if (position == 0) return "";
  const std::string_view before = text.substr(0, std::min(position - 1, text.size()));
  const size_t lines = size_t(std::count(before.begin(), before.end(), '\n'));
  const size_t line_start = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  return fmt::format(" at line {}, column {}", lines + 1, before.size() - line_start + 1);
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where) {
  if (const size_t nul = text.find('\0'); nul != text.npos)  // the library takes NUL for the end of the text
    return bad_file("bad JSON: {}: NUL byte{}", where, place_of(text, nul + 1));
  Builder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder))
    return bad_file("bad JSON: {}: {}{}", where, builder.reason(), place_of(text, builder.position()));
  return builder.take();
}

}  // namespace ridge::io
