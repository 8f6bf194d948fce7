// Host memory for storages that are away. Buffers are kept by size and reused from step to step.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <unordered_map>
#include <utility>

#include "device/device.h"

namespace chameleon {

class HostPool {
 public:
  explicit HostPool(Device& device) : device_(device) {}

  // At a place of what the device has reserved for the plan if that is free; nullptr where the host capacity does not
  // allow it. `planned`: does the plan count on it? `at_hand`: nullptr as well where the device lacks() it.
  void* allocate(size_t bytes, int64_t place = -1, bool planned = false, bool at_hand = false);
  // Would the device have to get it from the system, which takes long?
  bool lacks(size_t bytes) const { return allows(bytes, 0) && device_.lacks_host(rounded(bytes)); }
  void free(void* data, size_t bytes);
  void release_cached(size_t keep_bytes = 0);  // what was freed longest ago goes first
  void set_capacity(size_t bytes);
  size_t rounded(size_t bytes) const;  // what a buffer takes
  // Does the capacity allow for so many bytes more, once so many others are freed?
  bool allows(size_t bytes, size_t freed_bytes) const {
    return used_bytes_ - freed_bytes + rounded(bytes) <= capacity_bytes_;
  }

  size_t used_bytes() const { return used_bytes_; }
  size_t reserved_bytes() const {
    return device_.pools_host_memory() ? device_.pooled_host_bytes() : used_bytes_ + cached_bytes_;
  }
  size_t peak_bytes() const { return peak_bytes_; }
  int64_t placed() const { return placed_; }        // planned buffers that were given their place
  int64_t misplaced() const { return misplaced_; }  // and those that were not
  void reset_peak() {
    peak_bytes_ = used_bytes_;
    placed_ = misplaced_ = 0;
  }

 private:
  static constexpr size_t kPageBytes = 4096;

  using Cached = std::list<std::pair<size_t, void*>>;

  Device& device_;
  Cached cached_;  // the one that was freed longest ago first
  std::unordered_map<size_t, std::deque<Cached::iterator>> by_size_;
  size_t capacity_bytes_ = SIZE_MAX;
  bool exact_ = false;  // a capacity is given: buffers are as large as a plan has them
  size_t used_bytes_ = 0;
  size_t cached_bytes_ = 0;
  size_t peak_bytes_ = 0;
  int64_t placed_ = 0;
  int64_t misplaced_ = 0;
};

}  // namespace chameleon
