#include "device/cpu/block_pool.h"

#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace chameleon::cpu {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kSmallBytes = 512;
constexpr size_t kMostPieces = 16;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

char* map(size_t bytes, int protection = PROT_READ | PROT_WRITE, void* at = nullptr) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
  void* block = mmap(at, bytes, protection, flags, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(block);
}

}  // namespace

void* BlockPool::MappedChunks::do_allocate(size_t bytes, size_t) { return map(round_up(bytes, kPageBytes)); }

void BlockPool::MappedChunks::do_deallocate(void* chunk, size_t bytes, size_t) {
  munmap(chunk, round_up(bytes, kPageBytes));
}

size_t BlockPool::block_bytes(size_t bytes) { return round_up(bytes, bytes >= kMapBytes ? kPageBytes : kSmallBytes); }

void* BlockPool::allocate(size_t block_bytes) {
  if (!has_room(block_bytes)) return nullptr;
  void* block;
  if (block_bytes < kMapBytes) {
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

// Without a limit, keep no more than the most that was ever resident at once.
size_t BlockPool::budget(size_t block_bytes) const {
  return std::min(capacity_bytes_, std::max(peak_resident_bytes_, resident_bytes_ + block_bytes));
}

char* BlockPool::take_large(size_t block_bytes) {
  const auto fit = by_size_.lower_bound({block_bytes, nullptr});
  if (fit != by_size_.end()) {
    Block block = pop(fit->first, fit->second);
    if (block.bytes > block_bytes) insert(cut(&block, block_bytes));
    return hold(std::move(block));
  }
  if (resident_bytes_ + cached_bytes_ + block_bytes <= budget(block_bytes)) {
    return hold({map(block_bytes), block_bytes, Pieces({{block_bytes, ++mappings_}}, &nodes_)});
  }
  return assemble(block_bytes);
}

// No free block is large enough: move free ones together, the largest first, and add new pages for what is missing.
char* BlockPool::assemble(size_t block_bytes) {
  Block block{map(block_bytes, PROT_NONE), block_bytes, Pieces(&nodes_)};
  size_t filled = 0;
  while (filled < block_bytes && !by_size_.empty()) {
    const auto largest = std::prev(by_size_.end());
    Block donor = pop(largest->first, largest->second);
    if (donor.bytes > block_bytes - filled) insert(cut(&donor, block_bytes - filled));
    if (block.pieces.size() + donor.pieces.size() > kMostPieces) {
      insert(std::move(donor));
      break;
    }
    const size_t donor_bytes = donor.bytes;
    move_to(block.address + filled, std::move(donor), &block.pieces);
    filled += donor_bytes;
  }
  if (filled < block_bytes) {
    trim(budget(block_bytes) - resident_bytes_ - block_bytes);
    map(block_bytes - filled, PROT_READ | PROT_WRITE, block.address + filled);
    block.pieces.push_back({block_bytes - filled, ++mappings_});
  }
  return hold(std::move(block));
}

void BlockPool::move_to(char* to, Block block, Pieces* pieces) {
  char* from = block.address;
  for (const Piece& piece : block.pieces) {
    if (mremap(from, piece.bytes, piece.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
      map(piece.bytes, PROT_READ | PROT_WRITE, to);  // too many mappings: start anew with these pages
      munmap(from, piece.bytes);
    }
    pieces->push_back({piece.bytes, ++mappings_});
    from += piece.bytes;
    to += piece.bytes;
  }
}

BlockPool::Block BlockPool::cut(Block* block, size_t front_bytes) {
  const auto nodes = block->pieces.get_allocator();
  Block rest{block->address + front_bytes, block->bytes - front_bytes, Pieces(nodes)};
  Pieces front(nodes);
  size_t offset = 0;
  for (const Piece& piece : block->pieces) {
    const size_t before = offset < front_bytes ? std::min(piece.bytes, front_bytes - offset) : 0;
    if (before > 0) front.push_back({before, piece.mapping});
    if (piece.bytes > before) rest.pieces.push_back({piece.bytes - before, piece.mapping});
    offset += piece.bytes;
  }
  block->bytes = front_bytes;
  block->pieces = std::move(front);
  return rest;
}

char* BlockPool::hold(Block block) {
  pieces_[block.address] = std::move(block.pieces);
  return block.address;
}

BlockPool::Block BlockPool::pop(size_t bytes, char* address) {
  const auto entry = by_address_.find(address);
  Block block = std::move(entry->second);
  by_address_.erase(entry);
  by_size_.erase({bytes, address});
  cached_bytes_ -= bytes;
  return block;
}

void BlockPool::put(Block block) {
  const auto append = [](Block* front, Block back) {
    for (const Piece& piece : back.pieces) {
      if (front->pieces.back().mapping == piece.mapping) {
        front->pieces.back().bytes += piece.bytes;
      } else {
        front->pieces.push_back(piece);
      }
    }
    front->bytes += back.bytes;
  };
  const auto after = by_address_.find(block.address + block.bytes);
  if (after != by_address_.end()) append(&block, pop(after->second.bytes, after->first));
  auto before = by_address_.lower_bound(block.address);
  if (before != by_address_.begin() && (--before)->first + before->second.bytes == block.address) {
    Block front = pop(before->second.bytes, before->first);
    append(&front, std::move(block));
    block = std::move(front);
  }
  insert(std::move(block));
}

void BlockPool::insert(Block block) {
  cached_bytes_ += block.bytes;
  by_size_.insert({block.bytes, block.address});
  by_address_.emplace(block.address, std::move(block));
}

void BlockPool::free(void* block, size_t block_bytes) {
  resident_bytes_ -= block_bytes;
  if (block_bytes < kMapBytes) {
    c10::free_cpu(block);
    return;
  }
  const auto held = pieces_.find(block);
  Pieces pieces = std::move(held->second);
  pieces_.erase(held);
  put({static_cast<char*>(block), block_bytes, std::move(pieces)});
  if (!keep_) {
    trim(0);
  } else if (resident_bytes_ + cached_bytes_ > capacity_bytes_) {
    trim(capacity_bytes_ > resident_bytes_ ? capacity_bytes_ - resident_bytes_ : 0);
  }
}

void BlockPool::trim(size_t keep_bytes) {
  while (cached_bytes_ > keep_bytes) {
    const auto smallest = by_size_.begin();
    Block block = pop(smallest->first, smallest->second);
    const size_t needless_bytes = round_up(cached_bytes_ + block.bytes - keep_bytes, kPageBytes);
    if (block.bytes > needless_bytes) {
      const Block back = cut(&block, block.bytes - needless_bytes);
      munmap(back.address, back.bytes);
      insert(std::move(block));
    } else {
      munmap(block.address, block.bytes);
    }
  }
}

void BlockPool::set_capacity(size_t capacity_bytes) {
  capacity_bytes_ = capacity_bytes;
  trim(capacity_bytes > resident_bytes_ ? std::min(cached_bytes_, capacity_bytes - resident_bytes_) : 0);
}

void BlockPool::keep_free_blocks(bool keep) {
  keep_ = keep;
  if (!keep) trim(0);
}

MemoryInfo BlockPool::info() const {
  return {capacity_bytes_, resident_bytes_, cached_bytes_, peak_resident_bytes_, peak_reserved_bytes_};
}

void BlockPool::reset_peaks() {
  peak_resident_bytes_ = resident_bytes_;
  peak_reserved_bytes_ = resident_bytes_ + cached_bytes_;
}

}  // namespace chameleon::cpu
