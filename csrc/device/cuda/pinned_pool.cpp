#include "device/cuda/pinned_pool.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace chameleon::cuda {

namespace {

constexpr size_t kAlignBytes = 4096;
constexpr size_t kSlabUnitBytes = 2 << 20;    // a huge page
constexpr size_t kLeastSlabBytes = 64 << 20;  // where nobody has said how much will be needed
constexpr size_t kMostGrowthBytes = 1 << 30;  // at a time

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void* PinnedPool::allocate(size_t bytes) {
  bytes = round_up(bytes, kAlignBytes);
  auto fit = by_size_.lower_bound({bytes, nullptr});
  if (fit == by_size_.end()) {
    if (!grow(bytes)) return allocate_pageable(bytes);
    fit = by_size_.lower_bound({bytes, nullptr});
  }
  char* data = fit->second;
  const size_t found_bytes = fit->first;
  remove_free(free_.find(data));
  if (found_bytes > bytes) {
    free_.emplace(data + bytes, found_bytes - bytes);
    by_size_.emplace(found_bytes - bytes, data + bytes);
  }
  return data;
}

void PinnedPool::free(void* data, size_t bytes) {
  bytes = round_up(bytes, kAlignBytes);
  if (auto found = pageable_.find(data); found != pageable_.end()) {  // its copies are over when their calls return
    pageable_bytes_ -= found->second;
    munmap(data, found->second);
    pageable_.erase(found);
    return;
  }
  add_free(static_cast<char*>(data), bytes);
}

char* PinnedPool::slab_of(char* address) const { return std::prev(slabs_.upper_bound(address))->first; }

void PinnedPool::add_free(char* begin, size_t bytes) {
  const char* const slab = slab_of(begin);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + bytes && slab_of(next->first) == slab) {
    bytes += next->second;
    const auto joined = next++;
    remove_free(joined);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin && slab_of(before->first) == slab) {
      begin = before->first;
      bytes += before->second;
      remove_free(before);
    }
  }
  free_.emplace(begin, bytes);
  by_size_.emplace(bytes, begin);
}

void PinnedPool::remove_free(Ranges::iterator range) {
  by_size_.erase({range->second, range->first});
  free_.erase(range);
}

void PinnedPool::reserve(size_t bytes) {
  bytes = std::min(bytes, limit_bytes_);
  if (bytes <= slab_bytes_) return;
  const size_t more = round_up(bytes - slab_bytes_, kSlabUnitBytes);
  if (more <= limit_bytes_ - std::min(limit_bytes_, reserved_bytes())) grow(more);
}

// By as much again as there is, within bounds: each time costs, and stops the GPU.
bool PinnedPool::grow(size_t bytes) {
  const size_t room = limit_bytes_ > reserved_bytes() ? limit_bytes_ - reserved_bytes() : 0;
  const size_t least = round_up(bytes, kAlignBytes);
  if (least > room) return false;
  const size_t ahead = std::clamp(slab_bytes_, kLeastSlabBytes, kMostGrowthBytes);
  for (size_t slab = std::min(round_up(std::max(least, ahead), kSlabUnitBytes), room);; slab = least) {
    void* data = nullptr;
    if (cudaHostAlloc(&data, slab, cudaHostAllocDefault) == cudaSuccess) {
      slabs_.emplace(static_cast<char*>(data), slab);
      slab_bytes_ += slab;
      add_free(static_cast<char*>(data), slab);
      return true;
    }
    (void)cudaGetLastError();
    if (slab == least) return false;
  }
}

// Copies of such memory stop the host until they are over: the run goes on, slowly, and the session warns of it.
void* PinnedPool::allocate_pageable(size_t bytes) {
  if (bytes > limit_bytes_ - std::min(limit_bytes_, reserved_bytes())) return nullptr;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  pageable_.emplace(data, bytes);
  pageable_bytes_ += bytes;
  return data;
}

void PinnedPool::release() {
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    const auto range = free_.find(slab->first);
    if (range == free_.end() || range->second != slab->second) {
      ++slab;
      continue;
    }
    remove_free(range);
    slab_bytes_ -= slab->second;
    (void)cudaFreeHost(slab->first);
    slab = slabs_.erase(slab);
  }
}

}  // namespace chameleon::cuda
