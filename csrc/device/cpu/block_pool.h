// Host memory that acts as device memory of a given capacity: resident and cached blocks together never exceed it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory_resource>
#include <set>
#include <utility>
#include <vector>

#include "device/device.h"

namespace chameleon::cpu {

// Note [Warm and cold stretches]
// Under a tight capacity the pool is nearly always full, and what is free rarely has the size that is asked for. Only
// pages count against the capacity, though: address space is there in plenty. Blocks lie in arenas, and what is free of
// an arena is either warm (its pages are there for the next block) or cold (address space alone). A block that fits
// into no warm stretch goes where most of it is warm, and as many pages as the rest of it needs are given back
// elsewhere first. An arena stays one mapping for good: pages come and go by madvise. Moving them instead, mapping by
// mapping, costs twice as much, since every move interrupts the other cores.
//
// So does every call that gives pages back. They go in lots, before other pages come or at 256 KiB: what has turned
// cold side by side goes in one call, and a block that comes there before finds its pages still in place.
class BlockPool {
 public:
  // Large blocks lie in arenas, so that their pages leave the process when they are given up.
  static constexpr size_t kLargeBytes = 64 << 10;

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
  struct Arena {
    size_t bytes;
    size_t used_bytes;
  };
  struct Stretch {
    size_t bytes;
    bool warm;
  };

  // The books' nodes have chunks of their own: strewn among the blocks that a session hands to malloc when it ends,
  // they would keep malloc from returning those to the system.
  struct MappedChunks : std::pmr::memory_resource {
    void* do_allocate(size_t bytes, size_t alignment) override;
    void do_deallocate(void* chunk, size_t bytes, size_t alignment) override;
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
  };
  MappedChunks chunks_;
  std::pmr::unsynchronized_pool_resource nodes_{&chunks_};
  std::pmr::map<char*, Arena> arenas_{&nodes_};
  std::pmr::map<char*, Stretch> free_{&nodes_};  // no two neighbors are of one kind
  std::pmr::set<std::pair<size_t, char*>> warm_by_size_{&nodes_};
  std::pmr::map<char*, size_t> pending_{&nodes_};  // cold, and their pages are still to be given back
  size_t pending_bytes_ = 0;
  using Position = decltype(free_)::const_iterator;

  char* take_large(size_t block_bytes);
  char* best_place(size_t block_bytes) const;
  Position end_of_room(Position first, size_t* room_bytes) const;
  size_t warm_bytes(char* at, size_t bytes) const;
  void occupy(char* at, size_t bytes);
  void put(char* at, size_t bytes, bool warm);  // joins it with its neighbors
  void erase(Position stretch);
  char* add_arena(size_t block_bytes);
  Arena& arena_of(char* address) { return std::prev(arenas_.upper_bound(address))->second; }
  void trim(size_t keep_bytes);                  // give pages back to the system until at most this many bytes are warm
  void give_back_later(char* at, size_t bytes);  // with the next lot
  void note_pending(char* at, size_t bytes);     // or give back at once, where the books find no memory
  void give_back();                              // the lot
  // Takes [begin, end) out of the lot. What of it has no pages is added to `cold`.
  void keep_pages(char* begin, char* end, std::vector<std::pair<char*, size_t>>& cold);
  void give_up();  // all pages of what is free
  void drop_empty_arenas();
  size_t budget(size_t block_bytes) const;

  bool keep_ = true;
  size_t capacity_bytes_ = SIZE_MAX;
  size_t resident_bytes_ = 0;
  size_t cached_bytes_ = 0;  // of the warm stretches
  size_t peak_resident_bytes_ = 0;
  size_t peak_reserved_bytes_ = 0;
};

}  // namespace chameleon::cpu
