#include "host_pool.h"

#include <algorithm>

namespace chameleon {

size_t HostPool::rounded(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

void* HostPool::allocate(size_t bytes) {
  bytes = rounded(bytes);
  if (used_bytes_ + bytes > capacity_bytes_) return nullptr;
  void* data;
  auto cached = cache_.find(bytes);
  if (cached != cache_.end() && !cached->second.empty()) {
    data = cached->second.back();
    cached->second.pop_back();
    cached_bytes_ -= bytes;
  } else {
    if (used_bytes_ + cached_bytes_ + bytes > capacity_bytes_) release_cached();
    data = device_.allocate_host(bytes);
    if (!data) return nullptr;
  }
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return data;
}

void HostPool::free(void* data, size_t bytes) {
  bytes = rounded(bytes);
  used_bytes_ -= bytes;
  if (device_.pools_host_memory()) {
    device_.free_host(data, bytes);
    return;
  }
  // Sizes that never come again must not pile up: hold no more than was ever in use at once.
  if (used_bytes_ + cached_bytes_ + bytes > peak_bytes_) release_cached();
  cached_bytes_ += bytes;
  cache_[bytes].push_back(data);
}

void HostPool::release_cached() {
  for (auto& [bytes, buffers] : cache_) {
    for (void* data : buffers) device_.free_host(data, bytes);
  }
  cache_.clear();
  cached_bytes_ = 0;
  device_.release_host();
}

}  // namespace chameleon
