// Values of templates: what Python's objects are to jinja2, and the bounds of one rendering.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/work_limit.h"

namespace ridge::text::jinja {

/// Bounds of one rendering. Beyond them it fails with a message that names the bound.
struct Limits {
  /// Nodes evaluated, values visited, pieces of 64 bytes copied or compared, and of 8 bytes searched or changed.
  uint64_t steps = 20'000'000;
  uint64_t bytes = uint64_t(512) << 20;  ///< bytes of all values made, kept or not
  uint64_t output = uint64_t(64) << 20;  ///< bytes of the text
  int depth = 500;                       ///< nested evaluations, macros called by macros among them
};

/// Lists in lists: deeper ones are refused, which keeps every walk over a value safe.
inline constexpr int kMaxValueDepth = 200;
/// Bytes that a text takes beside its own.
inline constexpr uint64_t kTextBytes = 64;
/// Elements of range(), as jinja2's sandbox has it.
inline constexpr int64_t kMaxRange = 100'000;

/// Why a template failed. It is thrown inside this layer only, where a Result at each of the evaluator's calls would
/// double the code; parsing and rendering catch it and return a Failure.
struct Trouble {
  std::string message;
  int line = 0, column = 0;  ///< 1 based; 0 until a node of the template adds its own
  bool refused = false;      ///< raise_exception() of the template
};

template <class... Args>
[[noreturn]] void trouble(fmt::format_string<Args...> format, Args&&... args) {
  throw Trouble{fmt::format(format, std::forward<Args>(args)...)};
}

struct Value;
struct List;
struct Dict;
struct Args;
struct Node;
struct Scope;
class Run;
using Native = Value (*)(Args&);

/// `why` is the error of any use but printing, testing and iterating.
struct Undefined {
  std::shared_ptr<const std::string> why;
};
struct None {};
/// UTF-8. A `safe` text escapes plain texts that are added to it, as markupsafe.Markup does.
struct Text {
  std::shared_ptr<const std::string> text;
  bool safe = false;
};
using ListRef = std::shared_ptr<const List>;
using DictRef = std::shared_ptr<const Dict>;
/// namespace(): lives as long as the rendering, so values that hold each other are no leak.
struct Space {
  std::vector<std::pair<std::string, Value>> items;
};
/// The variable `loop` of a for statement.
struct Loop {
  ListRef items;
  size_t index = 0;
  std::shared_ptr<const Value> last_changed = nullptr;
};
/// A macro with the scope it was defined in, or a function of ours with the object it is a method of.
struct Callable {
  std::string_view name;
  const Node* macro = nullptr;
  Scope* scope = nullptr;
  Native native = nullptr;
  std::shared_ptr<const Value> self = nullptr;
};

struct Value {
  std::variant<Undefined, None, bool, int64_t, double, Text, ListRef, DictRef, Space*, Loop*, Callable> data;

  template <class T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
  /// The text of a string, else null.
  const std::string* text() const { return as<Text>() ? as<Text>()->text.get() : nullptr; }
};

using Pairs = std::vector<std::pair<Value, Value>>;

enum class ListKind : uint8_t { list, tuple, generator };
struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::list;
  int depth = 1;
  mutable size_t taken = 0;  ///< elements of a generator that were read: they come once
};
/// Keys in their order. Looked up one after another: steps count the length.
struct Dict {
  Pairs items;
  int depth = 1;
};

/// The state of one rendering: it makes values and counts what they cost.
class Run {
 public:
  Run(const Limits& bounds, const std::tm& time) : limits(bounds), now(time) {}

  void step(uint64_t n = 1) {
    WorkLimit::check();
    if ((steps_ += n) > limits.steps) trouble("the template takes more than {} steps", limits.steps);
  }
  /// Work on so many bytes, one after another.
  void walk(uint64_t bytes) { step(1 + bytes / 8); }
  void take(uint64_t bytes) {
    if (bytes > limits.bytes || (bytes_ += bytes) > limits.bytes)
      trouble("the template makes more than {} bytes of values", limits.bytes);
    step(bytes / 64);
  }
  Value text(std::string text, bool safe = false);
  Value list(std::vector<Value> items, ListKind kind = ListKind::list);
  Value dict(Pairs items);
  template <class... A>
  Value undefined(fmt::format_string<A...> why, A&&... args) {
    auto made = std::make_shared<const std::string>(fmt::format(why, std::forward<A>(args)...));
    take(made->size());
    return {Undefined{std::move(made)}};
  }
  Value space(std::vector<std::pair<std::string, Value>> items);
  Loop* loop(ListRef items);

  const Limits limits;
  const std::tm now;  ///< local time
  int depth = 0;      ///< nested evaluations

 private:
  uint64_t steps_ = 0, bytes_ = 0;
  std::vector<std::unique_ptr<Space>> spaces_;
  std::vector<std::unique_ptr<Loop>> loops_;
};

/// One level deeper until the end of the C++ block.
class Level {
 public:
  explicit Level(Run& run) : run_(run) { ++run.depth; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ~Level() { --run_.depth; }
  void check() const {
    if (run_.depth > run_.limits.depth) trouble("the template nests deeper than {} levels", run_.limits.depth);
  }

 private:
  Run& run_;
};

/// A text that grows within the bounds of a rendering.
class Writer {
 public:
  explicit Writer(Run& run) : run_(run) {}
  void add(std::string_view piece) {
    run_.step();
    run_.take(piece.size());
    out_.append(piece);
  }
  void add(size_t count, char c) {
    run_.step();
    run_.take(count);
    out_.append(count, c);
  }
  std::string take() { return std::move(out_); }
  Run& run() { return run_; }

 private:
  Run& run_;
  std::string out_;
};

/// How json() writes: Python's json.dumps.
struct JsonStyle {
  bool ascii = false, sort_keys = false;
  std::string comma = ", ", colon = ": ";
  const std::string* indent = nullptr;  ///< of one level; null: one line
};

/// "str", "list", ...: Python's name of the type.
std::string_view type_name(const Value& value);
bool truth(const Value& value);
/// Python's str() and repr().
std::string str(Run& run, const Value& value);
void write_str(Writer& to, const Value& value);
void write_repr(Writer& to, const Value& value);
void write_json(Writer& to, const Value& value, const JsonStyle& style, int level = 0);
bool equal(Run& run, const Value& a, const Value& b);
/// Order of numbers, texts and lists: below 0, 0 or above 0; of other pairs an error.
int compare(Run& run, const Value& a, const Value& b);
/// Where `what`, which is not empty, stands first (or last) in a text, or npos. Time and memory are linear and counted.
size_t find_text(Run& run, std::string_view text, std::string_view what, bool last = false);
/// Is `what` in `where`: element, key or part of a text.
bool contains(Run& run, const Value& where, const Value& what);
const Value* find(Run& run, const Dict& dict, const Value& key);
/// Elements of a list, keys of a dictionary, code points of a text, nothing of an undefined value.
ListRef iterate(Run& run, const Value& value);
bool iterable(const Value& value);
/// len(): an error for what has none.
int64_t length(Run& run, const Value& value);
/// An int or bool, as Python takes them alike.
const int64_t* whole(const Value& value, int64_t& store);
/// value.name and value[key] (not found: undefined); value[start:stop:step], None for a bound that is not given.
Value attribute(Run& run, const Value& value, std::string_view name);
Value subscript(Run& run, const Value& value, const Value& key);
Value slice(Run& run, const Value& value, const Value& start, const Value& stop, const Value& step);
enum class Operator : uint8_t { add, subtract, multiply, divide, floor_divide, modulo, power };
Value arithmetic(Run& run, Operator op, const Value& a, const Value& b);
Value negative(Run& run, const Value& value);
/// `value` where something else than printing and testing needs it: an error if it is undefined.
const Value& defined(const Value& value);

}  // namespace ridge::text::jinja
