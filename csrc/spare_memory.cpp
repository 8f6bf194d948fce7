#include "spare_memory.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <new>

namespace chameleon::spare_memory {

namespace {

constexpr size_t kPieceBytes = 256 << 10;  // malloc asks the system for less than that at once
std::array<std::atomic<void*>, 16> pieces{};
std::new_handler next_handler = nullptr;

bool give_up(std::atomic<void*>& place) {
  void* piece = place.load(std::memory_order_relaxed) ? place.exchange(nullptr) : nullptr;
  if (piece) munmap(piece, kPieceBytes);
  return piece != nullptr;
}

// Called by operator new, which then tries again.
void on_no_memory() {
  for (auto& place : pieces) {
    if (give_up(place)) return;
  }
  if (!next_handler) throw std::bad_alloc();
  next_handler();
}

}  // namespace

// Mapped, and not malloc's: the system can then give it to whichever arena asks. Its pages are never touched.
void keep() {
  [[maybe_unused]] static const bool installed = [] {
    next_handler = std::set_new_handler(&on_no_memory);
    return true;
  }();
  for (auto& place : pieces) {
    if (place.load(std::memory_order_relaxed)) continue;
    void* piece = mmap(nullptr, kPieceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (piece == MAP_FAILED) return;
    void* none = nullptr;
    if (!place.compare_exchange_strong(none, piece)) munmap(piece, kPieceBytes);
  }
}

void let_go() {
  for (auto& place : pieces) give_up(place);
}

}  // namespace chameleon::spare_memory
