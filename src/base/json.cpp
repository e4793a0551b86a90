#include "base/json.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/rng.h"
#include "base/work_limit.h"

namespace ridge {
namespace {

/// Builds a document from nlohmann's parse events and stops at the first thing that is not allowed. The parser keeps
/// its own stack on the heap, so depth is refused here before any recursive code can see it.
template <class Json>
class Builder final : public nlohmann::json_sax<Json> {
  using Sax = nlohmann::json_sax<Json>;

 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(typename Sax::number_integer_t value) override { return put(value); }
  bool number_unsigned(typename Sax::number_unsigned_t value) override { return put(value); }
  bool number_float(typename Sax::number_float_t value, const typename Sax::string_t&) override { return put(value); }
  bool string(typename Sax::string_t& value) override { return put(std::move(value)); }
  bool binary(typename Sax::binary_t&) override { return refuse(ErrorKind::bad_file, "binary values are not JSON"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(typename Sax::string_t& name) override {
    const auto [place, is_new] = open_.back()->template get_ref<typename Json::object_t&>().emplace(name, nullptr);
    if (!is_new && limits_.refuse_twice) return refuse(ErrorKind::bad_file, limits_.refuse_twice(name));
    slot_ = &place->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    position_ = position;
    return refuse(ErrorKind::bad_file, brief(error.what()));
  }

  Json take() { return std::move(root_); }
  const Failure& failure() const { return failure_; }
  /// Bytes read when the parser itself found a fault; 0 when this class did.
  size_t position() const { return position_; }

 private:
  /// The library's reason without its prefix and without its echo of the input.
  static std::string brief(std::string_view what) {
    for (const std::string_view prefix : {"] ", ": "})
      if (const size_t at = what.find(prefix); at != what.npos) what.remove_prefix(at + prefix.size());
    return std::string(what.substr(0, std::min<size_t>(what.find("; last read"), 160)));
  }

  bool refuse(ErrorKind kind, std::string reason) {
    if (failure_.message.empty()) failure_ = {kind, std::move(reason)};
    return false;
  }

  /// Where the next value goes: the root, the slot of the last key, or the end of the open array.
  template <class Value>
  Json* place(Value&& value) {
    WorkLimit::check();
    if (++values_ > limits_.values) {
      refuse(ErrorKind::usage, fmt::format("more than {} values", limits_.values));
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
    if (int(open_.size()) == limits_.depth)
      return refuse(ErrorKind::usage, fmt::format("nested deeper than {} levels", limits_.depth));
    Json* const placed = place(std::move(container));
    if (placed == nullptr) return false;
    open_.push_back(placed);  // stays valid: its parent does not grow before it is closed
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  Json root_;
  std::vector<Json*> open_;
  Json* slot_ = nullptr;
  int64_t values_ = 0;
  Failure failure_;
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

uint64_t secret_hash(std::string_view text) {
  static const uint64_t kSeed = [] {
    std::random_device random;
    return uint64_t(random()) << 32 | random();
  }();
  uint64_t hash = splitmix64(kSeed ^ text.size());
  for (; !text.empty(); text.remove_prefix(std::min<size_t>(8, text.size()))) {
    uint64_t word = 0;
    std::memcpy(&word, text.data(), std::min<size_t>(8, text.size()));
    hash = splitmix64((hash ^ word) + kSplitmixStep);
  }
  return hash;
}

template <class Json>
Result<Json> parse_within(std::string_view text, const JsonLimits& limits) {
  if (const size_t nul = text.find('\0'); nul != text.npos)  // the library takes NUL for the end of the text
    return bad_file("NUL byte{}", place_of(text, nul + 1));
  Builder<Json> builder(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder))
    return fail(builder.failure().kind, "{}{}", builder.failure().message, place_of(text, builder.position()));
  return builder.take();
}
template Result<nlohmann::json> parse_within(std::string_view text, const JsonLimits& limits);
template Result<nlohmann::ordered_json> parse_within(std::string_view text, const JsonLimits& limits);
template Result<OrderedJson> parse_within(std::string_view text, const JsonLimits& limits);

}  // namespace ridge
