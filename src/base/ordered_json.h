// JSON whose objects keep the order of their keys and find a key without searching all of them.
#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

namespace ridge {

/// A hash that nobody can aim at: its seed is random, one a process.
uint64_t secret_hash(std::string_view text);

/// The members of an object in the order they came. Up to kFewKeys are searched one after another; more are found by a
/// table of hashes, so that an object of n keys is built in n steps, whatever the keys are.
template <class Key, class T, class /*Compare*/, class /*Allocator*/>
class OrderedMap : private std::vector<std::pair<Key, T>> {
  using Items = std::vector<std::pair<Key, T>>;

 public:
  using key_type = Key;
  using mapped_type = T;
  using key_compare = std::equal_to<>;
  using Items::begin;
  using Items::cbegin;
  using Items::cend;
  using Items::empty;
  using Items::end;
  using Items::max_size;
  using Items::size;
  using typename Items::allocator_type;
  using typename Items::const_iterator;
  using typename Items::difference_type;
  using typename Items::iterator;
  using typename Items::size_type;
  using typename Items::value_type;

  OrderedMap() = default;
  template <class It>
  OrderedMap(It first, It last) {
    insert(first, last);
  }

  iterator find(std::string_view key) { return begin() + difference_type(place(key)); }
  const_iterator find(std::string_view key) const { return begin() + difference_type(place(key)); }
  size_type count(std::string_view key) const { return place(key) < size() ? 1 : 0; }

  template <class K, class V>
  std::pair<iterator, bool> emplace(K&& key, V&& value) {
    const size_t at = place(key);
    if (at < size()) return {begin() + difference_type(at), false};
    Items::emplace_back(std::forward<K>(key), std::forward<V>(value));
    enter_last();
    return {end() - 1, true};
  }
  template <class K>
  T& operator[](K&& key) {
    return emplace(std::forward<K>(key), nullptr).first->second;
  }
  template <class Pair>
  std::pair<iterator, bool> insert(Pair&& pair) {
    return emplace(pair.first, std::forward<Pair>(pair).second);
  }
  template <class It>
  void insert(It first, It last) {
    for (; first != last; ++first) emplace(first->first, first->second);
  }

  iterator erase(iterator at) { return erase(at, at + 1); }
  iterator erase(iterator first, iterator last) {
    const iterator next = Items::erase(first, last);
    enter_all();
    return next;
  }
  size_type erase(std::string_view key) {
    const size_t at = place(key);
    if (at == size()) return 0;
    erase(begin() + difference_type(at));
    return 1;
  }
  void clear() {
    Items::clear();
    table_.clear();
  }

  friend bool operator==(const OrderedMap& a, const OrderedMap& b) { return a.items() == b.items(); }
  friend bool operator<(const OrderedMap& a, const OrderedMap& b) { return a.items() < b.items(); }
  friend std::partial_ordering operator<=>(const OrderedMap& a, const OrderedMap& b) {
    return a < b   ? std::partial_ordering::less
           : b < a ? std::partial_ordering::greater
                   : std::partial_ordering::equivalent;
  }

 private:
  static constexpr size_t kFewKeys = 16;
  const Items& items() const { return *this; }

  /// The index of a key; size() where there is none.
  size_t place(std::string_view key) const {
    size_t at = 0;
    if (table_.empty()) {
      while (at < size() && items()[at].first != key) ++at;
      return at;
    }
    const size_t mask = table_.size() - 1;
    for (size_t slot = secret_hash(key) & mask; table_[slot] != 0; slot = (slot + 1) & mask)
      if (items()[table_[slot] - 1].first == key) return table_[slot] - 1;
    return size();
  }
  void enter(size_t index) {
    const size_t mask = table_.size() - 1;
    size_t slot = secret_hash(items()[index].first) & mask;
    while (table_[slot] != 0) slot = (slot + 1) & mask;
    table_[slot] = uint32_t(index) + 1;
  }
  void enter_last() {
    if (size() <= kFewKeys) return;
    if (2 * size() > table_.size()) enter_all();
    else enter(size() - 1);
  }
  void enter_all() {
    table_.clear();
    if (size() <= kFewKeys) return;
    table_.resize(std::bit_ceil(4 * size()));
    for (size_t i = 0; i < size(); ++i) enter(i);
  }

  std::vector<uint32_t> table_;  // index + 1 by hash, 0: free; empty for few keys
};

using OrderedJson = nlohmann::basic_json<OrderedMap>;

}  // namespace ridge
