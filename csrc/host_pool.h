// Host memory for storages that are away. Buffers are kept by size and reused from step to step.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace chameleon {

class HostPool {
 public:
  explicit HostPool(Device& device) : device_(device) {}

  void* allocate(size_t bytes);  // nullptr where the host capacity does not allow it
  void free(void* data, size_t bytes);
  void release_cached();
  void set_capacity(size_t bytes) { capacity_bytes_ = bytes; }

  size_t used_bytes() const { return used_bytes_; }
  size_t reserved_bytes() const {
    return device_.pools_host_memory() ? device_.pooled_host_bytes() : used_bytes_ + cached_bytes_;
  }
  size_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = used_bytes_; }

 private:
  static size_t rounded(size_t bytes);

  Device& device_;
  std::unordered_map<size_t, std::vector<void*>> cache_;
  size_t capacity_bytes_ = SIZE_MAX;
  size_t used_bytes_ = 0;
  size_t cached_bytes_ = 0;
  size_t peak_bytes_ = 0;
};

}  // namespace chameleon
