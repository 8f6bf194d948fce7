// Faults on purpose, for tests: none, unless somebody asks for them.
#pragma once

#include <atomic>
#include <cstdint>

#include "order.h"

namespace chameleon {

// A fault that hits so many of 1024 chances, until so many have hit.
struct Fault {
  std::atomic<uint32_t> of_1024{0};
  std::atomic<int64_t> left{INT64_MAX};
  std::atomic<int64_t> made{0};  // since the process began

  bool hits();
};

struct Faults {
  std::atomic<uint32_t> refused_blocks{0};       // of 1024 requests for device memory
  std::atomic<uint32_t> refused_buffers{0};      // of 1024 requests for host memory
  std::atomic<uint32_t> refused_copies{0};       // of 1024 requests for a copy, which the host has no memory to begin
  std::atomic<int64_t> copies{-1};               // that the engines make until one of their threads fails; -1: no end
  std::atomic<bool> handed_over{false};          // small copies too are made by the engines' threads
  std::atomic<uint32_t> orders{0};               // waits of a device that are left out: a bit each
  std::atomic<int64_t> left_out{0};              // how many of those there were
  Fault disk_writes;                             // pieces that the disk does not take
  Fault disk_reads;                              // and does not give back
  Fault disk_short_moves;                        // moves that stop after a page
  Fault disk_flips;                              // written pieces of which a bit is flipped on the disk
  Fault disk_full;                               // requests for room
  Fault disk_flushes;                            // of the page cache, where that is used
  std::atomic<bool> disk_refuses_direct{false};  // as some file systems do, for files opened from then on

  static bool hits(const std::atomic<uint32_t>& rate) {
    const uint32_t of_1024 = rate.load(std::memory_order_relaxed);
    if (of_1024 == 0) return false;
    static std::atomic<uint32_t> state{1};
    const uint32_t next = state.fetch_add(1, std::memory_order_relaxed) * 2654435761u;
    return (next >> 22) < of_1024;
  }
  bool leaves_out(Order order) {
    if ((orders.load(std::memory_order_relaxed) >> static_cast<int>(order) & 1) == 0) return false;
    ++left_out;
    return true;
  }
  bool copy_fails() {
    return copies.load(std::memory_order_relaxed) >= 0 && copies.fetch_sub(1, std::memory_order_relaxed) == 0;
  }
};

inline bool Fault::hits() {
  if (!Faults::hits(of_1024)) return false;
  if (left.fetch_sub(1) <= 0) {
    left = 0;
    return false;
  }
  ++made;
  return true;
}

inline Faults& faults() {
  static Faults instance;
  return instance;
}

}  // namespace chameleon
