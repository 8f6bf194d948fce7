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
  auto range = find_free(bytes);
  if (range == free_.end()) {
    if (!grow(bytes)) return allocate_pageable(bytes);
    range = find_free(bytes);
  }
  char* data = range->first + range->second - bytes;
  take(range, data, bytes);
  return data;
}

PinnedPool::Ranges::iterator PinnedPool::find_free(size_t bytes) {
  const auto smallest = by_size_.lower_bound({bytes, nullptr});
  for (auto fit = smallest; fit != by_size_.end(); ++fit) {
    const char* data = fit->second + fit->first - bytes;
    if (!planned_ || data < planned_ || data >= planned_ + planned_bytes_) return free_.find(fit->second);
  }
  return smallest == by_size_.end() ? free_.end() : free_.find(smallest->second);
}

void* PinnedPool::allocate_at(size_t place, size_t bytes) {
  bytes = round_up(bytes, kAlignBytes);
  if (place % kAlignBytes != 0 || place > planned_bytes_ || bytes > planned_bytes_ - place) return nullptr;
  char* data = planned_ + place;
  auto range = free_.upper_bound(data);
  if (range == free_.begin()) return nullptr;
  --range;
  if (range->first + range->second < data + bytes) return nullptr;
  take(range, data, bytes);
  return data;
}

void PinnedPool::take(Ranges::iterator range, char* data, size_t bytes) {
  const auto [begin, found_bytes] = *range;
  remove_free(range);
  const auto keep = [this](char* from, size_t left_bytes) {
    if (left_bytes == 0) return;
    free_.emplace(from, left_bytes);
    by_size_.emplace(left_bytes, from);
  };
  keep(begin, static_cast<size_t>(data - begin));
  keep(data + bytes, static_cast<size_t>(begin + found_bytes - (data + bytes)));
}

void PinnedPool::free(void* data, size_t bytes) {
  bytes = round_up(bytes, kAlignBytes);
  if (auto found = pageable_.find(data); found != pageable_.end()) {  // whoever frees it has waited for its copies
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

bool PinnedPool::has_planned(size_t bytes) const { return bytes <= planned_bytes_ || bytes >= refused_bytes_; }

// What an older slab has no places for gets a new one; the older one serves other buffers.
void PinnedPool::reserve(size_t planned_bytes, size_t bytes) {
  if (has_planned(planned_bytes)) return;
  planned_bytes = round_up(planned_bytes, kAlignBytes);
  const auto old = slabs_.find(planned_);
  if (old == slabs_.end() || old->second < planned_bytes) {
    const size_t slab_bytes = std::min(round_up(std::max(planned_bytes, bytes), kSlabUnitBytes), room_bytes());
    char* slab = slab_bytes > 0 ? add_slab(slab_bytes) : nullptr;
    if (!slab) {
      refused_bytes_ = planned_bytes;
      return;
    }
    if (slab_bytes < planned_bytes) refused_bytes_ = planned_bytes;  // what lies beyond goes elsewhere
    planned_ = slab;
  }
  planned_bytes_ = std::min(planned_bytes, slabs_.at(planned_));
}

// By as much again as there is, within bounds: each time costs, and stops the GPU.
bool PinnedPool::grow(size_t bytes) {
  const size_t least = round_up(bytes, kAlignBytes);
  if (least > room_bytes()) return false;
  const size_t ahead = std::clamp(slab_bytes_, kLeastSlabBytes, kMostGrowthBytes);
  const size_t most = std::min(round_up(std::max(least, ahead), kSlabUnitBytes), room_bytes());
  return add_slab(most) || (most > least && add_slab(least));
}

char* PinnedPool::add_slab(size_t bytes) {
  void* data = nullptr;
  if (cudaHostAlloc(&data, bytes, cudaHostAllocDefault) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  slabs_.emplace(static_cast<char*>(data), bytes);
  slab_bytes_ += bytes;
  add_free(static_cast<char*>(data), bytes);
  return static_cast<char*>(data);
}

// Copies of such memory stop the host until they are over: the run goes on, slowly, and the session warns of it.
void* PinnedPool::allocate_pageable(size_t bytes) {
  if (bytes > room_bytes()) return nullptr;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  pageable_.emplace(data, bytes);
  pageable_bytes_ += bytes;
  return data;
}

void PinnedPool::release() {
  refused_bytes_ = static_cast<size_t>(-1);
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    const auto range = free_.find(slab->first);
    if (range == free_.end() || range->second != slab->second) {
      ++slab;
      continue;
    }
    remove_free(range);
    if (slab->first == planned_) {
      planned_ = nullptr;
      planned_bytes_ = 0;
    }
    slab_bytes_ -= slab->second;
    (void)cudaFreeHost(slab->first);
    slab = slabs_.erase(slab);
  }
}

}  // namespace chameleon::cuda
