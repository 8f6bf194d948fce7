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
// needs, and buffers are cut from that. A plan has a place for each of its buffers in a slab of their own. Whatever
// else there is gets the end of the smallest free range that is large enough, outside of those places if there is one.
// Ranges are joined again when they are freed. A place that is taken (by a storage that stayed away while plans
// changed, say) is no error: that buffer lies elsewhere.
//
// A buffer may be handed out again while the GPU still copies from or to it: the order of the copies keeps that right,
// see Note [Order on a GPU].
class PinnedPool {
 public:
  void* allocate(size_t bytes);  // nullptr where the limit, or the system, has no room
  void free(void* data, size_t bytes);
  bool is_pageable(void* data) const { return pageable_.contains(data); }
  void* allocate_at(size_t place, size_t bytes);     // of those of plans; nullptr where any of it is taken
  bool has_planned(size_t bytes) const;              // is there a slab with so many places, or is none to be had?
  void reserve(size_t planned_bytes, size_t bytes);  // a slab for plans, and more beside their places
  void set_limit(size_t bytes) { limit_bytes_ = bytes; }
  void release();  // what is not in use; the GPU must be done with it

  size_t reserved_bytes() const { return slab_bytes_ + pageable_bytes_; }
  size_t pageable_bytes() const { return pageable_bytes_; }

 private:
  using Ranges = std::map<char*, size_t>;

  bool grow(size_t bytes);
  size_t room_bytes() const { return limit_bytes_ > reserved_bytes() ? limit_bytes_ - reserved_bytes() : 0; }
  char* add_slab(size_t bytes);  // nullptr where the system does not give it
  Ranges::iterator find_free(size_t bytes);
  void take(Ranges::iterator range, char* data, size_t bytes);
  void* allocate_pageable(size_t bytes);
  void add_free(char* begin, size_t bytes);
  void remove_free(Ranges::iterator range);
  char* slab_of(char* address) const;

  std::map<char*, size_t> slabs_;
  Ranges free_;                                 // by address; ranges never reach over a slab's end
  std::set<std::pair<size_t, char*>> by_size_;  // the same
  std::unordered_map<void*, size_t> pageable_;
  char* planned_ = nullptr;  // the slab that plans have places in
  size_t planned_bytes_ = 0;
  size_t refused_bytes_ = static_cast<size_t>(-1);  // so many places were asked for, and not to be had
  size_t limit_bytes_ = static_cast<size_t>(-1);
  size_t slab_bytes_ = 0;
  size_t pageable_bytes_ = 0;
};

}  // namespace chameleon::cuda
