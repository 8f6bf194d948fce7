#include "device/cpu/block_pool.h"

#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <vector>

namespace chameleon::cpu {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kSmallBytes = 512;
constexpr size_t kSlackBytes = 1 << 20;
constexpr size_t kLeastArenaBytes = 64 << 20;  // of address space: it costs nothing
constexpr size_t kLotBytes = 256 << 10;        // see Note [Warm and cold stretches]

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

char* map(size_t bytes, void* at = nullptr) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
  void* mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
}

// In one call: to fault in page by page takes twice as long. Where that fails, the pages come when they are touched.
void warm_up([[maybe_unused]] char* at, [[maybe_unused]] size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  madvise(at, bytes, MADV_POPULATE_WRITE);
#endif
}

void cool_down(char* at, size_t bytes) {
  if (madvise(at, bytes, MADV_DONTNEED) != 0) map(bytes, at);  // pages locked in memory refuse
}

}  // namespace

void* BlockPool::MappedChunks::do_allocate(size_t bytes, size_t) {
  void* chunk = map(round_up(bytes, kPageBytes));
  if (!chunk) throw std::bad_alloc();
  return chunk;
}

void BlockPool::MappedChunks::do_deallocate(void* chunk, size_t bytes, size_t) {
  munmap(chunk, round_up(bytes, kPageBytes));
}

size_t BlockPool::block_bytes(size_t bytes) { return round_up(bytes, bytes >= kLargeBytes ? kPageBytes : kSmallBytes); }

void* BlockPool::allocate(size_t block_bytes) {
  if (!has_room(block_bytes)) return nullptr;
  void* block;
  if (block_bytes < kLargeBytes) {
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

// Without a limit, keep little more than the most that was ever resident at once: some, since blocks that do not fit
// into what is free would give pages back and take others in every step.
size_t BlockPool::budget(size_t block_bytes) const {
  return std::min(capacity_bytes_, std::max(peak_resident_bytes_, resident_bytes_ + block_bytes) + kSlackBytes);
}

char* BlockPool::take_large(size_t block_bytes) {
  const auto fit = warm_by_size_.lower_bound({block_bytes, nullptr});
  char* at = fit != warm_by_size_.end() ? fit->second : best_place(block_bytes);
  if (!at) at = add_arena(block_bytes);
  occupy(at, block_bytes);
  arena_of(at).used_bytes += block_bytes;
  return at;
}

// The place of which most is warm; of such places that in the smallest room. Windows that begin or end where a warm
// stretch does are enough to look at.
char* BlockPool::best_place(size_t block_bytes) const {
  char* best = nullptr;
  size_t best_warm_bytes = 0, best_room_bytes = 0;
  for (Position first = free_.begin(), end; first != free_.end(); first = end) {
    size_t room_bytes = 0;
    end = end_of_room(first, &room_bytes);
    if (room_bytes < block_bytes) continue;
    char* const begin = first->first;
    char* const last = begin + (room_bytes - block_bytes);
    const auto consider = [&](char* at) {
      const size_t warm = warm_bytes(at, block_bytes);
      if (best && (warm < best_warm_bytes || (warm == best_warm_bytes && room_bytes >= best_room_bytes))) return;
      best = at;
      best_warm_bytes = warm;
      best_room_bytes = room_bytes;
    };
    consider(begin);
    for (Position it = first; it != end; ++it) {
      if (!it->second.warm) continue;
      consider(std::min(it->first, last));
      const size_t stop = it->first + it->second.bytes - begin;
      if (stop > block_bytes) consider(begin + (stop - block_bytes));
    }
  }
  return best;
}

// A room is a row of free stretches, side by side in an arena.
BlockPool::Position BlockPool::end_of_room(Position first, size_t* room_bytes) const {
  Position it = first;
  char* end = first->first;
  do {
    end += it->second.bytes;
    ++it;
  } while (it != free_.end() && it->first == end && !arenas_.contains(end));
  *room_bytes = end - first->first;
  return it;
}

size_t BlockPool::warm_bytes(char* at, size_t bytes) const {
  char* const end = at + bytes;
  size_t warm = 0;
  for (Position it = std::prev(free_.upper_bound(at)); it != free_.end() && it->first < end; ++it) {
    if (it->second.warm) warm += std::min(it->first + it->second.bytes, end) - std::max(it->first, at);
  }
  return warm;
}

void BlockPool::occupy(char* at, size_t bytes) {
  char* const end = at + bytes;
  std::vector<std::pair<char*, size_t>> cold;  // without what still has its pages
  for (Position it = std::prev(free_.upper_bound(at)); it != free_.end() && it->first < end; ++it) {
    char* const begin = std::max(it->first, at);
    if (!it->second.warm) keep_pages(begin, std::min(it->first + it->second.bytes, end), cold);
  }
  for (char* begin = at; begin < end;) {
    const Position it = std::prev(free_.upper_bound(begin));
    char* const first = it->first;
    char* const last = first + it->second.bytes;
    const bool warm = it->second.warm;
    erase(it);
    if (first < at) put(first, at - first, warm);
    if (last > end) put(end, last - end, warm);
    begin = last;
  }
  trim(budget(bytes) - resident_bytes_ - bytes);
  if (cold.empty()) return;
  give_back();                              // before others come
  if (capacity_bytes_ == SIZE_MAX) return;  // nobody says that there is memory for all of it
  for (const auto& [begin, part] : cold) warm_up(begin, part);
}

void BlockPool::put(char* at, size_t bytes, bool warm) {
  auto it = free_.lower_bound(at);
  if (it != free_.end() && it->first == at + bytes && it->second.warm == warm && !arenas_.contains(it->first)) {
    bytes += it->second.bytes;
    erase(it);
    it = free_.lower_bound(at);
  }
  if (it != free_.begin() && !arenas_.contains(at)) {
    --it;
    if (it->first + it->second.bytes == at && it->second.warm == warm) {
      at = it->first;
      bytes += it->second.bytes;
      erase(it);
    }
  }
  free_.emplace(at, Stretch{bytes, warm});
  if (!warm) return;
  warm_by_size_.insert({bytes, at});
  cached_bytes_ += bytes;
}

void BlockPool::erase(Position stretch) {
  if (stretch->second.warm) {
    warm_by_size_.erase({stretch->second.bytes, stretch->first});
    cached_bytes_ -= stretch->second.bytes;
  }
  free_.erase(stretch);
}

// Twice as large as any before, where there is address space to spare.
char* BlockPool::add_arena(size_t block_bytes) {
  if (block_bytes > SIZE_MAX / 4) throw std::bad_alloc();
  size_t bytes = std::max(kLeastArenaBytes, 2 * block_bytes);
  for (const auto& [_, arena] : arenas_) bytes = std::max(bytes, 2 * arena.bytes);
  char* at = map(bytes);
  if (!at) {
    drop_empty_arenas();
    at = map(bytes = block_bytes);
  }
  if (!at) throw std::bad_alloc();
  madvise(at, bytes, MADV_NOHUGEPAGE);  // those would warm up what is not asked for
  try {
    arenas_.emplace(at, Arena{bytes, 0});
    put(at, bytes, false);
  } catch (const std::bad_alloc&) {
    arenas_.erase(at);
    munmap(at, bytes);
    throw;
  }
  return at;
}

void BlockPool::free(void* block, size_t block_bytes) {
  resident_bytes_ -= block_bytes;
  if (block_bytes < kLargeBytes) {
    c10::free_cpu(block);
    return;
  }
  char* const at = static_cast<char*>(block);
  arena_of(at).used_bytes -= block_bytes;
  put(at, block_bytes, true);
  if (!keep_) {
    give_up();
  } else if (resident_bytes_ + cached_bytes_ > capacity_bytes_) {
    trim(capacity_bytes_ > resident_bytes_ ? capacity_bytes_ - resident_bytes_ : 0);
  }
}

// The smallest first: they serve the fewest blocks.
void BlockPool::trim(size_t keep_bytes) {
  while (cached_bytes_ > keep_bytes) {
    const Position smallest = free_.find(warm_by_size_.begin()->second);
    const auto [at, stretch] = *smallest;
    const size_t needless_bytes = std::min(stretch.bytes, round_up(cached_bytes_ - keep_bytes, kPageBytes));
    const size_t rest_bytes = stretch.bytes - needless_bytes;
    erase(smallest);
    give_back_later(at + rest_bytes, needless_bytes);
    put(at + rest_bytes, needless_bytes, false);
    if (rest_bytes > 0) put(at, rest_bytes, true);
  }
}

void BlockPool::give_back_later(char* at, size_t bytes) {
  pending_bytes_ += bytes;
  auto next = pending_.lower_bound(at);
  if (next != pending_.end() && next->first == at + bytes) {
    bytes += next->second;
    next = pending_.erase(next);
  }
  if (next != pending_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == at) {
      before->second += bytes;
      bytes = 0;
    }
  }
  if (bytes > 0) note_pending(at, bytes);
  if (pending_bytes_ > kLotBytes) give_back();
}

void BlockPool::note_pending(char* at, size_t bytes) {
  try {
    pending_.emplace(at, bytes);
  } catch (const std::bad_alloc&) {  // no memory for the books: at once, then
    pending_bytes_ -= bytes;
    cool_down(at, bytes);
  }
}

void BlockPool::give_back() {
  for (const auto& [at, bytes] : pending_) cool_down(at, bytes);
  pending_.clear();
  pending_bytes_ = 0;
}

void BlockPool::keep_pages(char* begin, char* end, std::vector<std::pair<char*, size_t>>& cold) {
  auto it = pending_.upper_bound(begin);
  if (it != pending_.begin() && std::prev(it)->first + std::prev(it)->second > begin) --it;
  while (it != pending_.end() && it->first < end) {
    char* const first = it->first;
    char* const last = first + it->second;
    it = pending_.erase(it);
    pending_bytes_ -= last - first;
    if (first > begin) cold.emplace_back(begin, first - begin);
    if (first < begin) {
      pending_bytes_ += begin - first;
      note_pending(first, begin - first);
    }
    if (last > end) {
      pending_bytes_ += last - end;
      note_pending(end, last - end);
    }
    begin = std::min(last, end);
  }
  if (begin < end) cold.emplace_back(begin, end - begin);
}

void BlockPool::give_up() {
  trim(0);
  drop_empty_arenas();
}

void BlockPool::drop_empty_arenas() {
  give_back();  // nothing of an arena that goes may be noted
  for (auto arena = arenas_.begin(); arena != arenas_.end();) {
    const auto [at, books] = *arena;
    if (books.used_bytes > 0) {
      ++arena;
      continue;
    }
    for (Position it = free_.lower_bound(at); it != free_.end() && it->first < at + books.bytes;) erase(it++);
    munmap(at, books.bytes);
    arena = arenas_.erase(arena);
  }
}

void BlockPool::set_capacity(size_t capacity_bytes) {
  capacity_bytes_ = capacity_bytes;
  trim(capacity_bytes > resident_bytes_ ? std::min(cached_bytes_, capacity_bytes - resident_bytes_) : 0);
  give_back();
}

void BlockPool::keep_free_blocks(bool keep) {
  keep_ = keep;
  if (!keep) give_up();
}

MemoryInfo BlockPool::info() const {
  return {capacity_bytes_, resident_bytes_, cached_bytes_, peak_resident_bytes_, peak_reserved_bytes_};
}

void BlockPool::reset_peaks() {
  peak_resident_bytes_ = resident_bytes_;
  peak_reserved_bytes_ = resident_bytes_ + cached_bytes_;
}

}  // namespace chameleon::cpu
