#include "host_target.h"

#include <algorithm>

namespace chameleon {

void HostTarget::set_capacity(size_t bytes) {
  capacity_bytes_ = bytes;
  memory_.set_host_capacity(bytes);
}

void* HostTarget::allocate(size_t bytes, int64_t place, bool planned, bool at_hand) {
  bytes = buffer_bytes(bytes);
  if (used_bytes_ + bytes > capacity_bytes_) return nullptr;
  const bool has_place = place >= 0 && memory_.places_plans();
  void* data = has_place ? memory_.allocate_host_at(static_cast<size_t>(place), bytes) : nullptr;
  const bool placed = data != nullptr;
  if (!placed) {
    if (at_hand && memory_.lacks_host(bytes)) return nullptr;
    data = memory_.allocate_host(bytes, capacity_bytes_ - used_bytes_ - bytes);
    if (!data) return nullptr;
  }
  if (planned && has_place) ++(placed ? placed_ : misplaced_);
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return data;
}

void HostTarget::free(void* data, size_t bytes) {
  bytes = buffer_bytes(bytes);
  used_bytes_ -= bytes;
  memory_.free_host(data, bytes);
}

}  // namespace chameleon
