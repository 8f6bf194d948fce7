// Host memory that acts as device memory of a given capacity: resident and cached blocks together never exceed it.
#pragma once

#include <cstddef>
#include <map>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace chameleon::cpu {

class BlockPool {
 public:
  // Large blocks come from mmap, so that they leave the process when they are given up.
  static constexpr size_t kMapBytes = 64 << 10;

  static size_t block_bytes(size_t bytes);

  void* allocate(size_t block_bytes);  // nullptr where the capacity does not allow it
  void free(void* block, size_t block_bytes);
  void set_capacity(size_t capacity_bytes);
  MemoryInfo info() const;
  void reset_peaks();

 private:
  void* from_cache(size_t block_bytes);
  void* pop(std::map<size_t, std::vector<void*>>::iterator size_class);
  void put(void* block, size_t block_bytes);
  void trim(size_t keep_bytes);  // give cached blocks back to the system until at most this many bytes are cached
  size_t budget(size_t block_bytes) const;

  std::map<size_t, std::vector<void*>> cache_;  // by size
  size_t capacity_bytes_ = SIZE_MAX;
  size_t resident_bytes_ = 0;
  size_t cached_bytes_ = 0;
  size_t peak_resident_bytes_ = 0;
  size_t peak_reserved_bytes_ = 0;
};

}  // namespace chameleon::cpu
