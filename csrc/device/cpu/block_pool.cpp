#include "device/cpu/block_pool.h"

#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace chameleon::cpu {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kSmallBytes = 512;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void* map(size_t bytes) {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  return block;
}

}  // namespace

size_t BlockPool::block_bytes(size_t bytes) {
  return round_up(bytes, bytes >= kMapBytes ? kPageBytes : kSmallBytes);
}

void* BlockPool::allocate(size_t block_bytes) {
  if (resident_bytes_ > capacity_bytes_ || block_bytes > capacity_bytes_ - resident_bytes_) return nullptr;
  void* block;
  if (block_bytes < kMapBytes) {
    trim(budget(block_bytes) - resident_bytes_ - block_bytes);
    block = c10::alloc_cpu(block_bytes);
  } else {
    block = from_cache(block_bytes);
  }
  resident_bytes_ += block_bytes;
  peak_resident_bytes_ = std::max(peak_resident_bytes_, resident_bytes_);
  peak_reserved_bytes_ = std::max(peak_reserved_bytes_, resident_bytes_ + cached_bytes_);
  return block;
}

// Without a limit, keep no more than the most that was ever resident at once.
size_t BlockPool::budget(size_t block_bytes) const {
  return std::min(capacity_bytes_, std::max(peak_resident_bytes_, resident_bytes_ + block_bytes));
}

// A cached block of the size; else the front of a larger one; else a smaller one, grown. All three reuse pages that
// the system has zeroed already, which costs more than the copy of a block.
void* BlockPool::from_cache(size_t block_bytes) {
  auto fit = cache_.lower_bound(block_bytes);
  if (fit != cache_.end()) {
    const size_t found_bytes = fit->first;
    char* block = static_cast<char*>(pop(fit));
    if (found_bytes > block_bytes) put(block + block_bytes, found_bytes - block_bytes);
    return block;
  }
  if (!cache_.empty()) {
    const size_t found_bytes = cache_.rbegin()->first;
    void* block = pop(std::prev(cache_.end()));
    trim(budget(block_bytes) - resident_bytes_ - block_bytes);
    void* grown = mremap(block, found_bytes, block_bytes, MREMAP_MAYMOVE);
    if (grown != MAP_FAILED) return grown;
    munmap(block, found_bytes);
  }
  trim(budget(block_bytes) - resident_bytes_ - block_bytes);
  return map(block_bytes);
}

void* BlockPool::pop(std::map<size_t, std::vector<void*>>::iterator size_class) {
  void* block = size_class->second.back();
  size_class->second.pop_back();
  cached_bytes_ -= size_class->first;
  if (size_class->second.empty()) cache_.erase(size_class);
  return block;
}

void BlockPool::put(void* block, size_t block_bytes) {
  if (block_bytes < kMapBytes) {
    munmap(block, block_bytes);
    return;
  }
  cache_[block_bytes].push_back(block);
  cached_bytes_ += block_bytes;
}

void BlockPool::free(void* block, size_t block_bytes) {
  resident_bytes_ -= block_bytes;
  if (block_bytes < kMapBytes) {
    c10::free_cpu(block);
  } else {
    put(block, block_bytes);
    if (resident_bytes_ + cached_bytes_ > capacity_bytes_) {
      trim(capacity_bytes_ > resident_bytes_ ? capacity_bytes_ - resident_bytes_ : 0);
    }
  }
}

void BlockPool::trim(size_t keep_bytes) {
  while (cached_bytes_ > keep_bytes) {
    const size_t block_bytes = cache_.begin()->first;
    munmap(pop(cache_.begin()), block_bytes);
  }
}

void BlockPool::set_capacity(size_t capacity_bytes) {
  capacity_bytes_ = capacity_bytes;
  trim(capacity_bytes > resident_bytes_ ? std::min(cached_bytes_, capacity_bytes - resident_bytes_) : 0);
}

MemoryInfo BlockPool::info() const {
  return {capacity_bytes_, resident_bytes_, cached_bytes_, peak_resident_bytes_, peak_reserved_bytes_};
}

void BlockPool::reset_peaks() {
  peak_resident_bytes_ = resident_bytes_;
  peak_reserved_bytes_ = resident_bytes_ + cached_bytes_;
}

}  // namespace chameleon::cpu
