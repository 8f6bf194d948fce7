// A segment tree over integers: add to a range, find the last value above a bound. O(log n) each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace chameleon::planner {

// Node k has the children 2k and 2k + 1; the leaves follow from `size_`. An amount that is added to a whole subtree
// stays at its top, so the true maximum of a node is top_[k] plus pending_ of all nodes above it.
class RangeMax {
 public:
  explicit RangeMax(const std::vector<int64_t>& values);

  size_t length() const { return length_; }

  // Add `amount` at the positions begin <= i < end; nothing if there is none. 0 <= begin, end <= length().
  void add(int64_t begin, int64_t end, int64_t amount);

  // The last position in begin <= i < end whose value is above `bound`; begin - 1 if there is none.
  int64_t last_above(int64_t begin, int64_t end, int64_t bound) const;

 private:
  size_t length_;
  size_t size_ = 1;  // leaves: a power of two
  std::vector<int64_t> top_;
  std::vector<int64_t> pending_;
};

}  // namespace chameleon::planner
