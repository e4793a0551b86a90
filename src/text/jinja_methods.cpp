// Methods of strings, lists, dictionaries and loops. What Python's sandbox forbids (changing an object) is not here.
#include <algorithm>

#include "text/finder.h"
#include "text/jinja_natives.h"
#include "text/unicode.h"

namespace ridge::text::jinja {
namespace {

const std::string& self(const Args& a) { return *a.self.text(); }
Value made(Args& a, std::string_view text) { return a.run.text(std::string(text), a.self.as<Text>()->safe); }

/// The optional argument of strip(): a str or None.
Value strip_ends(Args& a, bool left, bool right) {
  const Value* const chars = a.find(0, "chars");
  if (chars && !defined(*chars).text() && !chars->as<None>())
    trouble("'{}' takes a str, not {}", a.name, type_name(*chars));
  a.run.walk(self(a).size() + (chars && chars->text() ? chars->text()->size() : 0));
  return made(a, strip(self(a), chars ? chars->text() : nullptr, left, right));
}

/// Parts of a text as values.
struct Parts {
  Args& args;
  std::vector<Value> made = {};

  void add(std::string_view part) {
    args.run.take(sizeof(Value));
    made.push_back(jinja::made(args, part));
  }
  Value list(ListKind kind = ListKind::list) { return args.run.list(std::move(made), kind); }
};

/// Parts of the text between white space, at most `most` cuts from one side.
void add_words(Parts& parts, std::string_view text, int64_t most, bool from_left) {
  while (!(text = strip(text, nullptr, from_left, !from_left)).empty()) {
    size_t begin = 0, end = text.size();  // of the word at that side
    for (size_t at = 0; at < end && most != int64_t(parts.made.size()); at += first_length(text.substr(at))) {
      if (!is_space(first_code(text.substr(at)))) continue;
      if (from_left) end = at;
      else begin = at + first_length(text.substr(at));
    }
    parts.add(text.substr(begin, end - begin));
    text = from_left ? text.substr(end) : text.substr(0, begin);
  }
  if (!from_left) std::reverse(parts.made.begin(), parts.made.end());
}

/// Hands `found` the text before each place where `cut` stands, at most `most` of them; returns the text behind the
/// last.
template <class Found>
std::string_view each_piece(Run& run, std::string_view text, std::string_view cut, int64_t most, Found found) {
  if (cut.empty()) trouble("the separator is empty");
  run.walk(text.size() + cut.size());
  if (cut.size() > text.size()) return text;
  run.take(cut.size() * sizeof(uint32_t));
  const Finder finder(cut);
  for (; most != 0; --most) {
    const size_t at = finder.find(text);
    if (at == text.npos) break;
    run.step();
    found(text.substr(0, at));
    text.remove_prefix(at + cut.size());
  }
  return text;
}

void add_pieces_from_right(Parts& parts, std::string_view text, std::string_view cut, int64_t most) {
  if (cut.empty()) trouble("the separator is empty");
  Run& run = parts.args.run;
  run.walk(text.size() + cut.size());
  run.take(cut.size() * sizeof(uint32_t));
  const Finder finder(cut, true);
  for (; most != 0; --most) {
    const size_t at = finder.find(text);
    if (at == text.npos) break;
    parts.add(text.substr(at + cut.size()));
    text = text.substr(0, at);
  }
  parts.add(text);
  std::reverse(parts.made.begin(), parts.made.end());
}

Value split(Args& a, bool from_left) {
  const Value* const cut = a.find(0, "sep");
  const int64_t most = a.integer(1, "maxsplit", -1);
  if (cut && !defined(*cut).text() && !cut->as<None>()) trouble("'{}' takes a str, not {}", a.name, type_name(*cut));
  Parts parts{a};
  if (cut && cut->text() && from_left) {
    parts.add(each_piece(a.run, self(a), *cut->text(), most, [&](std::string_view part) { parts.add(part); }));
    return parts.list();
  }
  if (cut && cut->text()) return add_pieces_from_right(parts, self(a), *cut->text(), most), parts.list();
  // A word from the right looks at all of the text before it: counted as that.
  a.run.walk((from_left || most < 0 ? 1 : uint64_t(std::min<int64_t>(most, int64_t(self(a).size())) + 1)) *
             self(a).size());
  return add_words(parts, self(a), most, from_left || most < 0), parts.list();
}

Value partition(Args& a, bool from_left) {
  const std::string cut = a.text(0, "sep");
  if (cut.empty()) trouble("the separator is empty");
  const std::string_view text = self(a);
  const size_t at = find_text(a.run, text, cut, !from_left);
  Parts parts{a};
  if (at == text.npos) {
    for (const std::string_view part : {from_left ? text : "", std::string_view(), from_left ? "" : text})
      parts.add(part);
  } else {
    for (const std::string_view part : {text.substr(0, at), std::string_view(cut), text.substr(at + cut.size())})
      parts.add(part);
  }
  return parts.list(ListKind::tuple);
}

/// startswith() and endswith(): a text or a tuple of texts.
Value at_end(Args& a, bool start) {
  const Value& what = a.need(0, "prefix");
  const auto matches = [&](const Value& v) {
    if (!defined(v).text()) trouble("'{}' takes a str or a tuple of them, not {}", a.name, type_name(v));
    a.run.step(1 + std::min(self(a).size(), v.text()->size()) / 64);
    return start ? self(a).starts_with(*v.text()) : self(a).ends_with(*v.text());
  };
  const ListRef* many = what.as<ListRef>();
  if (!many) return {matches(what)};
  return {std::any_of((*many)->items.begin(), (*many)->items.end(), matches)};
}

Value index_of(Args& a, bool from_left, bool must_be) {
  const std::string what = a.text(0, "sub");
  const std::string_view text = self(a);
  const size_t at = what.empty() ? (from_left ? 0 : text.size()) : find_text(a.run, text, what, !from_left);
  if (at == text.npos && must_be) trouble("'{}': the text does not occur", a.name);
  if (at == text.npos) return {int64_t(-1)};
  a.run.walk(at);
  return {int64_t(count_codes(text.substr(0, at)))};
}

Value count(Args& a) {
  const std::string what = a.text(0, "sub");
  if (what.empty()) return {length(a.run, a.self) + 1};
  int64_t n = 0;
  each_piece(a.run, self(a), what, -1, [&](std::string_view) { ++n; });
  return {n};
}

/// An empty text stands before every code point, and at the end.
std::string replaced_between(Run& run, std::string_view text, std::string_view to, int64_t most) {
  Writer out(run);
  run.walk(text.size());
  for (; most != 0 && !text.empty(); --most) {
    out.add(to);
    out.add(text.substr(0, first_length(text)));
    text.remove_prefix(first_length(text));
  }
  if (most != 0) out.add(to);
  out.add(text);
  return out.take();
}

Value replace(Args& a) {
  const std::string from = a.text(0, "old"), to = a.text(1, "new");
  const int64_t most = a.integer(2, "count", -1);
  if (from.empty()) return made(a, replaced_between(a.run, self(a), to, most));
  Writer out(a.run);
  out.add(each_piece(a.run, self(a), from, most, [&](std::string_view before) { out.add(before), out.add(to); }));
  return made(a, out.take());
}

Value remove_end(Args& a, bool prefix) {
  const std::string what = a.text(0, "affix");
  const std::string_view text = self(a);
  if (prefix) return made(a, text.starts_with(what) ? text.substr(what.size()) : text);
  return made(a, text.ends_with(what) ? text.substr(0, text.size() - what.size()) : text);
}

Value join(Args& a) {
  const ListRef items = iterate(a.run, a.need(0, "iterable"));
  a.run.step(items->items.size());
  for (const Value& item : items->items)
    if (!item.text()) trouble("'join' needs texts, not {}", type_name(item));
  const Value list{items};
  return call_native(find_filter("join"), {a.run, a.name, list, std::span(&a.self, 1)});
}

bool is_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }
/// All characters are of the kind, and there is one. Letters beyond ASCII count as letters.
template <class Is>
Value all_are(Args& a, Is is) {
  const std::string& text = self(a);
  a.run.walk(text.size());
  return {!text.empty() && std::all_of(text.begin(), text.end(), is)};
}

/// Every word with a capital first letter, as str.title() does it: a word is a run of letters.
Value title(Args& a) {
  a.run.walk(self(a).size());
  std::string out = lower(self(a));
  for (size_t i = 0; i < out.size(); ++i)
    if (is_letter(out[i]) && (i == 0 || !(is_letter(out[i - 1]) || uint8_t(out[i - 1]) >= 0x80)))
      out[i] = char(out[i] - 0x20);
  return made(a, out);
}

Value capitalize(Args& a) {
  return made(a, upper(self(a).substr(0, 1)) + lower(self(a).substr(std::min<size_t>(1, self(a).size()))));
}

Value split_lines(Args& a) {
  if (a.flag(0, "keepends")) trouble("splitlines() does not keep line ends here");
  a.run.walk(self(a).size());
  Parts parts{a};
  each_line(self(a), [&](std::string_view line) { parts.add(line); });
  return parts.list();
}

constexpr NativeRow kTextMethods[] = {
    {"strip", [](Args& a) { return strip_ends(a, true, true); }},
    {"lstrip", [](Args& a) { return strip_ends(a, true, false); }},
    {"rstrip", [](Args& a) { return strip_ends(a, false, true); }},
    {"split", [](Args& a) { return split(a, true); }},
    {"rsplit", [](Args& a) { return split(a, false); }},
    {"splitlines", split_lines},
    {"partition", [](Args& a) { return partition(a, true); }},
    {"rpartition", [](Args& a) { return partition(a, false); }},
    {"startswith", [](Args& a) { return at_end(a, true); }},
    {"endswith", [](Args& a) { return at_end(a, false); }},
    {"removeprefix", [](Args& a) { return remove_end(a, true); }},
    {"removesuffix", [](Args& a) { return remove_end(a, false); }},
    {"replace", replace},
    {"find", [](Args& a) { return index_of(a, true, false); }},
    {"rfind", [](Args& a) { return index_of(a, false, false); }},
    {"index", [](Args& a) { return index_of(a, true, true); }},
    {"count", count},
    {"join", join},
    {"upper", [](Args& a) { return made(a, upper(self(a))); }},
    {"lower", [](Args& a) { return made(a, lower(self(a))); }},
    {"title", title},
    {"capitalize", capitalize},
    {"isdigit", [](Args& a) { return all_are(a, is_ascii_digit); }},
    {"isnumeric", [](Args& a) { return all_are(a, is_ascii_digit); }},
    {"isalpha", [](Args& a) { return all_are(a, [](char c) { return is_letter(c) || uint8_t(c) >= 0x80; }); }},
    {"isalnum",
     [](Args& a) {
       return all_are(a, [](char c) { return is_letter(c) || is_ascii_digit(c) || uint8_t(c) >= 0x80; });
     }},
    {"isspace",
     [](Args& a) -> Value {
       a.run.walk(self(a).size());
       return {!self(a).empty() && strip(self(a), nullptr, true, false).empty()};
     }},
    {"isupper",
     [](Args& a) {
       return call_native(find_test("upper"), {a.run, "upper", a.self, {}});
     }},
    {"islower",
     [](Args& a) {
       return call_native(find_test("lower"), {a.run, "lower", a.self, {}});
     }},
};

const std::vector<Value>& elements(const Args& a) { return (*a.self.as<ListRef>())->items; }

constexpr NativeRow kListMethods[] = {
    {"index",
     [](Args& a) -> Value {
       for (size_t i = 0; i < elements(a).size(); ++i)
         if (equal(a.run, elements(a)[i], a.need(0, "value"))) return {int64_t(i)};
       trouble("'index': the value is not in the list");
     }},
    {"count",
     [](Args& a) -> Value {
       const Value& what = a.need(0, "value");
       return {int64_t(std::count_if(elements(a).begin(), elements(a).end(),
                                     [&](const Value& v) { return equal(a.run, v, what); }))};
     }},
    {"copy", [](Args& a) { return a.self; }},
};

const Pairs& pairs(const Args& a) { return (*a.self.as<DictRef>())->items; }

constexpr NativeRow kDictMethods[] = {
    {"items",
     [](Args& a) {
       std::vector<Value> items;
       for (const auto& [key, value] : pairs(a)) items.push_back(a.run.list({key, value}, ListKind::tuple));
       return a.run.list(std::move(items));
     }},
    {"keys", [](Args& a) -> Value { return {iterate(a.run, a.self)}; }},
    {"values",
     [](Args& a) {
       std::vector<Value> items;
       for (const auto& item : pairs(a)) items.push_back(item.second);
       return a.run.list(std::move(items));
     }},
    {"get",
     [](Args& a) -> Value {
       const Value *const otherwise = a.find(1, "default"), *const found =
                                                                find(a.run, **a.self.as<DictRef>(), a.need(0, "key"));
       return found ? *found : otherwise ? *otherwise : Value{None{}};
     }},
    {"copy", [](Args& a) { return a.self; }},
};

constexpr NativeRow kLoopMethods[] = {
    {"cycle",
     [](Args& a) {
       a.asked = a.given.size();
       if (a.given.empty()) trouble("loop.cycle() needs an argument");
       return a.given[(*a.self.as<Loop*>())->index % a.given.size()];
     }},
    {"changed",
     [](Args& a) -> Value {
       a.asked = a.given.size();
       Loop& loop = **a.self.as<Loop*>();
       Value now = a.run.list(std::vector<Value>(a.given.begin(), a.given.end()), ListKind::tuple);
       const bool same = loop.last_changed && equal(a.run, *loop.last_changed, now);
       if (!same) loop.last_changed = std::make_shared<const Value>(std::move(now));
       return {!same};
     }},
};

}  // namespace

Native find_method(const Value& value, std::string_view name) {
  const ListRef* list = value.as<ListRef>();
  std::span<const NativeRow> rows;
  if (value.text()) rows = kTextMethods;
  else if (value.as<DictRef>()) rows = kDictMethods;
  else if (value.as<Loop*>()) rows = kLoopMethods;
  else if (list && (*list)->kind != ListKind::generator) rows = kListMethods;
  return find_row(rows, name);
}

}  // namespace ridge::text::jinja
