// Methods of strings, lists, dictionaries and loops. What Python's sandbox forbids (changing an object) is not here.
#include <algorithm>

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
  a.run.step(self(a).size() / 64);
  return made(a, strip(self(a), chars ? chars->text() : nullptr, left, right));
}

/// Parts of the text between white space, at most `most` cuts from the left.
std::vector<std::string_view> words(std::string_view text, int64_t most, bool from_left) {
  std::vector<std::string_view> parts;
  for (text = strip(text, nullptr, true, true); !text.empty(); text = strip(text, nullptr, true, true)) {
    if (most == int64_t(parts.size())) {
      parts.push_back(text);
      break;
    }
    size_t begin = 0, end = 0;  // of the word at the side where cutting starts
    for (size_t at = 0; at < text.size(); at += first_length(text.substr(at))) {
      if (!is_space(first_code(text.substr(at)))) continue;
      if (from_left) {
        end = at;
        break;
      }
      begin = at + first_length(text.substr(at));
    }
    if (!from_left || end == 0) end = text.size();
    parts.push_back(text.substr(begin, end - begin));
    text = from_left ? text.substr(end) : text.substr(0, begin);
  }
  if (!from_left) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> pieces(std::string_view text, std::string_view cut, int64_t most, bool from_left) {
  if (cut.empty()) trouble("the separator is empty");
  std::vector<std::string_view> parts;
  while (most < 0 || most > int64_t(parts.size())) {
    const size_t at = from_left ? text.find(cut) : text.rfind(cut);
    if (at == text.npos) break;
    parts.push_back(from_left ? text.substr(0, at) : text.substr(at + cut.size()));
    text = from_left ? text.substr(at + cut.size()) : text.substr(0, at);
  }
  parts.push_back(text);
  if (!from_left) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value texts(Args& a, const std::vector<std::string_view>& parts, ListKind kind = ListKind::list) {
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(made(a, part));
  return a.run.list(std::move(items), kind);
}

Value split(Args& a, bool from_left) {
  const Value* const cut = a.find(0, "sep");
  const int64_t most = a.integer(1, "maxsplit", -1);
  if (cut && !defined(*cut).text() && !cut->as<None>()) trouble("'{}' takes a str, not {}", a.name, type_name(*cut));
  if (cut && cut->text()) return texts(a, pieces(self(a), *cut->text(), most, from_left));
  // A word from the right looks at all of the text before it: counted as that.
  if (!from_left)
    a.run.step((most < 0 ? 1 : uint64_t(std::min<int64_t>(most, int64_t(self(a).size())))) * self(a).size() / 64);
  return texts(a, words(self(a), most, from_left || most < 0));
}

Value partition(Args& a, bool from_left) {
  const std::string cut = a.text(0, "sep");
  std::vector<std::string_view> parts = pieces(self(a), cut, 1, from_left);
  if (parts.size() == 1) parts.insert(from_left ? parts.end() : parts.begin(), 2, "");
  else parts.insert(parts.begin() + 1, cut);
  return texts(a, parts, ListKind::tuple);
}

/// startswith() and endswith(): a text or a tuple of texts.
Value at_end(Args& a, bool start) {
  const Value& what = a.need(0, "prefix");
  const auto matches = [&](const Value& v) {
    if (!defined(v).text()) trouble("'{}' takes a str or a tuple of them, not {}", a.name, type_name(v));
    return start ? self(a).starts_with(*v.text()) : self(a).ends_with(*v.text());
  };
  const ListRef* many = what.as<ListRef>();
  if (!many) return {matches(what)};
  return {std::any_of((*many)->items.begin(), (*many)->items.end(), matches)};
}

Value index_of(Args& a, bool from_left, bool must_be) {
  const std::string what = a.text(0, "sub");
  a.run.step(self(a).size() / 64);
  const size_t at = from_left ? self(a).find(what) : self(a).rfind(what);
  if (at == std::string::npos && must_be) trouble("'{}': the text does not occur", a.name);
  return {at == std::string::npos ? int64_t(-1) : int64_t(count_codes(std::string_view(self(a)).substr(0, at)))};
}

Value count(Args& a) {
  const std::string what = a.text(0, "sub");
  if (what.empty()) return {length(a.run, a.self) + 1};
  return {int64_t(pieces(self(a), what, -1, true).size()) - 1};
}

Value replace(Args& a) {
  const std::string from = a.text(0, "old"), to = a.text(1, "new");
  int64_t most = a.integer(2, "count", -1);
  Writer out(a.run);
  std::string_view rest = self(a);
  while (most != 0) {
    const size_t at = rest.find(from);
    if (at == rest.npos || (from.empty() && rest.empty())) break;
    out.add(rest.substr(0, at));
    out.add(to);
    const size_t kept = from.empty() ? first_length(rest) : 0;  // an empty text stands before every code point
    out.add(rest.substr(0, kept));
    rest.remove_prefix(at + from.size() + kept);
    if (most > 0) --most;
    a.run.step();
  }
  if (from.empty() && most != 0) out.add(to);
  out.add(rest);
  return made(a, out.take());
}

Value remove_end(Args& a, bool prefix) {
  const std::string what = a.text(0, "affix");
  const std::string_view text = self(a);
  if (prefix) return made(a, text.starts_with(what) ? text.substr(what.size()) : text);
  return made(a, text.ends_with(what) ? text.substr(0, text.size() - what.size()) : text);
}

bool is_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// All characters are of the kind, and there is one. Letters beyond ASCII count as letters.
template <class Is>
Value all_are(Args& a, Is is) {
  const std::string& text = self(a);
  return {!text.empty() && std::all_of(text.begin(), text.end(), is)};
}

/// Every word with a capital first letter, as str.title() does it: a word is a run of letters.
Value title(Args& a) {
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
  return texts(a, text::split_lines(self(a)));
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
    {"join",
     [](Args& a) {
       return call_native(find_filter("join"), {a.run, "join", a.need(0, "iterable"), std::span(&a.self, 1)});
     }},
    {"upper", [](Args& a) { return made(a, upper(self(a))); }},
    {"lower", [](Args& a) { return made(a, lower(self(a))); }},
    {"title", title},
    {"capitalize", capitalize},
    {"isdigit", [](Args& a) { return all_are(a, is_digit); }},
    {"isnumeric", [](Args& a) { return all_are(a, is_digit); }},
    {"isalpha", [](Args& a) { return all_are(a, [](char c) { return is_letter(c) || uint8_t(c) >= 0x80; }); }},
    {"isalnum",
     [](Args& a) { return all_are(a, [](char c) { return is_letter(c) || is_digit(c) || uint8_t(c) >= 0x80; }); }},
    {"isspace", [](Args& a) -> Value { return {!self(a).empty() && strip(self(a), nullptr, true, false).empty()}; }},
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
