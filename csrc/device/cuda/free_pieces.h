// What torch's allocator keeps for reuse of the blocks that it was given back, as far as they tell: large ones alone.
//
// Torch tells the largest free block, and looks at all of them for it (cacheInfo), under its lock. Near the limit that
// would be asked before nearly every allocation, and what is asked for there is mostly what has just been freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <new>

namespace chameleon::cuda {

// Torch has pools of their own for blocks up to this.
constexpr bool is_small(size_t bytes) { return bytes <= size_t{1} << 20; }

class FreePieces {
 public:
  void add(size_t bytes) noexcept {
    try {
      if (!is_small(bytes)) ++counts_[bytes];
    } catch (const std::bad_alloc&) {  // torch is asked, then
    }
  }
  // A block is given: of the smallest piece that is large enough. Where none is, pieces beside each other made up one,
  // and there is no telling which.
  void take(size_t bytes) {
    if (is_small(bytes)) return;
    const auto found = counts_.lower_bound(bytes);
    if (found == counts_.end()) return clear();
    if (--found->second == 0) counts_.erase(found);
  }
  bool has(size_t bytes) const { return counts_.lower_bound(bytes) != counts_.end(); }
  void clear() { counts_.clear(); }
  // Memory went back to the GPU since this was called last with another number: no telling which.
  void follow(int64_t device_frees) {
    if (device_frees == device_frees_) return;
    device_frees_ = device_frees;
    clear();
  }

 private:
  int64_t device_frees_ = 0;
  std::map<size_t, int32_t> counts_;  // by size; none is 0
};

}  // namespace chameleon::cuda
