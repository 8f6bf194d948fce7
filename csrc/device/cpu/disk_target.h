// The embedded device's blocks on a disk, with no copy of them in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "device/cpu/disk_engine.h"
#include "disk_target.h"

namespace chameleon::cpu {

// Its buffers are places in the file: the pointers that stand for them are not to be read.
class CpuDiskTarget final : public DiskTarget {
 public:
  explicit CpuDiskTarget(const DiskOptions& options) : capacity_bytes_(options.capacity_bytes), file_(options) {}

  void* allocate(size_t bytes, int64_t place, bool planned, bool at_hand) override;
  void free(void* data, size_t bytes) override;
  size_t buffer_bytes(size_t bytes) const override { return DiskFile::place_bytes(std::max<size_t>(bytes, 1)); }
  bool lacks(size_t) const override { return false; }
  bool allows(size_t bytes, size_t freed_bytes) const override {
    return used_bytes_ - freed_bytes + buffer_bytes(bytes) <= capacity_bytes_;
  }
  void set_capacity(size_t bytes) override { file_.set_capacity(capacity_bytes_ = bytes); }
  std::string refusal() const override { return file_.refusal(); }

  size_t used_bytes() const override { return used_bytes_; }
  size_t peak_bytes() const override { return peak_bytes_; }
  size_t reserved_bytes() const override { return static_cast<size_t>(file_.counters().file_bytes); }
  void reset_peak() override { peak_bytes_ = used_bytes_; }

  EventPtr copy_out(void* to, const void* block, size_t bytes, EventPtr after) override;
  EventPtr copy_in(void* block, const void* from, size_t bytes, EventPtr after, bool urgent) override;
  bool read_now(void* to, const void* from, size_t bytes) override;
  std::pair<double, double> measure_bandwidth() override;

  DiskCounters counters() const override { return file_.counters(); }
  void set_link(double out_bytes_per_s, double in_bytes_per_s) override;
  void drain() override;
  void before_fork() override;
  void after_fork_in_parent() override { file_.after_fork_in_parent(); }
  void after_fork_in_child() override;

 private:
  size_t capacity_bytes_;
  size_t used_bytes_ = 0;
  size_t peak_bytes_ = 0;
  DiskFile file_;
  DiskEngine out_{file_, Direction::Out};
  DiskEngine in_{file_, Direction::In};
};

}  // namespace chameleon::cpu
