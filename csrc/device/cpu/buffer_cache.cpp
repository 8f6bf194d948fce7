#include "device/cpu/buffer_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

#include "faults.h"

namespace chameleon::cpu {

// Private, not shared: a forked child must keep reading its own copy whatever the parent writes later.
void* BufferCache::map(size_t bytes) {
  if (Faults::hits(faults().refused_buffers)) return nullptr;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

void BufferCache::unmap(void* data, size_t bytes) { munmap(data, bytes); }

// Buffers that are in use go on being known by the size that they were made with.
void BufferCache::begin_session(size_t capacity_bytes) {
  if (used_bytes_ == 0) exact_ = capacity_bytes != SIZE_MAX;
  peak_bytes_ = used_bytes_;
}

size_t BufferCache::buffer_bytes(size_t bytes) const {
  const size_t grain = std::max(exact_ ? 0 : std::bit_floor(bytes) / 8, kPageBytes);
  return (bytes + grain - 1) / grain * grain;
}

void* BufferCache::allocate(size_t bytes, size_t most_kept_bytes) {
  void* data = nullptr;
  const auto same_size = by_size_.find(bytes);
  if (same_size != by_size_.end()) {
    data = same_size->second.back()->second;
    kept_.erase(same_size->second.back());
    same_size->second.pop_back();
    if (same_size->second.empty()) by_size_.erase(same_size);
    kept_bytes_ -= bytes;
  } else {
    release_beyond(most_kept_bytes);
    data = map(bytes);
    if (!data) return nullptr;
  }
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return data;
}

void BufferCache::free(void* data, size_t bytes) {
  used_bytes_ -= bytes;
  if (!keep(data, bytes)) return unmap(data, bytes);
  // Sizes that never come again must not pile up: keep no more than was ever in use at once.
  release_beyond(std::max(peak_bytes_, used_bytes_) - used_bytes_);
}

// False: there is no memory for the books. They are as before then.
bool BufferCache::keep(void* data, size_t bytes) {
  Kept newest;
  try {
    newest.emplace_back(bytes, data);
    by_size_[bytes].push_back(newest.begin());
  } catch (const std::bad_alloc&) {
    const auto same_size = by_size_.find(bytes);
    if (same_size != by_size_.end() && same_size->second.empty()) by_size_.erase(same_size);
    return false;
  }
  kept_.splice(kept_.end(), newest);  // what is there already says where it is
  kept_bytes_ += bytes;
  return true;
}

void BufferCache::release_beyond(size_t kept_bytes) {
  while (kept_bytes_ > kept_bytes) {
    const auto [bytes, data] = kept_.front();
    const auto same_size = by_size_.find(bytes);
    same_size->second.pop_front();
    if (same_size->second.empty()) by_size_.erase(same_size);
    kept_.pop_front();
    kept_bytes_ -= bytes;
    unmap(data, bytes);
  }
}

}  // namespace chameleon::cpu
