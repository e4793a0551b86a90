// Arguments of functions, the functions themselves and the tests.
#include "text/jinja_natives.h"

#include <algorithm>
#include <iterator>

#include "text/unicode.h"

namespace ridge::text::jinja {

const Value* Args::find(size_t index, std::string_view parameter) {
  asked = std::max(asked, index + 1);
  if (index < given.size()) return &given[index];
  const auto found = std::find_if(named.begin(), named.end(), [&](const auto& a) { return a.first == parameter; });
  if (found == named.end()) return nullptr;
  ++found_by_name;
  return &found->second;
}

const Value& Args::need(size_t index, std::string_view parameter) {
  const Value* const found = find(index, parameter);
  if (!found) trouble("'{}' needs an argument '{}'", name, parameter);
  return defined(*found);
}

std::string Args::text(size_t index, std::string_view parameter, std::optional<std::string> otherwise) {
  const Value* const found = find(index, parameter);
  if (!found && otherwise) return *otherwise;
  const Value& value = found ? *found : need(index, parameter);
  if (!defined(value).text()) trouble("argument '{}' of '{}' must be a str, not {}", parameter, name, type_name(value));
  run.take(value.text()->size());
  return *value.text();
}

int64_t Args::integer(size_t index, std::string_view parameter, std::optional<int64_t> otherwise) {
  const Value* const found = find(index, parameter);
  if (!found && otherwise) return *otherwise;
  int64_t store = 0;
  const Value& value = found ? *found : need(index, parameter);
  const int64_t* const n = whole(defined(value), store);
  if (!n) trouble("argument '{}' of '{}' must be an integer, not {}", parameter, name, type_name(value));
  return *n;
}

bool Args::flag(size_t index, std::string_view parameter) {
  const Value* const found = find(index, parameter);
  return found && truth(*found);
}

void Args::done() const {
  if (given.size() > asked) trouble("'{}' takes {} arguments, not {}", name, asked, given.size());
  if (named.size() <= found_by_name) return;
  trouble("'{}' does not take all of its named arguments ('{}', ...)", name, named[0].first);
}

Value call_native(Native native, Args args) {
  const Level level(args.run);  // filters apply filters
  level.check();
  Value made = native(args);
  args.done();
  return made;
}

namespace {

int64_t integer_of(Args& a) {
  int64_t store = 0;
  const int64_t* const n = whole(defined(a.self), store);
  if (!n) trouble("test '{}' needs an integer, not {}", a.name, type_name(a.self));
  return *n;
}

bool is_case(Args& a, bool upper_case) {
  const std::string text = str(a.run, a.self);
  a.run.walk(text.size());
  return lower(text) != upper(text) && text == (upper_case ? upper(text) : lower(text));
}

/// Value that the tested value is compared with; it may be undefined.
const Value& other(Args& a) {
  const Value* const found = a.find(0, "other");
  return found ? *found : a.need(0, "other");
}

template <class Holds>
Value ordered(Args& a, Holds holds) {
  return {bool(holds(compare(a.run, a.self, other(a))))};
}
Value equal_to(Args& a) { return {equal(a.run, a.self, other(a))}; }
Value unequal_to(Args& a) { return {!equal(a.run, a.self, other(a))}; }
Value below(Args& a) {
  return ordered(a, [](int order) { return order < 0; });
}
Value at_most(Args& a) {
  return ordered(a, [](int order) { return order <= 0; });
}
Value above(Args& a) {
  return ordered(a, [](int order) { return order > 0; });
}
Value at_least(Args& a) {
  return ordered(a, [](int order) { return order >= 0; });
}

Value divisible(Args& a) {
  const int64_t by = a.integer(0, "num");
  if (by == 0) trouble("division by zero");
  return {by == -1 || integer_of(a) % by == 0};
}

bool is_exactly(const Value& value, bool wanted) { return value.as<bool>() && *value.as<bool>() == wanted; }
bool has_elements(const Value& value) {
  const ListRef* list = value.as<ListRef>();
  return value.text() || value.as<DictRef>() || value.as<Undefined>() || (list && (*list)->kind != ListKind::generator);
}

bool same_object(const Value& a, const Value& b, Run& run) {
  if (a.data.index() != b.data.index()) return false;
  if (a.as<ListRef>()) return *a.as<ListRef>() == *b.as<ListRef>();
  if (a.as<DictRef>()) return *a.as<DictRef>() == *b.as<DictRef>();
  return equal(run, a, b);
}

constexpr NativeRow kTests[] = {
    {"defined", [](Args& a) -> Value { return {!a.self.as<Undefined>()}; }},
    {"undefined", [](Args& a) -> Value { return {a.self.as<Undefined>() != nullptr}; }},
    {"none", [](Args& a) -> Value { return {a.self.as<None>() != nullptr}; }},
    {"boolean", [](Args& a) -> Value { return {a.self.as<bool>() != nullptr}; }},
    {"true", [](Args& a) -> Value { return {is_exactly(a.self, true)}; }},
    {"false", [](Args& a) -> Value { return {is_exactly(a.self, false)}; }},
    {"integer", [](Args& a) -> Value { return {a.self.as<int64_t>() != nullptr}; }},
    {"float", [](Args& a) -> Value { return {a.self.as<double>() != nullptr}; }},
    {"number", [](Args& a) -> Value { return {a.self.as<bool>() || a.self.as<int64_t>() || a.self.as<double>()}; }},
    {"string", [](Args& a) -> Value { return {a.self.text() != nullptr}; }},
    {"mapping", [](Args& a) -> Value { return {a.self.as<DictRef>() != nullptr}; }},
    {"sequence", [](Args& a) -> Value { return {has_elements(a.self)}; }},
    {"iterable", [](Args& a) -> Value { return {iterable(a.self)}; }},
    {"callable", [](Args& a) -> Value { return {a.self.as<Callable>() || a.self.as<Undefined>()}; }},
    {"escaped", [](Args& a) -> Value { return {a.self.text() && a.self.as<Text>()->safe}; }},
    {"lower", [](Args& a) -> Value { return {is_case(a, false)}; }},
    {"upper", [](Args& a) -> Value { return {is_case(a, true)}; }},
    {"odd", [](Args& a) -> Value { return {integer_of(a) % 2 != 0}; }},
    {"even", [](Args& a) -> Value { return {integer_of(a) % 2 == 0}; }},
    {"divisibleby", divisible},
    {"in", [](Args& a) -> Value { return {contains(a.run, other(a), a.self)}; }},
    {"sameas", [](Args& a) -> Value { return {same_object(a.self, other(a), a.run)}; }},
    {"filter", [](Args& a) -> Value { return {find_filter(str(a.run, a.self)) != nullptr}; }},
    {"test", [](Args& a) -> Value { return {find_test(str(a.run, a.self)) != nullptr}; }},
    {"eq", equal_to},
    {"equalto", equal_to},
    {"==", equal_to},
    {"ne", unequal_to},
    {"!=", unequal_to},
    {"lt", below},
    {"lessthan", below},
    {"<", below},
    {"le", at_most},
    {"<=", at_most},
    {"gt", above},
    {"greaterthan", above},
    {">", above},
    {"ge", at_least},
    {">=", at_least},
};

Value range(Args& a) {
  const bool one = a.given.size() == 1;
  const int64_t start = one ? 0 : a.integer(0, "start"), stop = a.integer(one ? 0 : 1, "stop");
  const int64_t by = a.integer(2, "step", 1);
  if (by == 0) trouble("the step of range() is zero");
  std::vector<Value> items;
  for (int64_t i = start; by > 0 ? i < stop : i > stop;) {
    if (int64_t(items.size()) >= kMaxRange) trouble("range() has more than {} elements", kMaxRange);
    a.run.step();
    items.push_back({i});
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return a.run.list(std::move(items));
}

Value make_namespace(Args& a) {
  std::vector<std::pair<std::string, Value>> items;
  if (const Value* const from = a.find(0, "")) {
    const DictRef* const dict = defined(*from).as<DictRef>();
    if (!dict) trouble("namespace() takes a dictionary, not {}", type_name(*from));
    for (const auto& [key, value] : (*dict)->items) items.emplace_back(str(a.run, key), value);
  }
  for (const auto& [key, value] : a.named) items.emplace_back(key, value);
  a.found_by_name = a.named.size();
  return a.run.space(std::move(items));
}

Value make_dict(Args& a) {
  Pairs items;
  if (const Value* const from = a.find(0, "")) {
    const DictRef* const dict = defined(*from).as<DictRef>();
    if (!dict) trouble("dict() takes a dictionary, not {}", type_name(*from));
    items = (*dict)->items;
  }
  for (const auto& [key, value] : a.named) {
    const Value name = a.run.text(std::string(key));
    const auto known =
        std::find_if(items.begin(), items.end(), [&](const auto& item) { return equal(a.run, item.first, name); });
    if (known != items.end()) known->second = value;
    else items.emplace_back(name, value);
  }
  a.found_by_name = a.named.size();
  return a.run.dict(std::move(items));
}

Value strftime_now(Args& a) {
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string format = a.text(0, "format");
  char out[512];
  if (format.size() > sizeof(out)) trouble("strftime_now: the format has more than {} bytes", sizeof(out));
  const size_t n = strftime_l(out, sizeof(out), format.c_str(), &a.run.now, c_locale);
  if (n == 0 && !format.empty()) trouble("strftime_now: the format gives no text, or more than {} bytes", sizeof(out));
  return a.run.text(std::string(out, n));
}

Value raise_exception(Args& a) { throw Trouble{str(a.run, a.need(0, "message")), 0, 0, true}; }

constexpr NativeRow kFunctions[] = {{"range", range},
                                    {"namespace", make_namespace},
                                    {"dict", make_dict},
                                    {"strftime_now", strftime_now},
                                    {"raise_exception", raise_exception}};

}  // namespace

Native find_row(std::span<const NativeRow> rows, std::string_view name) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const NativeRow& r) { return r.name == name; });
  return row != rows.end() ? row->native : nullptr;
}

Native find_test(std::string_view name) { return find_row(kTests, name); }
Native find_function(std::string_view name) { return find_row(kFunctions, name); }

}  // namespace ridge::text::jinja
