#include "range_max.h"

#include <algorithm>
#include <array>
#include <bit>

namespace chameleon::planner {

RangeMax::RangeMax(const std::vector<int64_t>& values) : length_(values.size()) {
  size_ = std::bit_ceil(std::max<size_t>(length_, 1));
  const int64_t lowest = values.empty() ? 0 : *std::min_element(values.begin(), values.end());
  top_.assign(2 * size_, lowest);
  std::copy(values.begin(), values.end(), top_.begin() + static_cast<ptrdiff_t>(size_));
  for (size_t node = size_ - 1; node > 0; --node) top_[node] = std::max(top_[2 * node], top_[2 * node + 1]);
  pending_.assign(size_, 0);
}

void RangeMax::add(int64_t begin, int64_t end, int64_t amount) {
  if (begin >= end) return;
  const auto add_to = [&](size_t node) {
    top_[node] += amount;
    if (node < size_) pending_[node] += amount;
  };
  const size_t first = static_cast<size_t>(begin) + size_, past = static_cast<size_t>(end) + size_;
  for (size_t left = first, right = past; left < right; left >>= 1, right >>= 1) {
    if (left & 1) add_to(left++);
    if (right & 1) add_to(--right);
  }
  for (size_t node : {first, past - 1}) {
    for (node >>= 1; node > 0; node >>= 1) top_[node] = std::max(top_[2 * node], top_[2 * node + 1]) + pending_[node];
  }
}

int64_t RangeMax::last_above(int64_t begin, int64_t end, int64_t bound) const {
  if (begin >= end) return begin - 1;
  size_t node = static_cast<size_t>(end) - 1 + size_;
  // From the root down to the leaf: what to add to the values of each node on the way.
  std::array<int64_t, 64> above{};
  int64_t total = 0;
  for (int level = std::bit_width(size_) - 1; level > 0; --level) {
    total += pending_[node >> level];
    above[static_cast<size_t>(level) - 1] = total;
  }
  size_t level = 0;
  while (top_[node] + above[level] <= bound) {
    // Nothing here: to the left neighbor, by way of the first ancestor that is a right child.
    while (!(node & 1)) {
      node >>= 1;
      ++level;
    }
    if (node == 1) return begin - 1;
    --node;
    if (static_cast<int64_t>((node + 1) << level) - static_cast<int64_t>(size_) <= begin) return begin - 1;
  }
  total = above[level];
  while (node < size_) {
    total += pending_[node];
    const size_t right = 2 * node + 1;
    node = top_[right] + total > bound ? right : right - 1;
  }
  return std::max(static_cast<int64_t>(node) - static_cast<int64_t>(size_), begin - 1);
}

}  // namespace chameleon::planner
