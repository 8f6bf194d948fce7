#include "segments.h"

#include <c10/core/AllocatorConfig.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "fake.h"

namespace fake::c10_cuda {

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kUnit = 512, kSmall = kMiB, kSmallSegment = 2 * kMiB, kLargeSegment = 20 * kMiB;
constexpr size_t kMostPoisoned = 4096;

bool expandable() { return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments(); }

size_t up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

char* reserve_addresses(size_t bytes) {
  return static_cast<char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

}  // namespace

size_t segment_bytes(size_t bytes) {
  bytes = std::max(up(bytes, kUnit), kUnit);
  if (bytes <= kSmall) return kSmallSegment;
  if (bytes < kLargeSegment / 2) return kLargeSegment;
  return up(bytes, kSmallSegment);
}

void* Segments::allocate(size_t bytes, cudaStream_t stream) {
  bytes = std::max(up(bytes, kUnit), kUnit);
  ++requests;
  char* data = find(bytes, stream);
  const auto more = [&] { return expandable() ? expand(bytes, stream) : add_segment(bytes, stream); };
  if (!data && on_miss) {
    ++misses;
    on_miss();
    data = find(bytes, stream);
  }
  if (!data) data = more();
  if (!data) {
    release_cached();
    ++retries;
    data = more();
  }
  if (!data) return nullptr;
  Block& block = blocks_.at(data);
  const Segment& segment = segment_of(block);
  const size_t rest = block.bytes - bytes;
  if (segment.small || expandable() ? rest >= kUnit : rest > kSmall) {
    blocks_.emplace(data + bytes, Block{rest, block.segment, true});
    block.bytes = bytes;
  }
  block.free = false;
  allocated_bytes += block.bytes;
  return data;
}

bool Segments::owns(void* data) const {
  const auto found = blocks_.find(static_cast<char*>(data));
  return found != blocks_.end() && !found->second.free;
}

void Segments::free(void* data) {
  const auto block = blocks_.find(static_cast<char*>(data));
  allocated_bytes -= block->second.bytes;
  block->second.free = true;
  block->second.held = false;
  poison(block->first, std::min(block->second.bytes, kMostPoisoned));
  join(block);
}

bool Segments::joins(Blocks::iterator a, Blocks::iterator b) const {
  return b != blocks_.end() && a->second.free && b->second.free && a->second.segment == b->second.segment &&
         a->second.mapped == b->second.mapped;
}

Segments::Blocks::iterator Segments::join(Blocks::iterator block) {
  if (const auto next = std::next(block); joins(block, next)) {
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (block == blocks_.begin()) return block;
  const auto before = std::prev(block);
  if (!joins(before, block)) return block;
  before->second.bytes += block->second.bytes;
  blocks_.erase(block);
  return before;
}

Segments::Blocks::iterator Segments::next_in_segment(Blocks::iterator block) {
  const auto next = std::next(block);
  return next != blocks_.end() && next->second.segment == block->second.segment ? next : blocks_.end();
}

// The smallest that is large enough, and of those the first. Of blocks in expandable segments, the one that can grow
// least is preferred, as far as they follow each other by size.
char* Segments::find(size_t bytes, cudaStream_t stream) {
  std::vector<Blocks::iterator> fitting;
  for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
    const Block& block = it->second;
    if (!block.free || !block.mapped || block.bytes < bytes) continue;
    const Segment& segment = segment_of(block);
    if (segment.stream != stream || segment.small != (bytes <= kSmall)) continue;
    if (segment.expandable && !expandable()) continue;
    fitting.push_back(it);
  }
  if (fitting.empty()) return nullptr;
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const auto& a, const auto& b) { return a->second.bytes < b->second.bytes; });
  const auto grown = [&](Blocks::iterator block) {
    const auto next = next_in_segment(block);
    return block->second.bytes + (next != blocks_.end() && !next->second.mapped ? next->second.bytes : 0);
  };
  size_t best = 0;
  while (best + 1 < fitting.size() && segment_of(fitting[best]->second).expandable &&
         grown(fitting[best + 1]) < grown(fitting[best])) {
    ++best;
  }
  return fitting[best]->first;
}

// Under the fraction that the process may take, and of what other processes leave.
bool Segments::reserves(size_t bytes) const {
  const auto allowed = static_cast<size_t>(fraction * static_cast<double>(total_bytes));
  if (reserved_bytes + bytes > allowed || reserved_bytes + bytes + others_bytes > total_bytes) return false;
  const cudaError_t error = failing();  // cudaMalloc, which torch tries again, or raises
  if (error == cudaSuccess) return true;
  (void)cudaGetLastError();
  TORCH_CHECK(error == cudaErrorMemoryAllocation, "CUDA error: ", cudaGetErrorString(error));
  return false;
}

void Segments::reserve(size_t bytes) {
  reserved_bytes += bytes;
  peak_reserved_bytes = std::max(peak_reserved_bytes, reserved_bytes);
  ++device_allocs;
}

char* Segments::add_segment(size_t bytes, cudaStream_t stream) {
  const size_t taken = segment_bytes(bytes);
  if (!reserves(taken)) return nullptr;
  char* data = reserve_addresses(taken);
  segments_.emplace(data, Segment{taken, bytes <= kSmall, stream, false});
  blocks_.emplace(data, Block{taken, data, true});
  reserve(taken);
  return data;
}

// At the lowest address where free blocks and address space in a row are large enough. The limit is compared with the
// whole request, whatever of it is mapped already.
char* Segments::expand(size_t bytes, cudaStream_t stream) {
  if (!reserves(segment_bytes(bytes))) return nullptr;
  const bool small = bytes <= kSmall;
  auto block = blocks_.begin();
  for (; block != blocks_.end(); ++block) {
    const Segment& segment = segment_of(block->second);
    if (block->second.mapped || segment.stream != stream || segment.small != small) continue;
    auto first = block;
    if (block->first != block->second.segment && std::prev(block)->second.free) first = std::prev(block);
    size_t room = 0;
    for (auto at = first; at != blocks_.end() && at->second.free && room < bytes; at = next_in_segment(at)) {
      room += at->second.bytes;
    }
    if (room < bytes) continue;
    block = first;
    break;
  }
  if (block == blocks_.end()) {
    const size_t space = up(total_bytes + total_bytes / 8, kLargeSegment);
    char* data = reserve_addresses(space);
    segments_.emplace(data, Segment{space, small, stream, true});
    block = blocks_.emplace(data, Block{space, data, true, false, false}).first;
  }
  if (!block->second.mapped) block = map(block, std::min(block->second.bytes, bytes));
  while (block->second.bytes < bytes) {
    const auto next = std::next(block);
    block = map(next, std::min(next->second.bytes, bytes - block->second.bytes));
  }
  return block->first;
}

Segments::Blocks::iterator Segments::map(Blocks::iterator block, size_t bytes) {
  bytes = up(bytes, segment_of(block->second).page_bytes());
  if (bytes < block->second.bytes) {
    blocks_.emplace(block->first + bytes,
                    Block{block->second.bytes - bytes, block->second.segment, true, false, false});
    block->second.bytes = bytes;
  }
  block->second.mapped = true;
  reserve(bytes);
  return join(block);
}

// The whole pages of a free block. Returns whether there were any.
bool Segments::unmap_pages(Blocks::iterator block) {
  const Segment& segment = segment_of(block->second);
  const auto offset = static_cast<size_t>(block->first - block->second.segment);
  const size_t begin = up(offset, segment.page_bytes());
  const size_t end = (offset + block->second.bytes) / segment.page_bytes() * segment.page_bytes();
  if (begin >= end) return false;
  char* const data = block->second.segment + begin;
  if (const size_t after = offset + block->second.bytes - end) {
    blocks_.emplace(data + (end - begin), Block{after, block->second.segment, true});
  }
  block->second.bytes = begin - offset;
  const auto unmapped = blocks_.insert_or_assign(data, Block{end - begin, block->second.segment, true, false, false});
  madvise(data, end - begin, MADV_DONTNEED);
  reserved_bytes -= end - begin;
  ++device_frees;
  join(unmapped.first);
  return true;
}

void Segments::release_cached() {
  ++synchronizations;
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto block = blocks_.find(segment->first);
    if (segment->second.expandable) {
      std::vector<char*> spare;
      for (auto at = block; at != blocks_.end(); at = next_in_segment(at)) {
        if (at->second.free && at->second.mapped) spare.push_back(at->first);
      }
      for (char* data : spare) unmap_pages(blocks_.find(data));
    } else if (block->second.free && block->second.bytes == segment->second.bytes) {
      reserved_bytes -= segment->second.bytes;
      ++device_frees;
    } else {
      ++segment;
      continue;
    }
    const auto whole = blocks_.find(segment->first);
    if (whole->second.bytes == segment->second.bytes && whole->second.free) {
      blocks_.erase(whole);
      munmap(segment->first, segment->second.bytes);
      segment = segments_.erase(segment);
    } else {
      ++segment;
    }
  }
}

size_t Segments::held_segment_bytes() const {
  size_t bytes = 0;
  const char* counted_to = nullptr;  // pages and segments up to here are counted
  for (const auto& [data, block] : blocks_) {
    if (block.free || !block.held) continue;
    const Segment& segment = segment_of(block);
    const size_t unit = segment.expandable ? segment.page_bytes() : segment.bytes;
    const auto offset = static_cast<size_t>(data - block.segment);
    const char* begin = std::max<const char*>(block.segment + offset / unit * unit, counted_to);
    const char* end = block.segment + up(offset + block.bytes, unit);
    if (end <= begin) continue;
    bytes += static_cast<size_t>(end - begin);
    counted_to = end;
  }
  return bytes;
}

size_t Segments::split_bytes() const {
  size_t bytes = 0;
  for (const auto& [data, block] : blocks_) {
    const Segment& segment = segment_of(block);
    if (block.free && !segment.expandable && block.bytes != segment.bytes) bytes += block.bytes;
  }
  return bytes;
}

long Segments::split_blocks_of(bool small) const {
  long blocks = 0;
  for (const auto& [data, block] : blocks_) {
    const Segment& segment = segment_of(block);
    blocks += block.free && !segment.expandable && segment.small == small && block.bytes != segment.bytes;
  }
  return blocks;
}

size_t Segments::reserved_bytes_of(bool small) const {
  size_t bytes = 0;
  for (const auto& [data, block] : blocks_) {
    if (block.mapped && segment_of(block).small == small) bytes += block.bytes;
  }
  return bytes;
}

size_t Segments::allocated_bytes_of(bool small) const {
  size_t bytes = 0;
  for (const auto& [data, block] : blocks_) {
    if (!block.free && segment_of(block).small == small) bytes += block.bytes;
  }
  return bytes;
}

size_t Segments::largest_free_bytes() {
  size_t bytes = 0;
  for (const auto& [data, block] : blocks_) {
    if (!block.free || !block.mapped) continue;
    ++looked_at;
    bytes = std::max(bytes, block.bytes);
  }
  return bytes;
}

size_t Segments::expandable_bytes() const {
  size_t bytes = 0;
  for (const auto& [data, block] : blocks_) {
    if (block.mapped && segment_of(block).expandable) bytes += block.bytes;
  }
  return bytes;
}

}  // namespace fake::c10_cuda
