// Host memory that the GPU's copy engines reach by themselves, in slabs of our own.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace chameleon::cuda {

// Pinning is slow (a quarter of a second a GiB and more) and stops the GPU, so it is done once, for as much as a plan
// needs, and buffers are cut from that: the smallest free range that is large enough, joined again when they are freed.
//
// A buffer may be handed out again while the GPU still copies from or to it: the order of the copies keeps that right,
// see Note [Order on a GPU].
class PinnedPool {
 public:
  void* allocate(size_t bytes);  // nullptr where the limit, or the system, has no room
  void free(void* data, size_t bytes);
  void reserve(size_t bytes);  // so many in all
  void set_limit(size_t bytes) { limit_bytes_ = bytes; }
  void release();  // what is not in use; the GPU must be done with it

  size_t reserved_bytes() const { return slab_bytes_ + pageable_bytes_; }
  size_t pageable_bytes() const { return pageable_bytes_; }

 private:
  using Ranges = std::map<char*, size_t>;

  bool grow(size_t bytes);
  void* allocate_pageable(size_t bytes);
  void add_free(char* begin, size_t bytes);
  void remove_free(Ranges::iterator range);
  char* slab_of(char* address) const;

  std::map<char*, size_t> slabs_;
  Ranges free_;                                 // by address; ranges never reach over a slab's end
  std::set<std::pair<size_t, char*>> by_size_;  // the same
  std::unordered_map<void*, size_t> pageable_;
  size_t limit_bytes_ = static_cast<size_t>(-1);
  size_t slab_bytes_ = 0;
  size_t pageable_bytes_ = 0;
};

}  // namespace chameleon::cuda
