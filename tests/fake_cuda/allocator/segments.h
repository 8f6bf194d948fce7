// One GPU's part of torch's caching allocator, as c10/cuda/CUDACachingAllocator.cpp has it: segments in its sizes,
// pools for small and large blocks of each stream, best fit, splitting, what it does before it is out of memory, and
// expandable segments, whose pages come and go. Its memory is the host's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <vector>

namespace fake::c10_cuda {

size_t segment_bytes(size_t bytes);  // what a block of so many bytes takes from the GPU if nothing is cached

struct Block {
  size_t bytes;
  char* segment;
  bool free = false, held = false;
  bool mapped = true;  // false: address space of an expandable segment, without pages
};

class Segments {
 public:
  size_t total_bytes = size_t{1} << 36;
  size_t others_bytes = 0;  // of those, taken by other processes
  double fraction = 1;
  size_t allocated_bytes = 0, reserved_bytes = 0, peak_reserved_bytes = 0;
  long recorded_streams = 0, out_of_memory = 0;
  long retries = 0, device_allocs = 0, device_frees = 0, synchronizations = 0;
  long requests = 0, looked_at = 0;
  // Called under the allocator's lock where no block is kept that would serve, as torch's FreeMemoryCallbacks.
  inline static void (*on_miss)() = nullptr;
  inline static long misses = 0;

  void* allocate(size_t bytes, cudaStream_t stream);  // nullptr: out of memory, after all that torch tries
  void free(void* data);
  bool owns(void* data) const;
  Block& at(void* data) { return blocks_.at(static_cast<char*>(data)); }
  void release_cached();  // with the device's synchronization that it begins with

  size_t held_segment_bytes() const;  // of segments with a block that nobody can move; of expandable ones, its pages
  size_t split_bytes() const;         // as torch counts: of expandable segments nothing
  long split_blocks_of(bool small) const;
  size_t reserved_bytes_of(bool small) const;
  size_t allocated_bytes_of(bool small) const;
  size_t largest_free_bytes();
  size_t expandable_bytes() const;  // pages of expandable segments

 private:
  struct Segment {
    size_t bytes;
    bool small;
    cudaStream_t stream;
    bool expandable;
    size_t page_bytes() const { return small ? size_t{2} << 20 : size_t{20} << 20; }
  };
  using Blocks = std::map<char*, Block>;

  const Segment& segment_of(const Block& block) const { return segments_.at(block.segment); }
  bool joins(Blocks::iterator a, Blocks::iterator b) const;
  Blocks::iterator join(Blocks::iterator block);
  Blocks::iterator next_in_segment(Blocks::iterator block);
  char* find(size_t bytes, cudaStream_t stream);
  char* add_segment(size_t bytes, cudaStream_t stream);
  char* expand(size_t bytes, cudaStream_t stream);
  Blocks::iterator map(Blocks::iterator block, size_t bytes);
  bool unmap_pages(Blocks::iterator block);
  bool reserves(size_t bytes) const;
  void reserve(size_t bytes);

  std::map<char*, Segment> segments_;
  Blocks blocks_;
};

}  // namespace fake::c10_cuda
