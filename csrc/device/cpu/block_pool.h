// Host memory that acts as device memory of a given capacity: resident and cached blocks together never exceed it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <set>
#include <utility>
#include <vector>

#include "device/device.h"

namespace chameleon::cpu {

// Note [Blocks are made of pieces]
// Under a tight capacity the pool is nearly always full, and what is free rarely has the size that is asked for. Giving
// pages back to the system and taking others would have every one of them zeroed and faulted in again, which costs
// several times the copy that swapping makes. So blocks keep their pages: a larger free block is cut, neighbours that
// are free become one block again, and where that is not enough, smaller ones are moved together page table entry by
// page table entry (mremap). A block then consists of several mappings, its pieces, side by side in the address space.
// Every piece is a system call the next time that it is moved: what would take many gets new pages.
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
  struct Piece {
    size_t bytes;
    uint64_t mapping;  // neighbours of one mapping can be moved as one
  };
  using Pieces = std::pmr::vector<Piece>;
  struct Block {
    char* address;
    size_t bytes;
    Pieces pieces;  // in order
  };

  char* take_large(size_t block_bytes);
  char* assemble(size_t block_bytes);
  char* hold(Block block);
  Block pop(size_t bytes, char* address);
  void put(Block block);  // joins it with its neighbours
  void insert(Block block);
  static Block cut(Block* block, size_t front_bytes);  // leaves the front in place, returns the rest
  void move_to(char* to, Block block, Pieces* pieces);
  void trim(size_t keep_bytes);  // give free blocks back to the system until at most this many bytes are cached
  size_t budget(size_t block_bytes) const;

  // The books' nodes have chunks of their own: strewn among the blocks that a session hands to malloc when it ends,
  // they would keep malloc from returning those to the system.
  struct MappedChunks : std::pmr::memory_resource {
    void* do_allocate(size_t bytes, size_t alignment) override;
    void do_deallocate(void* chunk, size_t bytes, size_t alignment) override;
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
  };
  MappedChunks chunks_;
  std::pmr::unsynchronized_pool_resource nodes_{&chunks_};
  std::pmr::set<std::pair<size_t, char*>> by_size_{&nodes_};  // free blocks: no two are neighbours
  std::pmr::map<char*, Block> by_address_{&nodes_};
  std::pmr::map<const void*, Pieces> pieces_{&nodes_};  // of resident blocks
  uint64_t mappings_ = 0;
  bool keep_ = true;
  size_t capacity_bytes_ = SIZE_MAX;
  size_t resident_bytes_ = 0;
  size_t cached_bytes_ = 0;
  size_t peak_resident_bytes_ = 0;
  size_t peak_reserved_bytes_ = 0;
};

}  // namespace chameleon::cpu
