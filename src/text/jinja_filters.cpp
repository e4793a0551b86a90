#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_natives.h"
#include "text/unicode.h"

namespace ridge::text::jinja {
namespace {

/// str.method() of the filtered value as a text.
Value as_method(Args& a, std::string_view method) {
  const Value text = a.self.text() ? a.self : a.run.text(str(a.run, a.self));
  const Native native = find_method(text, method);
  Args inner{a.run, a.name, text, a.given, a.named};
  Value made = native(inner);
  a.asked = inner.asked, a.found_by_name = inner.found_by_name;
  return made;
}

/// The elements that a filter goes through: counted, as it may make nothing of them.
ListRef elements_of(Run& run, const Value& value) {
  ListRef items = iterate(run, value);
  run.step(4 * items->items.size());
  return items;
}

/// "a.b.0": what jinja2's attribute getter reads from a value.
Value get_path(Run& run, Value value, std::string_view path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part(path.substr(begin, end - begin));
    run.walk(part.size());
    int64_t index = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && stop == part.data() + part.size() && index >= 0;
    value = subscript(run, value, number ? Value{index} : run.text(part));
    begin = end + 1;
  }
  return value;
}

/// The attribute that a filter was told to look at, of `value`; `value` itself without one.
struct Attribute {
  Attribute(Args& a, size_t index) {
    const Value* const given = a.find(index, "attribute");
    if (given && !given->as<None>()) path = str(a.run, defined(*given));
  }
  Value of(Run& run, const Value& value) const { return path ? get_path(run, value, *path) : value; }
  std::optional<std::string> path;
};

Value without_case(Run& run, const Value& value, bool case_sensitive) {
  return value.text() && !case_sensitive ? run.text(lower(*value.text())) : value;
}

/// map, select, ...: `apply` of another filter or test, named by the first argument from `index` on.
Value apply(Args& a, Native (*find)(std::string_view), size_t index, const Value& value) {
  const std::string called = a.text(index, "name");
  const Native native = find(called);
  if (!native) trouble("'{}': '{}' is not known", a.name, called);
  a.asked = a.given.size(), a.found_by_name = a.named.size();
  return call_native(native, {a.run, called, value, a.given.subspan(index + 1), a.named});
}

Value map(Args& a) {
  std::vector<Value> made;
  const ListRef items = elements_of(a.run, a.self);
  if (!a.given.empty() || a.named.empty()) {
    for (const Value& item : items->items) made.push_back(apply(a, find_filter, 0, item));
    if (items->items.empty()) a.asked = a.given.size(), a.found_by_name = a.named.size();
    return a.run.list(std::move(made), ListKind::generator);
  }
  const Attribute attribute(a, 0);
  const Value* const otherwise = a.find(1, "default");
  for (const Value& item : items->items) {
    Value value = attribute.of(a.run, item);
    made.push_back(value.as<Undefined>() && otherwise ? *otherwise : std::move(value));
  }
  return a.run.list(std::move(made), ListKind::generator);
}

Value pick(Args& a, bool wanted, bool by_attribute) {
  const std::string path = by_attribute ? a.text(0, "attribute") : "";
  const ListRef items = elements_of(a.run, a.self);
  const size_t test = by_attribute ? 1 : 0;
  std::vector<Value> made;
  for (const Value& item : items->items) {
    const Value value = by_attribute ? get_path(a.run, item, path) : item;
    if (truth(a.given.size() > test ? apply(a, find_test, test, value) : value) == wanted) made.push_back(item);
  }
  a.asked = std::max(a.asked, a.given.size());
  return a.run.list(std::move(made), ListKind::generator);
}

/// Values in the order of their keys; equal ones keep theirs.
template <class Item>
void sort_by_keys(Run& run, std::vector<std::pair<Value, Item>>& keyed, bool reverse) {
  run.take(keyed.size() * sizeof(keyed[0]));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return reverse ? compare(run, y.first, x.first) < 0 : compare(run, x.first, y.first) < 0;
  });
}

Value sort(Args& a) {
  const bool reverse = a.flag(0, "reverse"), case_sensitive = a.flag(1, "case_sensitive");
  const Attribute attribute(a, 2);
  std::vector<std::pair<Value, Value>> keyed;
  const ListRef elements = elements_of(a.run, a.self);
  for (const Value& item : elements->items)
    keyed.emplace_back(without_case(a.run, attribute.of(a.run, item), case_sensitive), item);
  sort_by_keys(a.run, keyed, reverse);
  std::vector<Value> made;
  for (auto& [key, item] : keyed) made.push_back(std::move(item));
  return a.run.list(std::move(made));
}

const Dict& dict_of(Args& a) {
  const DictRef* const dict = a.self.as<DictRef>();
  if (!dict) trouble("'{}' needs a mapping, not {}", a.name, type_name(a.self));
  return **dict;
}

Value dict_sort(Args& a) {
  const bool case_sensitive = a.flag(0, "case_sensitive");
  const std::string by = a.text(1, "by", "key");
  const bool reverse = a.flag(2, "reverse");
  if (by != "key" && by != "value") trouble("'dictsort' sorts by 'key' or 'value', not '{}'", by);
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : dict_of(a).items)
    keyed.emplace_back(without_case(a.run, by == "key" ? key : value, case_sensitive),
                       a.run.list({key, value}, ListKind::tuple));
  sort_by_keys(a.run, keyed, reverse);
  std::vector<Value> made;
  for (auto& [key, item] : keyed) made.push_back(std::move(item));
  return a.run.list(std::move(made));
}

Value unique(Args& a) {
  const bool case_sensitive = a.flag(0, "case_sensitive");
  const Attribute attribute(a, 1);
  std::vector<Value> seen, made;
  const ListRef elements = elements_of(a.run, a.self);
  for (const Value& item : elements->items) {
    Value key = without_case(a.run, attribute.of(a.run, item), case_sensitive);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& v) { return equal(a.run, v, key); })) continue;
    seen.push_back(std::move(key));
    made.push_back(item);
  }
  return a.run.list(std::move(made), ListKind::generator);
}

Value extreme(Args& a, int sign) {
  const bool case_sensitive = a.flag(0, "case_sensitive");
  const Attribute attribute(a, 1);
  const ListRef items = elements_of(a.run, a.self);
  if (items->items.empty()) return a.run.undefined("'{}' of an empty sequence", a.name);
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items->items) {
    Value key = without_case(a.run, attribute.of(a.run, item), case_sensitive);
    if (best && compare(a.run, key, best_key) * sign <= 0) continue;
    best = &item, best_key = std::move(key);
  }
  return *best;
}

Value sum(Args& a) {
  const Attribute attribute(a, 0);
  const Value* const start = a.find(1, "start");
  Value total = start ? *start : Value{int64_t(0)};
  const ListRef elements = elements_of(a.run, a.self);
  for (const Value& item : elements->items) total = arithmetic(a.run, Operator::add, total, attribute.of(a.run, item));
  return total;
}

Value join_filter(Args& a) {
  const Value* const given = a.find(0, "d");
  const std::string between = given ? str(a.run, *given) : "";
  const Attribute attribute(a, 1);
  Writer to(a.run);
  bool first = true;
  const ListRef elements = elements_of(a.run, a.self);
  for (const Value& item : elements->items) {
    if (!std::exchange(first, false)) to.add(between);
    write_str(to, attribute.of(a.run, item));
  }
  return a.run.text(to.take());
}

Value first(Args& a) {
  const ListRef* list = a.self.as<ListRef>();
  if (list && (*list)->taken < (*list)->items.size() && (*list)->kind == ListKind::generator)
    return (*list)->items[(*list)->taken++];
  const ListRef items = iterate(a.run, a.self);
  return items->items.empty() ? a.run.undefined("'first' of an empty sequence") : items->items.front();
}

Value last(Args& a) {
  length(a.run, a.self);  // generators have no last element in Python
  const ListRef items = iterate(a.run, a.self);
  return items->items.empty() ? a.run.undefined("'last' of an empty sequence") : items->items.back();
}

Value reverse(Args& a) {
  if (a.self.text()) return slice(a.run, a.self, {None{}}, {None{}}, {int64_t(-1)});
  std::vector<Value> items = iterate(a.run, a.self)->items;
  std::reverse(items.begin(), items.end());
  const bool was_generator = type_name(a.self) == "generator";  // jinja2 makes a list of those
  return a.run.list(std::move(items), was_generator ? ListKind::list : ListKind::generator);
}

Value items(Args& a) {
  if (a.self.as<Undefined>()) return a.run.list({}, ListKind::generator);
  std::vector<Value> made;
  for (const auto& [key, value] : dict_of(a).items) made.push_back(a.run.list({key, value}, ListKind::tuple));
  return a.run.list(std::move(made), ListKind::generator);
}

Value list(Args& a) {
  std::vector<Value> items = iterate(a.run, a.self)->items;
  return a.run.list(std::move(items));
}

Value otherwise(Args& a) {
  const Value* const value = a.find(0, "default_value");
  const bool by_truth = a.flag(1, "boolean");
  if (!a.self.as<Undefined>() && !(by_truth && !truth(a.self))) return a.self;
  return value ? *value : a.run.text("");
}

Value escape(Args& a) {
  if (a.self.text() && a.self.as<Text>()->safe && a.name != "forceescape") return a.self;
  constexpr std::string_view kCodes = "&<>'\"", kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  Writer to(a.run);
  const std::string text = str(a.run, a.self);
  a.run.walk(text.size());
  size_t written = 0;
  for (size_t at = 0; (at = text.find_first_of(kCodes, at)) != text.npos; written = ++at) {
    to.add(std::string_view(text).substr(written, at - written));
    to.add(kNames[kCodes.find(text[at])]);
  }
  to.add(std::string_view(text).substr(written));
  return a.run.text(to.take(), true);
}

const std::string& text_of(Args& a) {
  if (!defined(a.self).text()) trouble("'{}' needs a str, not {}", a.name, type_name(a.self));
  return *a.self.text();
}

Value indent(Args& a) {
  const Value* const width = a.find(0, "width");
  const bool first_too = a.flag(1, "first"), blank_too = a.flag(2, "blank");
  Writer in(a.run);
  int64_t store = 0;
  const int64_t* const n = width ? whole(*width, store) : nullptr;
  if (width && width->text()) in.add(*width->text());
  else if (!width || n) in.add(size_t(std::max<int64_t>(n ? *n : 4, 0)), ' ');
  else trouble("'indent' takes an integer or a str, not {}", type_name(*width));
  a.run.walk(text_of(a).size());
  const std::string margin = in.take(), text = text_of(a) + "\n";
  Writer to(a.run);
  if (first_too) to.add(margin);
  bool first_line = true;
  each_line(text, [&](std::string_view line) {
    if (!std::exchange(first_line, false)) {
      to.add("\n");
      if (blank_too || !line.empty()) to.add(margin);
    }
    to.add(line);
  });
  return a.run.text(to.take(), a.self.as<Text>()->safe);
}

/// Words begin after white space and ( { [ < - as in jinja2.
Value title_filter(Args& a) {
  std::string out = lower(str(a.run, a.self));
  a.run.walk(out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const bool begins = i == 0 || std::string_view("-({[< \t\n\r\f\v").find(out[i - 1]) != std::string_view::npos;
    if (begins && out[i] >= 'a' && out[i] <= 'z') out[i] = char(out[i] - 0x20);
  }
  return a.run.text(std::move(out));
}

Value replace_filter(Args& a) {
  const Value from = a.run.text(str(a.run, a.need(0, "old"))), to = a.run.text(str(a.run, a.need(1, "new")));
  const Value* const count = a.find(2, "count");
  std::vector<Value> given = {from, to};
  if (count && !count->as<None>()) given.push_back(*count);
  const Value text = a.run.text(str(a.run, a.self));
  return call_native(find_method(text, "replace"), {a.run, "replace", text, given});
}

/// The number that a text holds, as Python's float(): white space around it and underscores between digits are fine.
std::optional<double> parse_real(std::string_view text) {
  text = strip(text, nullptr, true, true);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto is_digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != '_' || i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) digits += text[i];
  double value = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error == std::errc::invalid_argument || stop != digits.data() + digits.size())
    return std::nullopt;
  return value;
}

Value to_int(Args& a) {
  const Value* const otherwise_given = a.find(0, "default");
  const Value otherwise_value = otherwise_given ? *otherwise_given : Value{int64_t(0)};
  const int64_t base = a.integer(1, "base", 10);
  int64_t n = 0;
  if (const int64_t* const whole_value = whole(defined(a.self), n)) return {*whole_value};
  std::optional<double> real;
  if (a.self.as<double>()) real = *a.self.as<double>();
  if (a.self.text()) {
    a.run.walk(2 * a.self.text()->size());
    std::string digits(strip(*a.self.text(), nullptr, true, true));
    if (base < 2 || base > 36) trouble("'int' takes bases from 2 to 36, not {}", base);
    const size_t sign = digits.starts_with('-') || digits.starts_with('+');
    const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : "0b";
    if (base != 10 && lower(digits.substr(sign, 2)) == prefix) digits.erase(sign, 2);
    if (digits.starts_with('+') && !digits.starts_with("+-")) digits.erase(0, 1);
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n, int(base));
    if (error == std::errc() && stop == digits.data() + digits.size()) return {n};
    real = parse_real(*a.self.text());
  }
  if (!real || !std::isfinite(*real)) return otherwise_value;
  if (std::abs(*real) >= 0x1p63) trouble("an integer leaves 64 bits");
  return {int64_t(*real)};
}

Value to_real(Args& a) {
  const Value* const otherwise_given = a.find(0, "default");
  int64_t store = 0;
  if (const int64_t* const n = whole(defined(a.self), store)) return {double(*n)};
  if (a.self.as<double>()) return a.self;
  if (a.self.text()) {
    a.run.walk(a.self.text()->size());
    if (const auto real = parse_real(*a.self.text())) return {*real};
  }
  return otherwise_given ? *otherwise_given : Value{0.0};
}

Value absolute(Args& a) {
  if (a.self.as<double>()) return {std::abs(*a.self.as<double>())};
  return compare(a.run, a.self, {int64_t(0)}) < 0 ? negative(a.run, a.self)
                                                  : arithmetic(a.run, Operator::add, a.self, {int64_t(0)});
}

Value round(Args& a) {
  const int64_t precision = a.integer(0, "precision", 0);
  const std::string method = a.text(1, "method", "common");
  int64_t store = 0;
  const int64_t* const n = whole(defined(a.self), store);
  if (!n && !a.self.as<double>()) trouble("'round' needs a number, not {}", type_name(a.self));
  if (precision < 0 || precision > 15) trouble("'round' takes precisions from 0 to 15, not {}", precision);
  if (n && method == "common") return {*n};
  const double value = n ? double(*n) : *a.self.as<double>(), scale = std::pow(10.0, double(precision));
  if (method == "ceil") return {std::ceil(value * scale) / scale};
  if (method == "floor") return {std::floor(value * scale) / scale};
  if (method != "common") trouble("'round' knows the methods common, ceil and floor, not '{}'", method);
  return {parse_real(fmt::format("{:.{}f}", value, precision)).value_or(value)};
}

Value to_json(Args& a) {
  JsonStyle style;
  style.ascii = a.flag(0, "ensure_ascii");
  const Value *const indent = a.find(1, "indent"), *const separators = a.find(2, "separators");
  style.sort_keys = a.flag(3, "sort_keys");
  Writer in(a.run);
  int64_t store = 0;
  if (indent && !indent->as<None>()) {
    const int64_t* const n = whole(defined(*indent), store);
    if (!n && !indent->text()) trouble("'indent' of tojson must be an integer or a str, not {}", type_name(*indent));
    n ? in.add(size_t(std::max<int64_t>(*n, 0)), ' ') : in.add(*indent->text());
  }
  const std::string margin = in.take();
  if (indent && !indent->as<None>()) style.indent = &margin, style.comma.pop_back();  // a line end comes after it
  if (separators && !separators->as<None>()) {
    const ListRef both = iterate(a.run, *separators);
    if (both->items.size() != 2) trouble("'separators' of tojson are two texts");
    style.comma = str(a.run, both->items[0]), style.colon = str(a.run, both->items[1]);
  }
  Writer to(a.run);
  write_json(to, a.self, style);
  return a.run.text(to.take());
}

/// An attribute and never a key: dictionaries have none but their methods.
Value attr(Args& a) {
  const std::string name = a.text(0, "name");
  if (a.self.as<DictRef>() && !find_method(a.self, name))
    return a.run.undefined("dict object has no attribute '{}'", name);
  return attribute(a.run, a.self, name);
}

constexpr NativeRow kFilters[] = {
    {"abs", absolute},
    {"attr", attr},
    {"capitalize", [](Args& a) { return as_method(a, "capitalize"); }},
    {"count", [](Args& a) -> Value { return {length(a.run, a.self)}; }},
    {"d", otherwise},
    {"default", otherwise},
    {"dictsort", dict_sort},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", to_real},
    {"forceescape", escape},
    {"indent", indent},
    {"int", to_int},
    {"items", items},
    {"join", join_filter},
    {"last", last},
    {"length", [](Args& a) -> Value { return {length(a.run, a.self)}; }},
    {"list", list},
    {"lower", [](Args& a) { return as_method(a, "lower"); }},
    {"map", map},
    {"max", [](Args& a) { return extreme(a, 1); }},
    {"min", [](Args& a) { return extreme(a, -1); }},
    {"reject", [](Args& a) { return pick(a, false, false); }},
    {"rejectattr", [](Args& a) { return pick(a, false, true); }},
    {"replace", replace_filter},
    {"reverse", reverse},
    {"round", round},
    {"safe", [](Args& a) { return a.run.text(str(a.run, a.self), true); }},
    {"select", [](Args& a) { return pick(a, true, false); }},
    {"selectattr", [](Args& a) { return pick(a, true, true); }},
    {"sort", sort},
    {"string", [](Args& a) { return a.self.text() ? a.self : a.run.text(str(a.run, a.self)); }},
    {"sum", sum},
    {"title", title_filter},
    {"tojson", to_json},
    {"trim", [](Args& a) { return as_method(a, "strip"); }},
    {"unique", unique},
    {"upper", [](Args& a) { return as_method(a, "upper"); }},
};

}  // namespace

Native find_filter(std::string_view name) { return find_row(kFilters, name); }

}  // namespace ridge::text::jinja
