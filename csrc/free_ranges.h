// Free ranges of a file or of a pool, by where they begin and by size. Two that touch are one.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <new>
#include <set>
#include <utility>

namespace chameleon {

// Address: an offset, or a pointer to bytes.
template <class Address>
class FreeRanges {
 public:
  using ByAddress = std::map<Address, size_t>;
  using Range = typename ByAddress::const_iterator;

  const ByAddress& by_address() const { return by_address_; }
  const std::set<std::pair<size_t, Address>>& by_size() const { return by_size_; }

  // Nothing is thrown, as where memory is given back: a range that there is no memory to note serves nobody any more.
  void add(Address begin, size_t bytes) noexcept {
    Range next = by_address_.lower_bound(begin);
    if (next != by_address_.end() && next->first == begin + bytes) {
      bytes += next->second;
      next = erase(next);
    }
    if (next != by_address_.begin()) {
      const Range before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        bytes += before->second;
        erase(before);
      }
    }
    try {
      const Range range = by_address_.emplace(begin, bytes).first;
      try {
        by_size_.emplace(bytes, begin);
      } catch (const std::bad_alloc&) {
        by_address_.erase(range);
      }
    } catch (const std::bad_alloc&) {
    }
  }

  // A part of a range, of which the rest stays free.
  void take(Range range, Address begin, size_t bytes) noexcept {
    const auto [first, all_bytes] = *range;
    const auto before_bytes = static_cast<size_t>(begin - first);
    const size_t behind_bytes = all_bytes - before_bytes - bytes;
    erase(range);
    if (before_bytes > 0) add(first, before_bytes);
    if (behind_bytes > 0) add(begin + bytes, behind_bytes);
  }

 private:
  Range erase(Range range) {
    by_size_.erase({range->second, range->first});
    return by_address_.erase(range);
  }

  ByAddress by_address_;
  std::set<std::pair<size_t, Address>> by_size_;
};

}  // namespace chameleon
