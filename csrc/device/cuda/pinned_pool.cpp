#include "device/cuda/pinned_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <vector>

namespace chameleon::cuda {

namespace {

constexpr size_t kAlignBytes = 4096;
constexpr size_t kSlabUnitBytes = 2 << 20;    // a huge page
constexpr size_t kLeastSlabBytes = 64 << 20;  // where nobody has said how much will be needed
constexpr size_t kMostGrowthBytes = 1 << 30;  // at a time

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void* PinnedPool::allocate(size_t bytes) {
  bytes = round_up(bytes, kAlignBytes);
  auto range = find_free(bytes);
  if (range == free_.by_address().end()) {
    if (bytes < unfit_bytes_ && !idle_.contains(bytes)) grow(bytes);
    if ((range = find_free(bytes)) == free_.by_address().end()) return allocate_pageable(bytes);
  }
  char* data = range->first + range->second - bytes;
  free_.take(range, data, bytes);
  return data;
}

PinnedPool::Ranges::Range PinnedPool::find_free(size_t bytes) const {
  const auto& by_size = free_.by_size();
  const auto smallest = by_size.lower_bound({bytes, nullptr});
  for (auto fit = smallest; fit != by_size.end(); ++fit) {
    if (place_of(fit->second + fit->first - bytes) >= planned_bytes_) return free_.by_address().find(fit->second);
  }
  return smallest == by_size.end() ? free_.by_address().end() : free_.by_address().find(smallest->second);
}

void* PinnedPool::allocate_at(size_t place, size_t bytes) {
  bytes = round_up(bytes, kAlignBytes);
  if (place % kAlignBytes != 0 || place > planned_bytes_ || bytes > planned_bytes_ - place) return nullptr;
  const auto behind = by_place_.upper_bound(place);
  if (behind == by_place_.begin()) return nullptr;
  const auto& [begins, slab] = *std::prev(behind);
  char* data = slab + (place - begins);
  auto range = free_.by_address().upper_bound(data);
  if (range == free_.by_address().begin()) return nullptr;
  --range;
  if (range->first + range->second < data + bytes) return nullptr;
  free_.take(range, data, bytes);
  return data;
}

void PinnedPool::free(void* data, size_t bytes) {
  bytes = round_up(bytes, kAlignBytes);
  if (auto found = pageable_.find(data); found != pageable_.end()) {
    try {
      idle_.emplace(found->second, static_cast<char*>(data));
    } catch (const std::bad_alloc&) {
      return;  // it counts as in use for good
    }
    pageable_bytes_ -= found->second;
    idle_bytes_ += found->second;
    pageable_.erase(found);
    return;
  }
  free_.add(static_cast<char*>(data), bytes);
}

std::map<char*, PinnedPool::Placed>::const_iterator PinnedPool::slab_of(const char* address) const {
  auto found = slabs_.upper_bound(const_cast<char*>(address));
  if (found == slabs_.begin()) return slabs_.end();
  --found;
  return address < found->first + found->second.slab.bytes ? found : slabs_.end();
}

size_t PinnedPool::place_of(const char* address) const {
  const auto slab = slab_of(address);
  return slab->second.place + static_cast<size_t>(address - slab->first);
}

size_t PinnedPool::in_one_slab(const void* data, size_t bytes) const {
  const auto* const address = static_cast<const char*>(data);
  const auto slab = slab_of(address);
  if (slab == slabs_.end()) return bytes;  // pageable
  return std::min(bytes, static_cast<size_t>(slab->first + slab->second.slab.bytes - address));
}

// ------------------------------------------------------------------------------------------------------------ growing

size_t PinnedPool::room_bytes() const {
  const size_t taken = reserved_bytes() + growing_bytes_;
  return limit_bytes_ > taken ? (limit_bytes_ - taken) / kAlignBytes * kAlignBytes : 0;
}

// What is there serves, whoever asked for it: only what is lacking is pinned beside it.
PinnedPool::Wanted PinnedPool::begin_growing(size_t bytes) {
  Wanted wanted;
  const size_t there = slab_bytes_ + growing_bytes_;
  if (bytes <= there || bytes >= refused_bytes_) return wanted;
  wanted.asked_bytes = std::min({round_up(bytes - there, kSlabUnitBytes), room_bytes(), Pinning::kMostPieceBytes});
  growing_bytes_ += wanted.asked_bytes;
  return wanted;
}

bool PinnedPool::lacks(size_t bytes) const {
  bytes = round_up(bytes, kAlignBytes);
  if (has_free(bytes) || idle_.contains(bytes)) return false;
  const size_t room = room_bytes();
  return bytes > room ? bytes <= room + idle_bytes_ : bytes < unfit_bytes_;
}

PinnedPool::Wanted PinnedPool::begin_growing_for(size_t bytes) {
  Wanted wanted;
  wanted.bytes = round_up(bytes, kAlignBytes);
  if (wanted.bytes > room_bytes()) {
    wanted.idle = take_idle(/*all=*/true);
  } else {
    wanted.asked_bytes = ahead_bytes(wanted.bytes);
  }
  growing_bytes_ += wanted.asked_bytes;
  return wanted;
}

void PinnedPool::end_growing(const Wanted& wanted, std::vector<Slab>& slabs) {
  growing_bytes_ -= wanted.asked_bytes;
  const bool refused = slabs.empty();
  for (size_t i = 0; i < slabs.size();) {
    const Slab slab = slabs[i];
    if (slab.bytes > room_bytes()) {  // another session has begun meanwhile, which may have less
      ++i;
    } else {
      slabs.erase(slabs.begin() + static_cast<std::ptrdiff_t>(i));
      add_slab(slab);
    }
  }
  if (wanted.bytes == 0) {
    if (refused) refused_bytes_ = slab_bytes_ + growing_bytes_ + 1;
  } else if (wanted.asked_bytes > 0 && !has_free(wanted.bytes)) {
    unfit_bytes_ = std::min(unfit_bytes_, wanted.bytes);
  }
}

void PinnedPool::set_limit(size_t bytes) {
  limit_bytes_ = bytes;
  forget_refusals();
}

// What the system has refused it may have now, and what was in use then says nothing of what will be.
void PinnedPool::forget_refusals() {
  refused_bytes_ = unfit_bytes_ = static_cast<size_t>(-1);
  most_pageable_bytes_ = pageable_bytes_;
}

void PinnedPool::place_plans(size_t bytes) {
  planned_bytes_ = std::min(std::max(planned_bytes_, round_up(bytes, kAlignBytes)), slab_bytes_);
}

// As much again as there is, within bounds: each time costs, and may hold the GPU.
size_t PinnedPool::ahead_bytes(size_t least) const {
  const size_t ahead = std::clamp(slab_bytes_, kLeastSlabBytes, kMostGrowthBytes);
  return std::min(round_up(std::max(least, ahead), kSlabUnitBytes), room_bytes());
}

void PinnedPool::grow(size_t bytes) {
  const size_t least = round_up(bytes, kAlignBytes);
  if (least > room_bytes()) return;
  const size_t most = ahead_bytes(least);
  if (!add_slabs(most) && most > least && !has_free(bytes)) add_slabs(std::min(least, room_bytes()));
}

bool PinnedPool::add_slabs(size_t bytes) {
  while (bytes > 0) {
    const Slab slab = pinning_.pin(bytes, way_);
    if (!slab.data) return false;
    add_slab(slab);
    bytes -= slab.bytes;
  }
  return true;
}

void PinnedPool::add_slab(const Slab& slab) {
  slabs_.emplace(slab.data, Placed{slab, slab_bytes_, pins_++});
  by_place_.emplace(slab_bytes_, slab.data);
  slab_bytes_ += slab.bytes;
  free_.add(slab.data, slab.bytes);
}

// Copies of such memory stop the host until they are over: the run goes on, slowly, and the session warns of it.
void* PinnedPool::allocate_pageable(size_t bytes) {
  void* data = nullptr;
  if (const auto idle = idle_.find(bytes); idle != idle_.end()) {
    data = idle->second;
    idle_.erase(idle);
    idle_bytes_ -= bytes;
  } else {
    if (bytes > room_bytes()) return nullptr;
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
  }
  pageable_.emplace(data, bytes);
  pageable_bytes_ += bytes;
  most_pageable_bytes_ = std::max(most_pageable_bytes_, pageable_bytes_);
  return data;
}

std::vector<Slab> PinnedPool::take_idle(bool all) {
  const size_t keep = all ? 0 : most_pageable_bytes_ - pageable_bytes_;
  std::vector<Slab> taken;
  taken.reserve(idle_.size());  // before anything is taken
  while (idle_bytes_ > keep) {
    const auto [bytes, data] = *idle_.begin();
    taken.push_back({data, bytes, Way::Pageable});
    idle_bytes_ -= bytes;
    idle_.erase(idle_.begin());
  }
  return taken;
}

std::vector<Slab> PinnedPool::take_unused() {
  std::vector<Slab> unused = take_idle(/*all=*/true);
  unused.reserve(unused.size() + slabs_.size());
  forget_refusals();
  for (auto found = slabs_.begin(); found != slabs_.end();) {
    const Slab slab = found->second.slab;
    auto range = free_.by_address().upper_bound(slab.data);
    if (range == free_.by_address().begin() || (--range)->first + range->second < slab.data + slab.bytes) {
      ++found;
      continue;
    }
    free_.take(range, slab.data, slab.bytes);
    slab_bytes_ -= slab.bytes;
    unused.push_back(slab);
    found = slabs_.erase(found);
  }
  number_places();
  return unused;
}

// In the order in which the slabs came.
void PinnedPool::number_places() {
  std::vector<Placed*> placed;
  for (auto& one : slabs_) placed.push_back(&one.second);
  std::sort(placed.begin(), placed.end(), [](const Placed* a, const Placed* b) { return a->number < b->number; });
  by_place_.clear();
  size_t place = 0;
  for (Placed* one : placed) {
    one->place = place;
    by_place_.emplace(place, one->slab.data);
    place += one->slab.bytes;
  }
  planned_bytes_ = std::min(planned_bytes_, slab_bytes_);
}

}  // namespace chameleon::cuda
