// The embedded device: host memory with a hard capacity, and a copy engine each way over a link of given bandwidth.
#pragma once

#include <memory>
#include <utility>

#include "device/cpu/block_pool.h"
#include "device/cpu/buffer_cache.h"
#include "device/cpu/copy_engine.h"
#include "device/cpu/disk_target.h"
#include "device/device.h"

namespace chameleon::cpu {

// The calling thread is the compute stream: what it waits for, compute waits for.
class CpuDevice final : public Device {
 public:
  size_t block_bytes(size_t bytes) const override { return BlockPool::block_bytes(bytes); }
  void* allocate(size_t block_bytes, int, Effort) override;
  void free(void* block, size_t block_bytes) override;
  void set_capacity(size_t capacity_bytes) override { pool_.set_capacity(capacity_bytes); }
  bool has_room(size_t block_bytes) const override { return pool_.has_room(block_bytes); }
  size_t total_bytes() const override { return SIZE_MAX; }
  size_t resident_bytes() const override { return pool_.resident_bytes(); }
  MemoryInfo memory_info() const override { return pool_.info(); }
  void reset_peaks() override { pool_.reset_peaks(); }
  void keep_free_blocks(bool keep) override { pool_.keep_free_blocks(keep); }

  EventPtr copy_out(void* host, const void* block, size_t bytes, EventPtr after) override;
  EventPtr copy_in(void* block, const void* host, size_t bytes, EventPtr after, bool urgent = false) override;
  void set_link(double out_bytes_per_s, double in_bytes_per_s) override;

  std::pair<double, double> measure_link() override;

  int lane() override { return 0; }
  EventPtr record(Lanes) override { return nullptr; }
  EventPtr compute_wait(const EventPtr& copy, int) override;
  void join(int, Lanes, Order) override {}
  void host_wait(const EventPtr& event, Order why) override;
  void drain() override;

  c10::Device torch_device() const override { return c10::DeviceType::CPU; }
  void install_allocator() override;
  c10::DeleterFnPtr block_deleter() const override;
  c10::DeleterFnPtr plain_deleter() const override;
  c10::DataPtr allocate_plain(size_t bytes) override;

  size_t buffer_bytes(size_t bytes) const override { return buffers_.buffer_bytes(bytes); }
  void* allocate_host(size_t bytes, size_t most_kept_bytes = SIZE_MAX) override {
    return buffers_.allocate(bytes, most_kept_bytes);
  }
  void free_host(void* data, size_t bytes) override { buffers_.free(data, bytes); }
  void release_kept_host() override { buffers_.release_beyond(0); }
  size_t reserved_host_bytes() const override { return buffers_.reserved_bytes(); }
  void set_host_capacity(size_t bytes) override { buffers_.begin_session(bytes); }
  void copy_now(void* block, const void* source, size_t bytes) override;
  std::unique_ptr<DiskTarget> open_disk(const DiskOptions& options) override {
    return std::make_unique<CpuDiskTarget>(options);
  }
  void after_fork_in_child() override;

 private:
  BlockPool pool_;
  BufferCache buffers_;
  CopyEngine out_;
  CopyEngine in_;
};

}  // namespace chameleon::cpu
