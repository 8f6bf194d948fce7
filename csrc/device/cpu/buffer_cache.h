// Host memory for copies: buffers are kept by size, and reused from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <unordered_map>
#include <utility>

namespace chameleon::cpu {

class BufferCache {
 public:
  static void* map(size_t bytes);  // pages from the system; nullptr where it has none left
  static void unmap(void* data, size_t bytes);

  // What a buffer takes: pages, and without a limit at most eight sizes between a power of two and the next. A storage
  // that has a slightly different size in each step shall find one.
  size_t buffer_bytes(size_t bytes) const;
  // Of so many buffer_bytes(), at most `most_kept_bytes` being kept for reuse then.
  void* allocate(size_t bytes, size_t most_kept_bytes);
  void free(void* data, size_t bytes);
  void release_beyond(size_t kept_bytes);  // what was freed longest ago goes first
  void begin_session(size_t capacity_bytes);
  size_t reserved_bytes() const { return used_bytes_ + kept_bytes_; }

 private:
  static constexpr size_t kPageBytes = 4096;
  using Kept = std::list<std::pair<size_t, void*>>;

  bool keep(void* data, size_t bytes);

  Kept kept_;  // the one that was freed longest ago first
  std::unordered_map<size_t, std::deque<Kept::iterator>> by_size_;
  bool exact_ = false;  // a capacity is given: buffers are as large as a plan has them
  size_t used_bytes_ = 0;
  size_t kept_bytes_ = 0;
  size_t peak_bytes_ = 0;  // most in use at once in this session
};

}  // namespace chameleon::cpu
