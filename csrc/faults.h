// Faults on purpose, for tests: none, unless somebody asks for them.
#pragma once

#include <atomic>
#include <cstdint>

#include "order.h"

namespace chameleon {

struct Faults {
  std::atomic<uint32_t> refused_blocks{0};   // of 1024 requests for device memory
  std::atomic<uint32_t> refused_buffers{0};  // of 1024 requests for host memory
  std::atomic<int64_t> copies{-1};           // that the engines make until one of their threads fails; -1: no end
  std::atomic<bool> handed_over{false};      // small copies too are made by the engines' threads
  std::atomic<uint32_t> orders{0};           // waits of a device that are left out: a bit each
  std::atomic<int64_t> left_out{0};          // how many of those there were

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

inline Faults& faults() {
  static Faults instance;
  return instance;
}

}  // namespace chameleon
