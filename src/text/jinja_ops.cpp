// Operators and access to parts of values.
#include <algorithm>
#include <cmath>

#include "text/jinja_natives.h"
#include "text/unicode.h"

namespace ridge::text::jinja {
namespace {

Value loop_attribute(Run& run, const Loop& loop, std::string_view name) {
  const std::vector<Value>& items = loop.items->items;
  const auto number = [](size_t n) { return Value{int64_t(n)}; };
  if (name == "index") return number(loop.index + 1);
  if (name == "index0") return number(loop.index);
  if (name == "revindex") return number(items.size() - loop.index);
  if (name == "revindex0") return number(items.size() - loop.index - 1);
  if (name == "first") return {loop.index == 0};
  if (name == "last") return {loop.index + 1 >= items.size()};
  if (name == "length") return number(items.size());
  if (name == "depth") return number(1);  // loops do not call themselves
  if (name == "depth0") return number(0);
  if (name == "previtem") return loop.index > 0 ? items[loop.index - 1] : run.undefined("there is no previous item");
  if (name == "nextitem")
    return loop.index + 1 < items.size() ? items[loop.index + 1] : run.undefined("there is no next item");
  return run.undefined("'loop' has no attribute '{}'", name);
}

/// Position `index` of `size` elements as Python counts it, or nothing.
std::optional<size_t> position(int64_t index, size_t size) {
  if (index < 0) index += int64_t(size);
  if (index < 0 || index >= int64_t(size)) return std::nullopt;
  return size_t(index);
}

struct Cut {
  int64_t start, stop, step;
};

/// Bounds of a slice of `size` elements, as Python's slice.indices().
Cut cut(int64_t size, const Value& start, const Value& stop, const Value& step) {
  const auto number = [](const Value& value, int64_t otherwise) {
    int64_t store = 0;
    if (value.as<None>()) return otherwise;
    const int64_t* const n = whole(defined(value), store);
    if (n == nullptr) trouble("bounds of a slice must be integers, not {}", type_name(value));
    return *n;
  };
  const int64_t by = number(step, 1);
  if (by == 0) trouble("the step of a slice is zero");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    int64_t n = number(value, otherwise);
    if (!value.as<None>() && n < 0) n = n < -size ? low : n + size;
    return std::clamp(n, low, high);
  };
  return {bound(start, by > 0 ? low : high), bound(stop, by > 0 ? high : low), by};
}

template <class Take>
void walk(Run& run, Cut c, Take take) {
  for (int64_t i = c.start; c.step > 0 ? i < c.stop : i > c.stop;) {
    run.step();
    take(size_t(i));
    if (__builtin_add_overflow(i, c.step, &i)) return;
  }
}

std::string escaped(Run& run, const Value& value) {
  const Native escape = find_filter("escape");
  return *call_native(escape, {run, "escape", value, {}}).text();
}

Value add(Run& run, const Value& a, const Value& b) {
  if (a.text() && b.text()) {
    const bool safe = a.as<Text>()->safe || b.as<Text>()->safe;
    run.take(a.text()->size() + b.text()->size());
    return run.text(safe ? escaped(run, a) + escaped(run, b) : *a.text() + *b.text(), safe);
  }
  const ListRef *x = a.as<ListRef>(), *y = b.as<ListRef>();
  if (!x || !y || (*x)->kind != (*y)->kind || (*x)->kind == ListKind::generator)
    trouble("cannot add {} and {}", type_name(a), type_name(b));
  run.take(((*x)->items.size() + (*y)->items.size()) * sizeof(Value));
  std::vector<Value> items = (*x)->items;
  items.insert(items.end(), (*y)->items.begin(), (*y)->items.end());
  return run.list(std::move(items), (*x)->kind);
}

Value repeat(Run& run, const Value& what, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const ListRef* list = what.as<ListRef>();
  const size_t one = what.text() ? what.text()->size() : (*list)->items.size() * sizeof(Value);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(uint64_t(times), uint64_t(one), &bytes)) bytes = UINT64_MAX;
  run.take(bytes);
  if (what.text()) {
    std::string out;
    out.reserve(bytes);
    if (bytes > 0) out = *what.text();
    while (out.size() < bytes) out.append(out.data(), std::min(out.size(), bytes - out.size()));
    return run.text(std::move(out), what.as<Text>()->safe);
  }
  std::vector<Value> items;
  for (const size_t n = bytes / sizeof(Value); items.size() < n;)
    items.insert(items.end(), (*list)->items.begin(), (*list)->items.end());
  return run.list(std::move(items), (*list)->kind);
}

[[noreturn]] void too_large() { trouble("an integer leaves 64 bits"); }

Value real_arithmetic(Operator op, double a, double b) {
  if ((op == Operator::divide || op == Operator::floor_divide || op == Operator::modulo) && b == 0)
    trouble("division by zero");
  const auto remainder = [&] {
    const double r = std::fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  };
  switch (op) {
    case Operator::add: return {a + b};
    case Operator::subtract: return {a - b};
    case Operator::multiply: return {a * b};
    case Operator::divide: return {a / b};
    case Operator::floor_divide: return {std::floor(a / b)};
    case Operator::modulo: return {remainder()};
    case Operator::power: break;
  }
  return {std::pow(a, b)};
}

Value power(int64_t base, int64_t exponent) {
  if (exponent < 0) return real_arithmetic(Operator::power, double(base), double(exponent));
  int64_t out = 1;
  if (base == 0 || base == 1 || exponent == 0) return {exponent == 0 ? 1 : base};
  if (base == -1) return {int64_t(exponent % 2 == 0 ? 1 : -1)};
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(out, base, &out)) too_large();
  return {out};
}

Value whole_arithmetic(Operator op, int64_t a, int64_t b) {
  int64_t out = 0;
  if (op == Operator::divide) return real_arithmetic(op, double(a), double(b));
  if (op == Operator::power) return power(a, b);
  if (op == Operator::add && __builtin_add_overflow(a, b, &out)) too_large();
  if (op == Operator::subtract && __builtin_sub_overflow(a, b, &out)) too_large();
  if (op == Operator::multiply && __builtin_mul_overflow(a, b, &out)) too_large();
  if (op != Operator::floor_divide && op != Operator::modulo) return {out};
  if (b == 0) trouble("division by zero");
  if (b == -1) return op == Operator::modulo ? Value{int64_t(0)} : whole_arithmetic(Operator::subtract, 0, a);
  const bool down = a % b != 0 && (a % b < 0) != (b < 0);
  return {op == Operator::modulo ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0)};
}

}  // namespace

Value attribute(Run& run, const Value& value, std::string_view name) {
  defined(value);
  if (const Native native = find_method(value, name)) {
    run.take(sizeof(Value));
    return {Callable{name, nullptr, nullptr, native, std::make_shared<const Value>(value)}};
  }
  if (Loop* const* loop = value.as<Loop*>()) return loop_attribute(run, **loop, name);
  if (Space* const* space = value.as<Space*>())
    for (const auto& [key, item] : (*space)->items)
      if (run.step(), key == name) return item;
  if (const DictRef* dict = value.as<DictRef>())
    for (const auto& [key, item] : (*dict)->items)
      if (run.step(); key.text() && *key.text() == name) return item;
  return run.undefined("'{} object' has no attribute '{}'", type_name(value), name);
}

Value subscript(Run& run, const Value& value, const Value& key) {
  defined(value);
  if (const DictRef* dict = value.as<DictRef>())
    if (const Value* const found = find(run, **dict, key)) return *found;
  int64_t store = 0;
  const int64_t* const index = whole(key, store);
  const ListRef* list = value.as<ListRef>();
  if (index && value.text()) {
    const std::string_view text = *value.text();
    // Only places counted from the end need the length.
    const auto at = *index < 0 ? position(*index, size_t(length(run, value))) : std::optional(size_t(*index));
    const size_t begin = at ? code_position(text, *at) : text.size();
    run.walk(begin);
    if (begin < text.size()) return run.text(std::string(text.substr(begin, first_length(text.substr(begin)))));
  } else if (index && list && (*list)->kind != ListKind::generator) {
    if (const auto at = position(*index, (*list)->items.size())) return (*list)->items[*at];
  } else if (key.text()) {
    return value.as<DictRef>() && !find_method(value, *key.text())
               ? run.undefined("'dict object' has no attribute '{}'", *key.text())
               : attribute(run, value, *key.text());
  }
  return run.undefined("{} object has no element {}", type_name(value),
                       index ? fmt::format("{}", *index) : "of this key");
}

Value slice(Run& run, const Value& value, const Value& start, const Value& stop, const Value& step) {
  defined(value);
  const ListRef* list = value.as<ListRef>();
  if (list && (*list)->kind != ListKind::generator) {
    std::vector<Value> items;
    walk(run, cut(int64_t((*list)->items.size()), start, stop, step),
         [&](size_t i) { items.push_back((*list)->items[i]); });
    return run.list(std::move(items), (*list)->kind);
  }
  if (!value.text()) trouble("a value of type {} has no slices", type_name(value));
  const std::string_view text = *value.text();
  const bool safe = value.as<Text>()->safe;
  const Cut c = cut(length(run, value), start, stop, step);
  if (c.step == 1) {
    run.walk(text.size());
    const size_t begin = code_position(text, size_t(c.start));
    const size_t size = code_position(text.substr(begin), size_t(std::max<int64_t>(c.stop - c.start, 0)));
    return run.text(std::string(text.substr(begin, size)), safe);
  }
  std::vector<size_t> begins;
  run.walk(text.size());
  run.take(text.size() * sizeof(size_t));
  for (size_t at = 0; at < text.size(); at += first_length(text.substr(at))) begins.push_back(at);
  std::string out;
  walk(run, c, [&](size_t i) { out += text.substr(begins[i], first_length(text.substr(begins[i]))); });
  return run.text(std::move(out), safe);
}

Value arithmetic(Run& run, Operator op, const Value& a, const Value& b) {
  defined(a), defined(b);
  int64_t x = 0, y = 0;
  const int64_t *n = whole(a, x), *m = whole(b, y);
  if (n && m) return whole_arithmetic(op, *n, *m);
  const double *p = a.as<double>(), *q = b.as<double>();
  if ((n || p) && (m || q)) return real_arithmetic(op, p ? *p : double(*n), q ? *q : double(*m));
  const auto repeatable = [](const Value& v) {
    return v.text() || (v.as<ListRef>() && (*v.as<ListRef>())->kind != ListKind::generator);
  };
  if (op == Operator::multiply && m && repeatable(a)) return repeat(run, a, *m);
  if (op == Operator::multiply && n && repeatable(b)) return repeat(run, b, *n);
  if (op == Operator::add) return add(run, a, b);
  constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
  trouble("operator {} does not take {} and {}", kSigns[size_t(op)], type_name(a), type_name(b));
}

Value negative(Run& run, const Value& value) {
  int64_t store = 0;
  if (const double* x = value.as<double>()) return {-*x};
  if (!whole(defined(value), store)) trouble("operator - does not take {}", type_name(value));
  return arithmetic(run, Operator::subtract, {int64_t(0)}, value);
}

}  // namespace ridge::text::jinja
