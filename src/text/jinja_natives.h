// Names that templates can call: filters, tests, methods of values and functions, in tables.
#pragma once

#include <optional>
#include <span>

#include "text/jinja_value.h"

namespace ridge::text::jinja {

/// Arguments of one call. A function asks for each of its parameters; done() then refuses what nobody asked for.
struct Args {
  Run& run;
  std::string_view name;  ///< of the function, for messages
  const Value& self;      ///< what is filtered or tested, or the object of a method
  std::span<const Value> given;
  std::span<const std::pair<std::string_view, Value>> named = {};
  size_t asked = 0, found_by_name = 0;

  /// Parameter number `index` or called `parameter`; null if it is not given.
  const Value* find(size_t index, std::string_view parameter);
  /// Parameter as find() gives it; an error if it is not given or undefined.
  const Value& need(size_t index, std::string_view parameter);
  std::string text(size_t index, std::string_view parameter, std::optional<std::string> otherwise = {});
  int64_t integer(size_t index, std::string_view parameter, std::optional<int64_t> otherwise = {});
  bool flag(size_t index, std::string_view parameter);
  void done() const;
};

struct NativeRow {
  std::string_view name;
  Native native;
};
Native find_row(std::span<const NativeRow> rows, std::string_view name);

/// The functions called `name`, or null. methods: of values like `self`.
Native find_filter(std::string_view name);
Native find_test(std::string_view name);
Native find_function(std::string_view name);
Native find_method(const Value& self, std::string_view name);
/// Calls a filter, test, method or function and checks that it took all arguments.
Value call_native(Native native, Args args);

}  // namespace ridge::text::jinja
