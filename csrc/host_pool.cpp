#include "host_pool.h"

#include <algorithm>
#include <bit>

namespace chameleon {

// Buffers that are in use go on being known by the size that they were made with.
void HostPool::set_capacity(size_t bytes) {
  capacity_bytes_ = bytes;
  if (used_bytes_ == 0) exact_ = bytes != SIZE_MAX;
}

// Pages, and where buffers are kept by size without a limit, at most eight sizes between a power of two and the next: a
// storage that has a slightly different size in each step shall find one.
size_t HostPool::rounded(size_t bytes) const {
  const size_t grain = exact_ || device_.pools_host_memory() ? 0 : std::bit_floor(bytes) / 8;
  return (bytes + std::max(grain, kPageBytes) - 1) / std::max(grain, kPageBytes) * std::max(grain, kPageBytes);
}

void* HostPool::allocate(size_t bytes, int64_t place, bool planned, bool at_hand) {
  bytes = rounded(bytes);
  if (used_bytes_ + bytes > capacity_bytes_) return nullptr;
  void* data = nullptr;
  const bool has_place = place >= 0 && device_.pools_host_memory();
  if (has_place) data = device_.allocate_host_at(static_cast<size_t>(place), bytes);
  const bool placed = data != nullptr;
  const auto same_size = by_size_.find(bytes);
  if (data) {
  } else if (same_size != by_size_.end()) {
    data = same_size->second.back()->second;
    cached_.erase(same_size->second.back());
    same_size->second.pop_back();
    if (same_size->second.empty()) by_size_.erase(same_size);
    cached_bytes_ -= bytes;
  } else {
    if (at_hand && device_.lacks_host(bytes)) return nullptr;
    if (used_bytes_ + cached_bytes_ + bytes > capacity_bytes_) release_cached(capacity_bytes_ - used_bytes_ - bytes);
    data = device_.allocate_host(bytes);
    if (!data) return nullptr;
  }
  if (planned && has_place) ++(placed ? placed_ : misplaced_);
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
  cached_bytes_ += bytes;
  cached_.emplace_back(bytes, data);
  by_size_[bytes].push_back(std::prev(cached_.end()));
  release_cached(std::max(peak_bytes_, used_bytes_) - used_bytes_);
}

void HostPool::release_cached(size_t keep_bytes) {
  while (cached_bytes_ > keep_bytes) {
    const auto [bytes, data] = cached_.front();
    const auto same_size = by_size_.find(bytes);
    same_size->second.pop_front();
    if (same_size->second.empty()) by_size_.erase(same_size);
    cached_.pop_front();
    cached_bytes_ -= bytes;
    device_.free_host(data, bytes);
  }
}

}  // namespace chameleon
