#include "device/cpu/block_pool.h"

#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace chameleon::cpu {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kSmallBytes = 512;
constexpr size_t kLeastCachedBytes = 16 << 10;  // smaller rests are not worth a mapping of their own
constexpr size_t kMostPieces = 64;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

char* map(size_t bytes, int protection = PROT_READ | PROT_WRITE, void* at = nullptr) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
  void* block = mmap(at, bytes, protection, flags, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(block);
}

}  // namespace

size_t BlockPool::block_bytes(size_t bytes) { return round_up(bytes, bytes >= kMapBytes ? kPageBytes : kSmallBytes); }

void* BlockPool::allocate(size_t block_bytes) {
  if (!has_room(block_bytes)) return nullptr;
  void* block;
  if (block_bytes < kMapBytes) {
    trim(budget(block_bytes) - resident_bytes_ - block_bytes);
    block = c10::alloc_cpu(block_bytes);
  } else {
    block = take_large(block_bytes);
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

char* BlockPool::take_large(size_t block_bytes) {
  auto fit = cache_.lower_bound(block_bytes);
  if (fit != cache_.end()) {
    const size_t found_bytes = fit->first;
    FreeBlock block = pop(fit);
    if (found_bytes > block_bytes) put(cut(&block, block_bytes), found_bytes - block_bytes);
    char* address = block.address;
    hold(std::move(block));
    return address;
  }
  if (resident_bytes_ + cached_bytes_ + block_bytes <= budget(block_bytes)) return map(block_bytes);
  return assemble(block_bytes);
}

// No free block is large enough: move free ones together, the largest first, and add new pages for what is missing.
char* BlockPool::assemble(size_t block_bytes) {
  FreeBlock block{map(block_bytes, PROT_NONE), {}};
  size_t filled = 0;
  while (filled < block_bytes && !cache_.empty() && block.pieces.size() < kMostPieces) {
    auto largest = std::prev(cache_.end());
    size_t donor_bytes = largest->first;
    FreeBlock donor = pop(largest);
    if (donor_bytes > block_bytes - filled) {
      const size_t rest_bytes = donor_bytes - (block_bytes - filled);
      put(cut(&donor, block_bytes - filled), rest_bytes);
      donor_bytes -= rest_bytes;
    }
    char* from = donor.address;
    for (const size_t piece : donor.pieces) {
      if (mremap(from, piece, piece, MREMAP_MAYMOVE | MREMAP_FIXED, block.address + filled) == MAP_FAILED) {
        map(piece, PROT_READ | PROT_WRITE, block.address + filled);  // too many mappings: start anew with these pages
        munmap(from, piece);
      }
      block.pieces.push_back(piece);
      from += piece;
      filled += piece;
    }
  }
  if (filled < block_bytes) {
    trim(budget(block_bytes) - resident_bytes_ - block_bytes);
    map(block_bytes - filled, PROT_READ | PROT_WRITE, block.address + filled);
    block.pieces.push_back(block_bytes - filled);
  }
  char* address = block.address;
  hold(std::move(block));
  return address;
}

BlockPool::FreeBlock BlockPool::cut(FreeBlock* block, size_t front_bytes) {
  FreeBlock rest{block->address + front_bytes, {}};
  std::vector<size_t> front;
  size_t offset = 0;
  for (const size_t piece : block->pieces) {
    const size_t before = offset < front_bytes ? std::min(piece, front_bytes - offset) : 0;
    if (before > 0) front.push_back(before);
    if (piece > before) rest.pieces.push_back(piece - before);
    offset += piece;
  }
  block->pieces = std::move(front);
  return rest;
}

void BlockPool::hold(FreeBlock block) {
  if (block.pieces.size() > 1) pieces_[block.address] = std::move(block.pieces);
}

BlockPool::FreeBlock BlockPool::pop(Cache::iterator entry) {
  FreeBlock block = std::move(entry->second);
  cached_bytes_ -= entry->first;
  cache_.erase(entry);
  return block;
}

void BlockPool::put(FreeBlock block, size_t block_bytes) {
  if (block_bytes < kLeastCachedBytes) {
    munmap(block.address, block_bytes);
    return;
  }
  cached_bytes_ += block_bytes;
  cache_.emplace(block_bytes, std::move(block));
}

void BlockPool::free(void* block, size_t block_bytes) {
  resident_bytes_ -= block_bytes;
  if (block_bytes < kMapBytes) {
    c10::free_cpu(block);
    return;
  }
  auto found = pieces_.find(block);
  if (found == pieces_.end()) {
    put({static_cast<char*>(block), {block_bytes}}, block_bytes);
  } else {
    put({static_cast<char*>(block), std::move(found->second)}, block_bytes);
    pieces_.erase(found);
  }
  if (!keep_) {
    trim(0);
  } else if (resident_bytes_ + cached_bytes_ > capacity_bytes_) {
    trim(capacity_bytes_ > resident_bytes_ ? capacity_bytes_ - resident_bytes_ : 0);
  }
}

void BlockPool::trim(size_t keep_bytes) {
  while (cached_bytes_ > keep_bytes) {
    auto smallest = cache_.begin();
    munmap(smallest->second.address, smallest->first);
    pop(smallest);
  }
}

void BlockPool::set_capacity(size_t capacity_bytes) {
  capacity_bytes_ = capacity_bytes;
  trim(capacity_bytes > resident_bytes_ ? std::min(cached_bytes_, capacity_bytes - resident_bytes_) : 0);
}

void BlockPool::keep_free_blocks(bool keep) {
  keep_ = keep;
  if (!keep) trim(0);
}

MemoryInfo BlockPool::info() const {
  return {capacity_bytes_, resident_bytes_, cached_bytes_, peak_resident_bytes_, peak_reserved_bytes_};
}

void BlockPool::reset_peaks() {
  peak_resident_bytes_ = resident_bytes_;
  peak_reserved_bytes_ = resident_bytes_ + cached_bytes_;
}

}  // namespace chameleon::cpu
