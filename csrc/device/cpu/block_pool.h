// Host memory that acts as device memory of a given capacity: resident and cached blocks together never exceed it.
#pragma once

#include <cstddef>
#include <map>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace chameleon::cpu {

// Note [Blocks are made of pieces]
// Under a tight capacity the pool is nearly always full, and what is free rarely has the size that is asked for. Giving
// pages back to the system and taking others would have every one of them zeroed and faulted in again, which costs
// several times the copy that swapping makes. So blocks keep their pages: a larger free block is cut, and smaller ones
// are moved together page table entry by page table entry (mremap). A block then consists of several mappings, its
// pieces, side by side in the address space.
class BlockPool {
 public:
  // Large blocks come from mmap, so that they leave the process when they are given up.
  static constexpr size_t kMapBytes = 64 << 10;

  static size_t block_bytes(size_t bytes);

  void* allocate(size_t block_bytes);  // nullptr where the capacity does not allow it
  void free(void* block, size_t block_bytes);
  void set_capacity(size_t capacity_bytes);
  bool has_room(size_t block_bytes) const {
    return resident_bytes_ <= capacity_bytes_ && block_bytes <= capacity_bytes_ - resident_bytes_;
  }
  size_t resident_bytes() const { return resident_bytes_; }
  MemoryInfo info() const;
  void reset_peaks();
  void keep_free_blocks(bool keep);

 private:
  struct FreeBlock {
    char* address;
    std::vector<size_t> pieces;  // their sizes, in order
  };
  using Cache = std::multimap<size_t, FreeBlock>;  // by size

  char* take_large(size_t block_bytes);
  char* assemble(size_t block_bytes);
  FreeBlock pop(Cache::iterator entry);
  void put(FreeBlock block, size_t block_bytes);
  FreeBlock cut(FreeBlock* block, size_t front_bytes);  // leaves the front in place, returns the rest
  void hold(FreeBlock block);
  void trim(size_t keep_bytes);  // give free blocks back to the system until at most this many bytes are cached
  size_t budget(size_t block_bytes) const;

  Cache cache_;
  std::unordered_map<const void*, std::vector<size_t>> pieces_;  // of resident blocks that have more than one
  bool keep_ = true;
  size_t capacity_bytes_ = SIZE_MAX;
  size_t resident_bytes_ = 0;
  size_t cached_bytes_ = 0;
  size_t peak_resident_bytes_ = 0;
  size_t peak_reserved_bytes_ = 0;
};

}  // namespace chameleon::cpu
