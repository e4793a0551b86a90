// Calls by which the first of several ranks directs the others (lead.h), as bytes. All ranks run one program, so both
// sides write and read values as they lie in memory. Data behind pointers has a form of its own here.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "op/cache/memory.h"

namespace ridge {

enum class Call : uint8_t {
  end,
  load,  // a model, in place of the one before
  watch,
  free_bytes,
  // Calls about a memory, whose number follows, and about its slots and pages, as in KvMemory.
  open_memory,
  close_memory,
  clear_slot,
  copy_slot,
  copy_page,
  clear_counts,
  set_pages,
  read_side,
  write,
  fill,
  counts,
  saturated,
  step,  // over a memory
  start_sampling,
  queue_sampling,
  end_sampling,
};

/// A sequence of a step: where it is in the memory, and how many tokens it brings.
struct StepCall {
  int slot, n_past, n_tokens;
  bool calibrates;
};

/// A layer's cache of the whole model.
struct LayerCall {
  struct Side {
    int format, recent;  // numbers in kv_formats()
    int window, sinks;
    Rotation rotation;
    KvScale scale;
    KvRounding rounding;
    bool centre;
  };
  Side k, v;
  int n_kv_heads, head_dim, attention_window, layer;
  int64_t state_values;
  struct {  // KeyRope
    int n_pairs, first;
    bool halves;
    double frequency[512];
  } rope;
  bool v_is_k;
  int index_dim;
};
LayerCall call_of(const KvLayerConfig& layer);
KvLayerConfig layer_of(const LayerCall& call);

class CallWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { text_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  template <class T>
  void put_all(std::span<const T> values) {
    put(ssize(values));
    text_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  void put_text(const std::string& text) { put_all(std::span<const char>(text)); }
  void put_place(const SequencePlace& place) {
    put(place.slot), put(place.n), put_all(place.pages), put_all(place.ring_first);
    put_all(place.sliding_pages), put(place.sliding_first);
  }
  /// Returns everything put so far and empties the writer.
  std::string take() { return std::exchange(text_, {}); }

 private:
  std::string text_;
};

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// A place with memory of its own for what it refers to.
struct HeardPlace {
  SequencePlace place;
  std::vector<int32_t> pages, sliding_pages;
  std::vector<int> ring_first;
};

/// Gives what a writer put, in the same order.
class CallReader {
 public:
  explicit CallReader(std::string text) : text_(std::move(text)) {}
  bool done() const { return at_ == text_.size(); }
  template <class T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value;
    std::memcpy(&value, bytes(sizeof value), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> get_all() {
    std::vector<T> values(size_t(get<int64_t>()));
    const size_t n_bytes = values.size() * sizeof(T);
    if (n_bytes > 0) std::memcpy(values.data(), bytes(n_bytes), n_bytes);
    return values;
  }
  std::string get_text() {
    const std::vector<char> text = get_all<char>();
    return {text.begin(), text.end()};
  }
  HeardPlace get_place() {
    HeardPlace heard;
    heard.place.slot = get<int>(), heard.place.n = get<int>();
    heard.pages = get_all<int32_t>(), heard.ring_first = get_all<int>(), heard.sliding_pages = get_all<int32_t>();
    heard.place.pages = heard.pages, heard.place.ring_first = heard.ring_first;
    heard.place.sliding_pages = heard.sliding_pages, heard.place.sliding_first = get<int>();
    return heard;
  }

 private:
  const char* bytes(size_t n) {
    RIDGE_CHECK(n <= text_.size() - at_, "{} bytes of a call, {} are there", n, text_.size() - at_);
    return text_.data() + std::exchange(at_, at_ + n);
  }

  std::string text_;
  size_t at_ = 0;
};

}  // namespace ridge
