#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "text/finder.h"
#include "text/unicode.h"

namespace ridge::text::jinja {
namespace {

int depth_of(const Value& value) {
  if (const ListRef* list = value.as<ListRef>()) return (*list)->depth;
  if (const DictRef* dict = value.as<DictRef>()) return (*dict)->depth;
  if (const Callable* method = value.as<Callable>(); method && method->self) return depth_of(*method->self);
  return 0;
}

int one_deeper(int depth, const Value& child) {
  if (depth_of(child) >= kMaxValueDepth) trouble("values nest deeper than {} levels", kMaxValueDepth);
  return std::max(depth, depth_of(child) + 1);
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string out = fmt::format("{}", value);
  if (out.find_first_of(".e") == out.npos) out += ".0";
  return out;
}

/// Escape sequence for `code` in quotes; empty: the character itself.
std::string escape_of(uint32_t code, char quote, bool json, bool ascii) {
  constexpr std::string_view kNamed = "\n\r\t\b\f", kLetters = "nrtbf";
  const size_t named = code < 0x80 ? kNamed.find(char(code)) : kNamed.npos;
  if (code == uint32_t(quote) || code == '\\') return {'\\', char(code)};
  if (named < (json ? 5 : 3)) return {'\\', kLetters[named]};
  if (json && code >= 0x10000 && ascii)
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 | (code & 0x3FF));
  if (json && (code < 0x20 || (ascii && code > 0x7E))) return fmt::format("\\u{:04x}", code);
  if (json || is_printable(code)) return {};
  if (code < 0x100) return fmt::format("\\x{:02x}", code);
  return code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

/// Text in quotes: Python's repr() where `json` is false, json.dumps where it is true.
void write_quoted(Writer& to, std::string_view text, bool json, bool ascii) {
  const bool twice = json || (text.find('\'') != text.npos && text.find('"') == text.npos);
  const char quote = twice ? '"' : '\'';
  to.run().walk(text.size());
  to.add(1, quote);
  size_t written = 0;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const size_t size = first_length(rest);
    if (const std::string escaped = escape_of(first_code(rest), quote, json, ascii); !escaped.empty()) {
      to.add(text.substr(written, at - written));
      to.add(escaped);
      written = at + size;
    }
    at += size;
  }
  to.add(text.substr(written));
  to.add(1, quote);
}

void write_list(Writer& to, const List& list) {
  if (list.kind == ListKind::generator) return to.add("<generator object>");
  to.add(list.kind == ListKind::tuple ? "(" : "[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) to.add(", ");
    write_repr(to, list.items[i]);
  }
  to.add(list.kind != ListKind::tuple ? "]" : list.items.size() == 1 ? ",)" : ")");
}

double real_of(const Value& value) {
  int64_t store = 0;
  if (const int64_t* n = whole(value, store)) return double(*n);
  return *value.as<double>();
}

bool is_number(const Value& value) { return value.as<bool>() || value.as<int64_t>() || value.as<double>(); }

}  // namespace

Value Run::text(std::string text, bool safe) {
  take(text.size() + kTextBytes);
  return {Text{std::make_shared<const std::string>(std::move(text)), safe}};
}

Value Run::list(std::vector<Value> items, ListKind kind) {
  take(sizeof(List) + items.size() * sizeof(Value));
  int levels = 1;
  for (const Value& item : items) levels = one_deeper(levels, item);
  return {std::make_shared<const List>(List{std::move(items), kind, levels})};
}

Value Run::dict(Pairs items) {
  take(sizeof(Dict) + items.size() * sizeof(Pairs::value_type));
  int levels = 1;
  for (const auto& [key, item] : items) levels = one_deeper(one_deeper(levels, key), item);
  return {std::make_shared<const Dict>(Dict{std::move(items), levels})};
}

Value Run::space(std::vector<std::pair<std::string, Value>> items) {
  take(sizeof(Space) + items.size() * sizeof(items[0]));
  spaces_.push_back(std::make_unique<Space>(Space{std::move(items)}));
  return {spaces_.back().get()};
}

Loop* Run::loop(ListRef items) {
  take(sizeof(Loop));
  loops_.push_back(std::make_unique<Loop>(Loop{std::move(items)}));
  return loops_.back().get();
}

std::string_view type_name(const Value& value) {
  if (const ListRef* list = value.as<ListRef>())
    return (*list)->kind == ListKind::list ? "list" : (*list)->kind == ListKind::tuple ? "tuple" : "generator";
  constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool",      "int",         "float",   "str",
                                         "",          "dict",     "Namespace", "LoopContext", "function"};
  return kNames[value.data.index()];
}

const Value& defined(const Value& value) {
  if (const Undefined* undefined = value.as<Undefined>()) throw Trouble{*undefined->why};
  return value;
}

bool truth(const Value& value) {
  if (value.as<Undefined>() || value.as<None>()) return false;
  if (const bool* b = value.as<bool>()) return *b;
  if (const int64_t* n = value.as<int64_t>()) return *n != 0;
  if (const double* x = value.as<double>()) return *x != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const ListRef* list = value.as<ListRef>()) return (*list)->kind == ListKind::generator || !(*list)->items.empty();
  if (const DictRef* dict = value.as<DictRef>()) return !(*dict)->items.empty();
  return true;
}

std::string str(Run& run, const Value& value) {
  Writer to(run);
  write_str(to, value);
  return to.take();
}

void write_str(Writer& to, const Value& value) {
  if (const std::string* text = value.text()) to.add(*text);
  else if (!value.as<Undefined>()) write_repr(to, value);
}

void write_repr(Writer& to, const Value& value) {
  to.run().step();
  if (value.as<Undefined>()) to.add("Undefined");
  else if (value.as<None>()) to.add("None");
  else if (const bool* b = value.as<bool>()) to.add(*b ? "True" : "False");
  else if (const int64_t* n = value.as<int64_t>()) to.add(fmt::format("{}", *n));
  else if (const double* x = value.as<double>()) to.add(real_text(*x));
  else if (const std::string* text = value.text()) write_quoted(to, *text, false, false);
  else if (const ListRef* list = value.as<ListRef>()) write_list(to, **list);
  else if (const DictRef* dict = value.as<DictRef>()) {
    to.add("{");
    for (size_t i = 0; i < (*dict)->items.size(); ++i) {
      if (i > 0) to.add(", ");
      write_repr(to, (*dict)->items[i].first);
      to.add(": ");
      write_repr(to, (*dict)->items[i].second);
    }
    to.add("}");
  } else to.add(fmt::format("<{}>", type_name(value)));
}

namespace {

void new_line(Writer& to, const JsonStyle& style, int level) {
  if (style.indent == nullptr) return;
  to.add("\n");
  for (int i = 0; i < level; ++i) to.add(*style.indent);
}

/// Keys of JSON are texts: others become what json.dumps makes of them.
std::string json_key(Writer& to, const Value& key) {
  if (key.text()) return to.run().take(key.text()->size()), *key.text();
  if (!is_number(key) && !key.as<None>()) trouble("keys of JSON must be texts or numbers, not {}", type_name(key));
  Writer name(to.run());
  write_json(name, key, {});
  return name.take();
}

void write_json_dict(Writer& to, const Dict& dict, const JsonStyle& style, int level) {
  std::vector<std::pair<std::string, const Value*>> items;
  for (const auto& [key, value] : dict.items) items.emplace_back(json_key(to, key), &value);
  to.run().take(items.size() * sizeof(items[0]));
  const auto by_key = [&](const auto& a, const auto& b) {
    to.run().step(1 + std::min(a.first.size(), b.first.size()) / 64);
    return a.first < b.first;
  };
  if (style.sort_keys) std::stable_sort(items.begin(), items.end(), by_key);
  to.add("{");
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) to.add(style.comma);
    new_line(to, style, level + 1);
    write_quoted(to, items[i].first, true, style.ascii);
    to.add(style.colon);
    write_json(to, *items[i].second, style, level + 1);
  }
  if (!items.empty()) new_line(to, style, level);
  to.add("}");
}

}  // namespace

void write_json(Writer& to, const Value& value, const JsonStyle& style, int level) {
  to.run().step();
  const ListRef* list = value.as<ListRef>();
  if (value.as<None>()) to.add("null");
  else if (const bool* b = value.as<bool>()) to.add(*b ? "true" : "false");
  else if (value.as<int64_t>()) write_repr(to, value);
  else if (const double* x = value.as<double>())
    to.add(std::isnan(*x) ? "NaN" : std::isinf(*x) ? (*x > 0 ? "Infinity" : "-Infinity") : real_text(*x));
  else if (const std::string* text = value.text()) write_quoted(to, *text, true, style.ascii);
  else if (const DictRef* dict = value.as<DictRef>()) write_json_dict(to, **dict, style, level);
  else if (list && (*list)->kind != ListKind::generator) {
    to.add("[");
    for (size_t i = 0; i < (*list)->items.size(); ++i) {
      if (i > 0) to.add(style.comma);
      new_line(to, style, level + 1);
      write_json(to, (*list)->items[i], style, level + 1);
    }
    if (!(*list)->items.empty()) new_line(to, style, level);
    to.add("]");
  } else trouble("an object of type {} is not JSON serializable", type_name(value));
}

const int64_t* whole(const Value& value, int64_t& store) {
  if (const bool* b = value.as<bool>()) return store = *b, &store;
  return value.as<int64_t>();
}

bool equal(Run& run, const Value& a, const Value& b) {
  run.step();
  if (is_number(a) && is_number(b)) {
    int64_t x = 0, y = 0;
    const int64_t *n = whole(a, x), *m = whole(b, y);
    return n && m ? *n == *m : real_of(a) == real_of(b);
  }
  if (a.data.index() != b.data.index()) return false;
  if (a.text()) {
    if (a.text()->size() != b.text()->size()) return false;
    run.step(a.text()->size() / 64);
    return *a.text() == *b.text();
  }
  if (const ListRef* list = a.as<ListRef>()) {
    const List &x = **list, &y = **b.as<ListRef>();
    if (&x == &y) return true;
    return x.kind == y.kind && x.kind != ListKind::generator &&
           std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(),
                      [&](const Value& p, const Value& q) { return equal(run, p, q); });
  }
  if (const DictRef* dict = a.as<DictRef>()) {
    const Dict &x = **dict, &y = **b.as<DictRef>();
    return x.items.size() == y.items.size() && std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
             const Value* const other = find(run, y, item.first);
             return other != nullptr && equal(run, item.second, *other);
           });
  }
  if (a.as<Space*>()) return *a.as<Space*>() == *b.as<Space*>();
  return a.as<Undefined>() || a.as<None>();
}

int compare(Run& run, const Value& a, const Value& b) {
  run.step();
  const auto sign = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
  defined(a), defined(b);
  if (is_number(a) && is_number(b)) {
    int64_t x = 0, y = 0;
    const int64_t *n = whole(a, x), *m = whole(b, y);
    return n && m ? sign(*n, *m) : sign(real_of(a), real_of(b));
  }
  if (a.text() && b.text()) {
    run.step(std::min(a.text()->size(), b.text()->size()) / 64);
    return sign(a.text()->compare(*b.text()), 0);
  }
  const ListRef *p = a.as<ListRef>(), *q = b.as<ListRef>();
  if (!p || !q || (*p)->kind != (*q)->kind || (*p)->kind == ListKind::generator)
    trouble("{} and {} have no order", type_name(a), type_name(b));
  const std::vector<Value>&x = (*p)->items, &y = (*q)->items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    if (!equal(run, x[i], y[i])) return compare(run, x[i], y[i]);
  return sign(x.size(), y.size());
}

const Value* find(Run& run, const Dict& dict, const Value& key) {
  for (const auto& [name, value] : dict.items)
    if (equal(run, name, key)) return &value;
  return nullptr;
}

size_t find_text(Run& run, std::string_view text, std::string_view what, bool last) {
  run.walk(text.size() + what.size());
  if (what.size() > text.size()) return text.npos;
  run.take(what.size() * sizeof(uint32_t));
  return Finder(what, last).find(text);
}

bool contains(Run& run, const Value& where, const Value& what) {
  if (const std::string* text = where.text()) {
    if (!defined(what).text()) trouble("'in <str>' needs a str on its left, not {}", type_name(what));
    return what.text()->empty() || find_text(run, *text, *what.text()) != text->npos;
  }
  if (const DictRef* dict = where.as<DictRef>()) return find(run, **dict, what) != nullptr;
  const ListRef items = iterate(run, where);
  return std::any_of(items->items.begin(), items->items.end(), [&](const Value& v) { return equal(run, v, what); });
}

bool iterable(const Value& value) {
  return value.text() || value.as<ListRef>() || value.as<DictRef>() || value.as<Undefined>();
}

ListRef iterate(Run& run, const Value& value) {
  if (!iterable(value)) trouble("a value of type {} is not iterable", type_name(value));
  if (const ListRef* list = value.as<ListRef>(); list && (*list)->kind != ListKind::generator) return *list;
  std::vector<Value> items;
  if (const ListRef* list = value.as<ListRef>()) {
    items.assign((*list)->items.begin() + ptrdiff_t((*list)->taken), (*list)->items.end());
    (*list)->taken = (*list)->items.size();
  } else if (const DictRef* dict = value.as<DictRef>()) {
    for (const auto& item : (*dict)->items) items.push_back(item.first);
  } else if (value.text()) {
    std::string_view rest = *value.text();
    while (!rest.empty()) {
      run.take(sizeof(Value));
      items.push_back(run.text(std::string(rest.substr(0, first_length(rest)))));
      rest.remove_prefix(first_length(rest));
    }
  }
  return *run.list(std::move(items)).as<ListRef>();
}

int64_t length(Run& run, const Value& value) {
  if (const std::string* text = value.text()) return run.walk(text->size()), int64_t(count_codes(*text));
  if (const DictRef* dict = value.as<DictRef>()) return int64_t((*dict)->items.size());
  if (value.as<Undefined>()) return 0;
  const ListRef* list = value.as<ListRef>();
  if (!list || (*list)->kind == ListKind::generator) trouble("an object of type {} has no length", type_name(value));
  return int64_t((*list)->items.size());
}

}  // namespace ridge::text::jinja
