// The host's memory as the place for storages that are away: its capacity, and what is in use of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "device/copies.h"
#include "device/host_memory.h"
#include "swap_target.h"

namespace chameleon {

class HostTarget final : public SwapTarget {
 public:
  HostTarget(HostMemory& memory, Copies& copies) : memory_(memory), copies_(copies) {}

  void* allocate(size_t bytes, int64_t place, bool planned, bool at_hand) override;
  void free(void* data, size_t bytes) override;
  size_t buffer_bytes(size_t bytes) const override { return memory_.buffer_bytes(bytes); }
  bool lacks(size_t bytes) const override { return allows(bytes, 0) && memory_.lacks_host(buffer_bytes(bytes)); }
  bool allows(size_t bytes, size_t freed_bytes) const override {
    return used_bytes_ - freed_bytes + buffer_bytes(bytes) <= capacity_bytes_;
  }
  void set_capacity(size_t bytes) override;

  EventPtr copy_out(void* to, const void* block, size_t bytes, EventPtr after) override {
    return copies_.copy_out(to, block, bytes, std::move(after));
  }
  EventPtr copy_in(void* block, const void* from, size_t bytes, EventPtr after, bool urgent) override {
    return copies_.copy_in(block, from, bytes, std::move(after), urgent);
  }
  bool read_now(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return true;
  }
  std::pair<double, double> measure_bandwidth() override { return copies_.measure_link(); }

  size_t used_bytes() const override { return used_bytes_; }
  size_t reserved_bytes() const override { return memory_.reserved_host_bytes(); }
  size_t peak_bytes() const override { return peak_bytes_; }
  int64_t placed() const { return placed_; }        // planned buffers that were given their place
  int64_t misplaced() const { return misplaced_; }  // and those that were not
  void reset_peak() override {
    peak_bytes_ = used_bytes_;
    placed_ = misplaced_ = 0;
  }

 private:
  HostMemory& memory_;
  Copies& copies_;
  size_t capacity_bytes_ = SIZE_MAX;
  size_t used_bytes_ = 0;
  size_t peak_bytes_ = 0;
  int64_t placed_ = 0;
  int64_t misplaced_ = 0;
};

}  // namespace chameleon
