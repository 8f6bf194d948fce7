// A GPU: torch's own caching allocator under a capacity, and a stream of copies each way.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/events.h"
#include "device/cuda/health.h"
#include "device/cuda/pinned_pool.h"
#include "device/cuda/torch_side.h"
#include "device/device.h"

namespace chameleon::cuda {

// Note [Asking torch's allocator]
// Where torch's allocator has no room it gives all that it keeps for reuse back to the GPU, which waits for the GPU's
// work, and then says so by an error that counts in the user's statistics. So near the limit it is looked at first what
// would come of asking (torch_side::outlook), and nobody asks
// - for what is known not to be there, but as the last resort;
// - for a copy in ahead of its use where that would give back what is kept: it waits until a block of its size is free;
// - a second time for what was refused, before anything has been freed.

// Note [Order on a GPU]
// The host runs ahead: what it calls is given to streams, and happens later. A lane is a stream that ops have been
// given to. Streams of our own carry the copies: one out, one in, and one for copies in that an op waits for already.
// What keeps them right (each wait by its purpose: order.h; deaths: swapper.h):
//
// - A copy out comes after all lanes that used the storage since it came (record() of those lanes).
// - The block goes back to torch's allocator in the program order of the lane that it belongs to, once that lane is
//   behind the copy, and behind the lanes that read the storage (compute_wait(), join()). So it may be reused at once,
//   and no record_stream is needed.
// - A block for a swap-in is taken from the lane that had it before, and the copy comes after what that lane has been
//   given so far: whoever used that memory before.
// - What an op waits for must not queue behind swap-ins ahead of their uses. The host runs ahead, so it could hold
// those
//   back only by waiting itself; on a stream of its own the copy comes after at most the one that the copy engine is
//   at. (Priorities of streams do not count for copies.) Nothing orders the two streams of copies in among each other:
//   each copy comes after whoever had its block before (Order::CopyIn), and that was a copy in only if a lane is behind
//   it.
// - Compute that uses the storage comes after the copy in. The lane that uses it waits for it, on the GPU. Other lanes
//   do so as soon as they are given anything (lane()): there is no telling which of them will use it.
// - A host buffer is freed when the copy out of it is given up, or when a lane waits for the copy in from it. A later
//   copy out to the same memory comes after that: copies out are in order, and come after a moment of some lane, which
//   by then waits for all copies in, of both streams, that any lane waited for.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {}

  size_t block_bytes(size_t bytes) const override;
  void* allocate(size_t block_bytes, int lane, Effort effort) override;
  void free(void* block, size_t block_bytes) override;
  void free_behind(void* block, size_t block_bytes, int lane) override;
  bool has_room(size_t block_bytes) const override;
  void set_capacity(size_t capacity_bytes) override;
  size_t total_bytes() const override;
  size_t resident_bytes() const override { return resident_bytes_; }
  MemoryInfo memory_info() const override;
  void reset_peaks() override;
  AllocatorEvents end_allocator_step() override;
  size_t take_useless_bytes() override { return std::exchange(useless_bytes_, 0); }
  bool refuses(size_t bytes) const override;
  const char* allocator_setting() const override;
  void keep_free_blocks(bool) override {}  // that is for torch's allocator to say

  EventPtr copy_out(void* host, const void* block, size_t bytes, EventPtr after) override;
  EventPtr copy_in(void* block, const void* host, size_t bytes, EventPtr after, bool urgent = false) override;
  void set_link(double, double) override {}  // it is what it is
  std::pair<double, double> measure_link() override;

  int lane() override;
  EventPtr record(Lanes lanes) override;
  EventPtr moment(int lane) override;
  EventPtr compute_wait(const EventPtr& copy, int lane) override;
  void join(int lane, Lanes lanes, Order why) override;
  void host_wait(const EventPtr& event, Order why) override;
  std::vector<EventPtr> arrivals() const override;
  void host_wait_for_compute() override;
  int lane_of(const void* stream) override;
  int living(int lane) override;
  void drain() override;

  size_t buffer_bytes(size_t bytes) const override;
  void* allocate_host(size_t bytes, size_t most_kept_bytes = SIZE_MAX) override;
  void free_host(void* data, size_t bytes) override;
  bool places_plans() const override { return true; }
  size_t reserved_host_bytes() const override { return pinned_.reserved_bytes(); }
  size_t pooled_host_bytes() const override { return pinned_.reserved_bytes(); }
  size_t pageable_host_bytes() const override { return pinned_.pageable_bytes(); }
  Pinned pinned_host() const override { return pinned_.pinned(); }
  void set_host_capacity(size_t bytes) override;
  std::unique_ptr<Growth> grow_host(size_t bytes) override;
  bool lacks_host(size_t bytes) const override { return !health_.gone() && pinned_.lacks(bytes); }
  std::unique_ptr<Growth> grow_host_for(size_t bytes) override;
  void place_plans(size_t bytes) override { pinned_.place_plans(bytes); }
  void* allocate_host_at(size_t place, size_t bytes) override;
  std::function<void()> release_host() override;
  std::function<void()> trim_host(bool all) override;
  std::vector<double> measure_pinning(const std::string& way, size_t bytes) override;

  c10::Device torch_device() const override;
  void install_allocator() override;
  c10::DeleterFnPtr block_deleter() const override;
  c10::DeleterFnPtr plain_deleter() const override;
  c10::DataPtr allocate_plain(size_t bytes) override;
  void out_of_memory(size_t bytes) noexcept override;
  bool take_over(void* plain_block, size_t block_bytes) override;
  bool hand_over(void* block, size_t block_bytes) override;
  void used_by_all(void* block) override;
  void copy_now(void* block, const void* source, size_t bytes) override;

  std::string failure() const override;
  void finish() noexcept override;
  void after_fork_in_child() override { health_.lose_in_child(); }

 private:
  // A stream of our own. What an op waits for already does not queue behind swap-ins ahead of their uses.
  static constexpr size_t kOut = 0, kIn = 1, kUrgentIn = 2, kLinks = 3;
  struct Link {
    Link(EventPool& pool, cudaStream_t s) : stream(s), timeline(pool, s) {}
    const cudaStream_t stream;
    Timeline timeline;
    uint64_t copies = 0;
    std::shared_ptr<Copy> waited_for;  // the newest that a lane is behind, or will be before it goes on
  };
  struct Lane {
    std::vector<cudaStream_t> streams;         // one; the last lane takes in all that come after it
    std::array<uint64_t, kLinks> behind = {};  // the newest copy of each link
  };

  class PinnedGrowth;

  EventPtr copy(size_t link, void* to, const void* from, size_t bytes, const EventPtr& after);
  bool is_destroyed(cudaStream_t stream) const;
  bool is_over(const Lane& lane) const;  // have all its streams been destroyed?
  void look_for_destroyed(const Lane& lane);
  // What cannot be given to the GPU is waited for: see Note [A GPU that is gone]. `lane`: whose streams it is for.
  template <class F>
  void in_order(const Lane* lane, F&& give);
  // What the lane is given from here on comes after the event, and so does whoever gets a block of a destroyed stream.
  template <class Event>
  void hold_back(const Lane& lane, const Event& until);
  template <class F>
  void unless_gone(F&& call) const;
  bool look() const;  // is it gone?
  size_t index_of(cudaStream_t stream);
  void catch_up(Lane& lane);
  void come_after(Lane& lane, size_t link, Order why);
  void come_after_arrivals(Lane& lane, Order why);
  void refresh_other_bytes(size_t allocated_bytes) const;
  bool near_limit(size_t block_bytes) const;
  bool worth_asking(size_t block_bytes, int lane, Effort effort, torch_side::Outlook* seen);
  void note_refusal(size_t block_bytes, int lane, Effort effort, size_t freed_bytes);
  uint64_t frees() const { return frees_ + torch_side::frees(); }
  void limit() const;
  void give_back(const std::vector<Slab>& slabs);
  void let_go(void* block, size_t block_bytes);

  const int index_;
  mutable Health health_;
  EventPool events_{health_};
  std::array<std::optional<Link>, kLinks> links_;
  std::vector<Lane> lanes_;
  std::vector<cudaStream_t> destroyed_;  // of those that lanes have: by their users, as far as it was noticed
  PinnedPool pinned_;
  mutable size_t total_bytes_ = 0;     // as it was found last
  mutable bool limit_is_old_ = false;  // has anything been taken over since it was set?
  size_t capacity_bytes_ = SIZE_MAX;
  size_t resident_bytes_ = 0;
  size_t peak_resident_bytes_ = 0;
  struct Refusal {  // the newest
    size_t block_bytes = SIZE_MAX;
    int lane = -1;
    Effort effort = Effort::Usual;
    uint64_t frees = 0;
    size_t freed_bytes = 0;  // so many have to be freed by us before it is tried with what another stream may have
  };
  Refusal refusal_;
  uint64_t frees_ = 0;      // blocks of ours that went back
  size_t freed_bytes_ = 0;  // in all
  mutable FreePieces pieces_;
  AllocatorEvents own_events_;          // those that torch does not count
  int64_t troubles_before_ = 0;         // refusals and retries, before this step
  size_t useless_bytes_ = 0;            // see take_useless_bytes()
  size_t ceiling_bytes_ = SIZE_MAX;     // in this step the GPU had no more, whatever the limit is: others use it
  size_t stuck_bytes_ = 0;              // free when a request was refused last, and yet not given back
  bool wary_ = false;                   // has anything been refused in this step or the one before?
  mutable size_t other_bytes_ = 0;      // of the capacity, taken by what is not ours
  mutable size_t inherited_bytes_ = 0;  // there before the session and not taken over: does not count
};

}  // namespace chameleon::cuda
