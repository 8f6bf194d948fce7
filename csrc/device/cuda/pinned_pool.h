// Host memory that the GPU's copy engines reach by themselves, in slabs of our own.
#pragma once

#include <cstddef>
#include <map>
#include <unordered_map>
#include <vector>

#include "device/cuda/pinning.h"
#include "device/host_memory.h"
#include "free_ranges.h"

namespace chameleon::cuda {

// Pinning is slow, so it is done once, for as much as a plan needs, and buffers are cut from that. The slabs in a row,
// in the order in which they came, are the places that a plan has for its buffers: those that a run without a plan has
// taken serve the plan too, and only what they lack is pinned beside them. So the pool is never larger than the largest
// of what plans have asked for and what was in use at once, but for the share by which it grows ahead
// (kMostGrowthBytes).
//
// Whatever has no place gets the end of the smallest free range that is large enough, behind the places of plans if
// there is one. Ranges are joined again when they are freed, over the ends of slabs too where those meet. A place that
// is taken (by a storage that stayed away while plans changed, say), or does not lie in one piece, is no error: that
// buffer lies elsewhere.
//
// A buffer may be handed out again while the GPU still copies from or to it: the order of the copies keeps that right,
// see Note [Order on a GPU]. So pageable ones are kept for reuse too, until the GPU is known to be done with them.
class PinnedPool {
 public:
  void* allocate(size_t bytes);  // nullptr where the limit, or the system, has no room
  void free(void* data, size_t bytes);
  bool is_pageable(void* data) const { return pageable_.contains(data); }
  void* allocate_at(size_t place, size_t bytes);  // nullptr where any of it is taken, or is no place of plans
  // How many of the bytes lie in the slab of the first one: a copy must not reach over its end.
  size_t in_one_slab(const void* data, size_t bytes) const;

  // What has to be pinned is counted against the limit from its beginning on. Slabs of so many bytes are then had
  // without any lock, and added at its end, or it is given up.
  struct Wanted {
    size_t bytes = 0;  // of the buffer that it is for; 0: of none
    size_t asked_bytes = 0;
    std::vector<Slab> idle;  // to be given back first, to make room
  };
  Wanted begin_growing(
      size_t bytes);  // so many in all, a piece at a time; asked_bytes 0: it is there, or not to be had
  // For one buffer, and ahead of need, where none of its size is free and the system has not refused it: lacks().
  bool lacks(size_t bytes) const;
  Wanted begin_growing_for(size_t bytes);
  void end_growing(const Wanted& wanted, std::vector<Slab>& slabs);  // leaves those that there is no room for any more
  void give_up_growing(const Wanted& wanted) { growing_bytes_ -= wanted.asked_bytes; }
  void place_plans(size_t bytes);  // the first so many bytes, as far as they are there, are places of plans

  void set_limit(size_t bytes);
  void set_way(Way way) { way_ = way; }
  std::vector<Slab> take_unused();         // for unpin(), once the GPU is done with it
  std::vector<Slab> take_idle(bool all);   // the same of pageable ones alone, or of those beyond the most ever in use
  Pinning& pinning() { return pinning_; }  // any thread may call it, without a lock
  Way way() const { return way_; }

  size_t reserved_bytes() const { return slab_bytes_ + pageable_bytes(); }
  size_t pageable_bytes() const { return pageable_bytes_ + idle_bytes_; }
  size_t planned_bytes() const { return planned_bytes_; }
  HostMemory::Pinned pinned() const { return {slab_bytes_, pins_, pinning_.spent().both_s()}; }

 private:
  using Ranges = FreeRanges<char*>;
  struct Placed {
    Slab slab;
    size_t place;
    size_t number;
  };

  void grow(size_t bytes);
  size_t room_bytes() const;
  bool add_slabs(size_t bytes);  // false where the system does not give all of it
  void add_slab(const Slab& slab);
  void number_places();
  void forget_refusals();
  std::map<char*, Placed>::const_iterator slab_of(const char* address) const;
  size_t place_of(const char* address) const;
  Ranges::Range find_free(size_t bytes) const;
  bool has_free(size_t bytes) const { return find_free(bytes) != free_.by_address().end(); }
  size_t ahead_bytes(size_t least) const;
  void* allocate_pageable(size_t bytes);

  Pinning pinning_;
  Way way_ = Way::Register;
  std::map<char*, Placed> slabs_;
  std::map<size_t, char*> by_place_;
  Ranges free_;
  std::unordered_map<void*, size_t> pageable_;
  std::multimap<size_t, char*> idle_;               // pageable, by size
  size_t planned_bytes_ = 0;                        // places of plans
  size_t refused_bytes_ = static_cast<size_t>(-1);  // so many in all were asked for, and not to be had
  size_t unfit_bytes_ = static_cast<size_t>(-1);    // for a buffer of so many, growing did not help
  size_t limit_bytes_ = static_cast<size_t>(-1);
  size_t slab_bytes_ = 0;
  size_t growing_bytes_ = 0;
  size_t pageable_bytes_ = 0;  // in use
  size_t most_pageable_bytes_ = 0;
  size_t idle_bytes_ = 0;
  size_t pins_ = 0;  // slabs that were pinned so far
};

}  // namespace chameleon::cuda
