#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "device/cuda/check.h"
#include "device/cuda/torch_side.h"
#include "device/registry.h"
#include "faults.h"

namespace chameleon::cuda {

namespace {

constexpr size_t kBlockUnitBytes = 512;  // of torch's caching allocator
constexpr int kMostLanes = 32;           // bits of Lanes

cudaStream_t new_stream(Health& health) {
  cudaStream_t stream = nullptr;  // it stays so where the GPU is gone, and nobody uses it
  // Non-blocking: torch computes on the legacy default stream, which every blocking stream waits for.
  CHAMELEON_CUDA_CALL(health.check, cudaStreamCreateWithPriority, &stream, cudaStreamNonBlocking, 0);
  return stream;
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------- memory

size_t CudaDevice::block_bytes(size_t bytes) const {
  return (bytes + kBlockUnitBytes - 1) / kBlockUnitBytes * kBlockUnitBytes;
}

bool CudaDevice::has_room(size_t block_bytes) const {
  const size_t used = resident_bytes_ + other_bytes_;
  return used <= capacity_bytes_ && block_bytes <= capacity_bytes_ - used;
}

// What fits by its bytes may not fit into what is left in one piece: then torch's allocator, which may not reserve more
// than the capacity either, finds nothing.
void* CudaDevice::allocate(size_t block_bytes, int lane, Effort effort) {
  if (health_.gone() || !has_room(block_bytes)) return nullptr;
  if (limit_is_old_) limit();
  const bool limited = capacity_bytes_ != SIZE_MAX;
  torch_side::Outlook seen{torch_side::Source::AtHand, false, 0, 0, -1};
  if (limited && effort != Effort::Last && !worth_asking(block_bytes, lane, effort, &seen)) return nullptr;
  const std::vector<cudaStream_t>& streams = lanes_[lane].streams;
  const cudaStream_t current = torch_side::current_stream(index_);
  const bool own = std::find(streams.begin(), streams.end(), current) != streams.end();
  void* block = nullptr;
  unless_gone([&] {
    block = torch_side::allocate(index_, block_bytes, own ? current : streams.front(), /*may_fail=*/limited);
  });
  if (health_.gone()) return nullptr;
  if (!block) {
    pieces_.clear();
    ++own_events_.soft_ooms;
    const torch_side::Outlook now = torch_side::outlook(index_, block_bytes, ceiling_bytes_, 0, pieces_);
    stuck_bytes_ =
        now.flushed_bytes - std::min(now.flushed_bytes, now.useless_bytes);  // all was given back that can be
    useless_bytes_ = std::max(useless_bytes_, now.useless_bytes + stuck_bytes_);
    if (now.source == torch_side::Source::AtHand && !now.cached) {
      ceiling_bytes_ = torch_side::stats(index_).reserved_bytes;
    }
    note_refusal(block_bytes, lane, effort, block_bytes);
    return nullptr;
  }
  if (limited) pieces_.take(block_bytes);
  if (effort == Effort::Cheap && seen.cached && torch_side::stats(index_).events.alloc_retries > seen.retries) {
    pieces_.clear();
    wary_ = true;  // the block that was free is another stream's
    useless_bytes_ = std::max(useless_bytes_, seen.flushed_bytes);
    refusal_ = {block_bytes, lane, effort, frees(), freed_bytes_ + block_bytes};
  }
  resident_bytes_ += block_bytes;
  peak_resident_bytes_ = std::max(peak_resident_bytes_, resident_bytes_);
  return block;
}

// Far from the limit a request is served whatever lies in pieces, and looking would be for nothing.
bool CudaDevice::near_limit(size_t block_bytes) const {
  constexpr size_t kNearShare = 8;
  const size_t used = resident_bytes_ + other_bytes_ + block_bytes;
  return used >= capacity_bytes_ || capacity_bytes_ - used < capacity_bytes_ / kNearShare;
}

bool CudaDevice::worth_asking(size_t block_bytes, int lane, Effort effort, torch_side::Outlook* seen) {
  const bool same_pool = is_small(block_bytes) == is_small(refusal_.block_bytes);
  const bool like_the_refused = same_pool && lane == refusal_.lane && block_bytes >= refusal_.block_bytes &&
                                (effort == Effort::Cheap || refusal_.effort != Effort::Cheap);
  if (like_the_refused && refusal_.frees == frees()) return false;
  if (effort != Effort::Cheap && !wary_ && !near_limit(block_bytes)) return true;
  *seen = torch_side::outlook(index_, block_bytes, ceiling_bytes_, stuck_bytes_, pieces_);
  using torch_side::Source;
  // What was free turned out to be another stream's: as much again has to come free first.
  const bool misjudged = seen->cached && like_the_refused && freed_bytes_ < refusal_.freed_bytes;
  if (seen->source == Source::AtHand && !misjudged) return true;
  const bool flushes = seen->source == Source::Flush && effort != Effort::Cheap;
  useless_bytes_ = std::max(useless_bytes_, flushes ? seen->flushed_bytes : seen->useless_bytes);
  if (flushes) return true;
  note_refusal(block_bytes, lane, effort, 0);
  return false;
}

void CudaDevice::note_refusal(size_t block_bytes, int lane, Effort effort, size_t freed_bytes) {
  own_events_.refusals += effort == Effort::Cheap && freed_bytes == 0 ? 0 : 1;  // it waits, and nobody waits for it yet
  wary_ = true;
  refusal_ = {block_bytes, lane, effort, frees(), freed_bytes_ + freed_bytes};
}

bool CudaDevice::refuses(size_t bytes) const {
  if (limit_is_old_) limit();
  if (health_.gone() || capacity_bytes_ == SIZE_MAX || !(wary_ || near_limit(bytes))) return false;
  return torch_side::outlook(index_, bytes, ceiling_bytes_, stuck_bytes_, pieces_).source == torch_side::Source::None;
}

AllocatorEvents CudaDevice::end_allocator_step() {
  if (health_.gone()) return {};
  AllocatorEvents events = torch_side::stats(index_).events;
  events.refusals = own_events_.refusals;
  events.soft_ooms = own_events_.soft_ooms;
  ceiling_bytes_ = SIZE_MAX;
  const int64_t troubles = events.refusals + events.alloc_retries;
  wary_ = troubles != troubles_before_;
  if (!wary_) stuck_bytes_ = 0;
  troubles_before_ = troubles;
  return events;
}

const char* CudaDevice::allocator_setting() const {
  return torch_side::expandable_segments() ? "expandable_segments" : "default";
}

void CudaDevice::free(void* block, size_t block_bytes) {
  if (capacity_bytes_ != SIZE_MAX) pieces_.add(block_bytes);
  let_go(block, block_bytes);
}

void CudaDevice::let_go(void* block, size_t block_bytes) {
  resident_bytes_ -= block_bytes;
  ++frees_;
  freed_bytes_ += block_bytes;
  if (!health_.gone()) torch_side::free(block);
}

// When it can be reused is up to the streams.
void CudaDevice::free_behind(void* block, size_t block_bytes, int lane) {
  if (!health_.gone()) {
    for (const cudaStream_t stream : lanes_[lane].streams) {
      if (!is_destroyed(stream) && !faults().leaves_out(Order::AdoptedBack)) torch_side::used_on(index_, block, stream);
    }
  }
  let_go(block, block_bytes);
}

void CudaDevice::used_by_all(void* block) {
  if (health_.gone() || faults().leaves_out(Order::HandedBack)) return;
  for (const Lane& lane : lanes_) {
    for (const cudaStream_t stream : lane.streams) {
      if (!is_destroyed(stream)) torch_side::used_on(index_, block, stream);
    }
  }
}

void CudaDevice::set_capacity(size_t capacity_bytes) {
  capacity_bytes_ = capacity_bytes;
  pieces_.clear();
  if (health_.gone()) return;
  refresh_other_bytes(torch_side::stats(index_).allocated_bytes);
  limit();
}

void CudaDevice::limit() const {
  unless_gone(
      [&] { torch_side::limit(index_, capacity_bytes_ == SIZE_MAX ? SIZE_MAX : capacity_bytes_ + inherited_bytes_); });
  limit_is_old_ = false;
}

size_t CudaDevice::total_bytes() const {
  unless_gone([&] { total_bytes_ = torch_side::total_bytes(index_); });
  return total_bytes_;
}

void CudaDevice::refresh_other_bytes(size_t allocated_bytes) const {
  const size_t others = allocated_bytes - std::min(allocated_bytes, resident_bytes_);
  inherited_bytes_ = std::min(inherited_bytes_, others);
  other_bytes_ = others - inherited_bytes_;
}

MemoryInfo CudaDevice::memory_info() const {
  if (health_.gone()) return {capacity_bytes_, resident_bytes_, 0, peak_resident_bytes_, 0, 0, 0};
  const torch_side::Stats stats = torch_side::stats(index_);
  refresh_other_bytes(stats.allocated_bytes);
  return {capacity_bytes_,      resident_bytes_,           stats.reserved_bytes - stats.allocated_bytes,
          peak_resident_bytes_, stats.peak_reserved_bytes, other_bytes_,
          stats.split_bytes};
}

void CudaDevice::reset_peaks() { peak_resident_bytes_ = resident_bytes_; }

bool CudaDevice::take_over(void*, size_t block_bytes) {
  resident_bytes_ += block_bytes;  // no new peak: it was there before, and others may leave for it first
  const size_t inherited = std::min(inherited_bytes_, block_bytes);
  inherited_bytes_ -= inherited;
  other_bytes_ -= std::min(other_bytes_, block_bytes - inherited);
  limit_is_old_ = true;  // a session begins with thousands of these, and each asks the driver
  return true;
}

bool CudaDevice::hand_over(void*, size_t block_bytes) {
  resident_bytes_ -= block_bytes;
  return true;
}

// Along the caller's stream, as the op that made `source`: the block is that stream's, and its use comes behind.
void CudaDevice::copy_now(void* block, const void* source, size_t bytes) {
  const torch_side::Guard guard(index_);
  CHAMELEON_CUDA_CALL(check, cudaMemcpyAsync, block, source, bytes, cudaMemcpyDefault,
                      torch_side::current_stream(index_));
}

// ------------------------------------------------------------------------------------------------------------- copies

// Where it throws, no copy is under way: who asked for it gives the memory to others.
EventPtr CudaDevice::copy(size_t way, void* to, const void* from, size_t bytes, const EventPtr& after) {
  const torch_side::Guard guard(index_);
  Link& link = *links_[way];
  const Order why = way == kOut ? Order::CopyOut : Order::CopyIn;
  if (after && !faults().leaves_out(why)) static_cast<const Moment&>(*after).block(link.stream);
  auto copy = std::make_shared<Copy>(events_, link.timeline, link.stream, way, ++link.copies, bytes);
  const auto kind = way == kOut ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  const auto* const host = static_cast<const char*>(way == kOut ? to : from);
  try {
    for (size_t at = 0, part; at < bytes && !health_.gone(); at += part) {
      part = pinned_.in_one_slab(host + at, bytes - at);
      CHAMELEON_CUDA_CALL(health_.check, cudaMemcpyAsync, static_cast<char*>(to) + at,
                          static_cast<const char*>(from) + at, part, kind, link.stream);
    }
    copy->end(link.stream);
  } catch (...) {
    finish();
    throw;
  }
  return copy;
}

EventPtr CudaDevice::copy_out(void* host, const void* block, size_t bytes, EventPtr after) {
  return copy(kOut, host, block, bytes, after);
}

EventPtr CudaDevice::copy_in(void* block, const void* host, size_t bytes, EventPtr after, bool urgent) {
  return copy(urgent ? kUrgentIn : kIn, block, host, bytes, after);
}

std::pair<double, double> CudaDevice::measure_link() {
  constexpr size_t kMostBytes = 64 << 20, kLeastBytes = 1 << 20;
  constexpr int kCopies = 4;
  const int lane = this->lane();
  TORCH_CHECK(!health_.gone(), "Chameleon Lab: the GPU is gone");
  const cudaStream_t stream = lanes_[lane].streams.front();
  // What is there before the session may have to make way first: no reason to refuse the little that this takes.
  size_t bytes = std::max(std::min(kMostBytes, capacity_bytes_ / 8), kLeastBytes);
  const auto take = [&] { return torch_side::allocate(index_, bytes, stream, /*may_fail=*/true); };
  const auto free_block = [this](void* taken) {
    if (!health_.gone()) torch_side::free(taken);
  };
  const auto free_buffer = [this, &bytes](void* taken) { free_host(taken, bytes); };
  std::unique_ptr<void, decltype(free_block)> block(take(), free_block);
  if (!block) {
    torch_side::limit(index_, SIZE_MAX);
    limit_is_old_ = true;
    bytes = kLeastBytes;
    block.reset(take());
    limit();
  }
  const std::unique_ptr<void, decltype(free_buffer)> host(block ? allocate_host(bytes) : nullptr, free_buffer);
  TORCH_CHECK(host, "Chameleon Lab: no ", block ? "host memory (host_capacity)" : "device memory",
              " left to measure the link: ", bytes, " bytes are asked for");
  const Clock clock;
  const auto best = [&](auto copy) {
    Ticks best_ticks = INT64_MAX;
    for (int i = 0; i < kCopies; ++i) {
      const Ticks issued = now_ticks();
      const EventPtr event = copy();
      host_wait(event, Order::HostRead);
      const Ticks start = event->start_ticks(), end = event->end_ticks();
      best_ticks = std::min(best_ticks, start == kNoTime || end == kNoTime ? now_ticks() - issued : end - start);
    }
    return static_cast<double>(bytes) / clock.duration(std::max<Ticks>(best_ticks, 1));
  };
  const double out = best([&] { return copy_out(host.get(), block.get(), bytes, record(lane_bit(lane))); });
  const double in = best([&] { return copy_in(block.get(), host.get(), bytes, record(lane_bit(lane))); });
  return {out, in};
}

// -------------------------------------------------------------------------------------------------------------- order

int CudaDevice::lane() {
  if (health_.gone()) return 0;
  const size_t lane = index_of(torch_side::current_stream(index_));
  catch_up(lanes_[lane]);
  return static_cast<int>(lane);
}

int CudaDevice::lane_of(const void* stream) {
  if (health_.gone()) return -1;
  return static_cast<int>(index_of(static_cast<cudaStream_t>(const_cast<void*>(stream))));
}

size_t CudaDevice::index_of(cudaStream_t stream) {
  size_t lane = 0;
  for (; lane < lanes_.size(); ++lane) {
    const std::vector<cudaStream_t>& streams = lanes_[lane].streams;
    if (std::find(streams.begin(), streams.end(), stream) != streams.end()) break;
  }
  if (lane == lanes_.size()) {
    if (lanes_.size() < kMostLanes) {
      lanes_.push_back({{stream}, {}});
    } else {
      lanes_[--lane].streams.push_back(stream);
      lanes_[lane].behind = {};  // the new one is behind nothing yet
    }
  }
  if (is_destroyed(stream)) {  // a new one has the handle, and is behind nothing yet
    std::erase(destroyed_, stream);
    lanes_[lane].behind = {};
  }
  return lane;
}

void CudaDevice::catch_up(Lane& lane) {
  come_after(lane, kOut, Order::FreePoint);
  come_after_arrivals(lane, Order::ArrivalElsewhere);
}

void CudaDevice::come_after_arrivals(Lane& lane, Order why) {
  for (const size_t link : {kIn, kUrgentIn}) come_after(lane, link, why);
}

// Another thread may be capturing a graph, on another GPU, and all that waits fails meanwhile.
void CudaDevice::finish() noexcept {
  constexpr std::chrono::seconds kPatience(10);
  constexpr std::chrono::milliseconds kPause(1);
  std::string why;
  for (const auto until = std::chrono::steady_clock::now() + kPatience; !health_.gone();) {
    try {
      const torch_side::Guard guard(index_);
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // then this thread may wait all the same
      const bool relaxed = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
      const cudaError_t error = cudaDeviceSynchronize();
      if (relaxed) (void)cudaThreadExchangeStreamCaptureMode(&mode);
      // Which forgets what the exchange may have left, too.
      if (health_.lost(error, "cudaDeviceSynchronize") || error == cudaSuccess) return;
      why = cudaGetErrorString(error);
    } catch (const std::exception& error) {  // another GPU is the thread's, and this one cannot become it
      if (health_.lost(cudaGetLastError(), "cudaSetDevice")) return;
      why = error.what();
    }
    if (std::chrono::steady_clock::now() > until) health_.lose("it cannot be waited for: " + why);
    std::this_thread::sleep_for(kPause);
  }
}

template <class F>
void CudaDevice::in_order(const Lane* lane, F&& give) {
  try {
    give();
  } catch (const std::exception&) {
    finish();
    if (lane) look_for_destroyed(*lane);
  }
}

template <class Event>
void CudaDevice::hold_back(const Lane& lane, const Event& until) {
  for (const cudaStream_t stream : lane.streams) {
    if (is_destroyed(stream)) {
      until.wait();
    } else {
      until.block(stream);
    }
  }
}

bool CudaDevice::is_destroyed(cudaStream_t stream) const {
  return C10_UNLIKELY(!destroyed_.empty()) &&
         std::find(destroyed_.begin(), destroyed_.end(), stream) != destroyed_.end();
}

// Libraries with streams of their own (CuPy, TensorRT) may end them before the session ends. What they were given is
// done by now, and they are given nothing more; but blocks are theirs, and who gets one comes after all that its stream
// was told to wait for: from here on the host waits for that.
void CudaDevice::look_for_destroyed(const Lane& lane) {
  if (health_.gone()) return;
  try {
    const torch_side::Guard guard(index_);
    for (const cudaStream_t stream : lane.streams) {
      if (is_destroyed(stream)) continue;
      const cudaError_t state = cudaStreamQuery(stream);
      if (state == cudaSuccess || health_.lost(state, "cudaStreamQuery")) continue;
      if (state == cudaErrorInvalidResourceHandle || state == cudaErrorContextIsDestroyed) destroyed_.push_back(stream);
    }
  } catch (const std::exception&) {  // another GPU is the thread's, and this one cannot become it now: nothing is known
  }
}

bool CudaDevice::is_over(const Lane& lane) const {
  return C10_UNLIKELY(!destroyed_.empty()) &&
         std::all_of(lane.streams.begin(), lane.streams.end(), [this](cudaStream_t one) { return is_destroyed(one); });
}

int CudaDevice::living(int lane) { return is_over(lanes_[lane]) ? this->lane() : lane; }

// Of what torch asks CUDA, errors are its own; where the GPU is gone they say nothing new.
template <class F>
void CudaDevice::unless_gone(F&& call) const {
  try {
    if (!health_.gone()) call();
  } catch (const std::exception&) {
    if (!look()) throw;
  }
}

bool CudaDevice::look() const {
  if (health_.gone() || !links_[0]) return health_.gone();
  try {
    const torch_side::Guard guard(index_);
    const cudaError_t state = cudaStreamQuery(links_[0]->stream);
    return state != cudaSuccess && health_.lost(state, "cudaStreamQuery");
  } catch (const std::exception&) {
    return health_.gone();
  }
}

std::string CudaDevice::failure() const {
  (void)look();
  return health_.why();
}

// Behind the newest copy of that link which any lane waits for. The lane's stream may be the default one, whose handle
// means whichever GPU is the thread's.
void CudaDevice::come_after(Lane& lane, size_t link, Order why) {
  const std::shared_ptr<Copy>& copy = links_[link]->waited_for;
  if (!copy || lane.behind[link] >= copy->number()) return;
  lane.behind[link] = copy->number();
  if (faults().leaves_out(why)) return;
  in_order(&lane, [&] {
    const torch_side::Guard guard(index_);
    hold_back(lane, copy->end_mark());
  });
}

EventPtr CudaDevice::record(Lanes lanes) {
  auto moment = std::make_shared<Moment>();
  if (health_.gone()) return moment;
  const auto asked = [lanes](size_t lane) { return (lanes & lane_bit(static_cast<int>(lane))) != 0; };
  bool goes_on = false;  // any lane that is asked for: it is behind the copies, and the others are given nothing
  for (size_t lane = 0; lane < lanes_.size(); ++lane) goes_on |= asked(lane) && !is_over(lanes_[lane]);
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (!asked(lane) || (goes_on && is_over(lanes_[lane]))) continue;
    come_after(lanes_[lane], kOut, Order::FreePoint);
    come_after_arrivals(lanes_[lane], Order::BufferReused);
    in_order(&lanes_[lane], [&] {
      const torch_side::Guard guard(index_);
      for (const cudaStream_t stream : lanes_[lane].streams) {
        if (!is_destroyed(stream)) moment->add(std::make_unique<const Mark>(events_, stream, /*timed=*/false));
      }
    });
  }
  return moment;
}

EventPtr CudaDevice::compute_wait(const EventPtr& event, int lane) {
  if (health_.gone()) return nullptr;
  const auto copy = std::static_pointer_cast<Copy>(event);
  const size_t link = copy->link();
  std::shared_ptr<Copy>& newest = links_[link]->waited_for;
  if (!newest || newest->number() < copy->number()) newest = copy;
  if (lanes_[lane].behind[link] >= copy->number()) return nullptr;
  std::shared_ptr<Wait> wait;
  in_order(&lanes_[lane], [&] {
    const torch_side::Guard guard(index_);
    const cudaStream_t stream = lanes_[lane].streams.front();
    if (!is_destroyed(stream)) wait = std::make_shared<Wait>(events_, stream, copy);
  });
  come_after(lanes_[lane], link, link == kOut ? Order::FreePoint : Order::Arrival);
  return wait;
}

void CudaDevice::join(int lane, Lanes lanes, Order why) {
  if (health_.gone()) return;
  if (lanes_.size() < kMostLanes) lanes &= lane_bit(static_cast<int>(lanes_.size())) - 1;
  if (lanes_[lane].streams.size() == 1) lanes &= ~lane_bit(lane);
  if (lanes == 0 || faults().leaves_out(why)) return;
  in_order(&lanes_[lane], [&] {
    const EventPtr moment = record(lanes);
    const torch_side::Guard guard(index_);
    hold_back(lanes_[lane], static_cast<const Moment&>(*moment));
  });
}

// Of each link the newest: the others come before it.
std::vector<EventPtr> CudaDevice::arrivals() const {
  std::vector<EventPtr> newest;
  if (health_.gone() || !links_[0]) return newest;
  for (const size_t link : {kIn, kUrgentIn}) {
    if (links_[link]->waited_for) newest.push_back(links_[link]->waited_for);
  }
  return newest;
}

void CudaDevice::host_wait_for_compute() {
  if (health_.gone() || faults().leaves_out(Order::SessionBegins)) return;
  const torch_side::Guard guard(index_);
  CHAMELEON_CUDA_CALL(health_.check, cudaDeviceSynchronize);
}

void CudaDevice::host_wait(const EventPtr& event, Order why) {
  if (faults().leaves_out(why)) return;
  in_order(nullptr, [&] {
    const torch_side::Guard guard(index_);
    if (const auto* copy = dynamic_cast<const Copy*>(event.get())) {
      copy->end_mark().wait();
    } else {
      static_cast<const Moment&>(*event).wait();
    }
  });
}

EventPtr CudaDevice::moment(int lane) {
  if (health_.gone()) return nullptr;
  try {
    const torch_side::Guard guard(index_);
    return std::make_shared<Instant>(events_, links_[kOut]->timeline, lanes_[lane].streams.front());
  } catch (const std::exception&) {  // then the op has no time
    return nullptr;
  }
}

void CudaDevice::drain() {
  if (health_.gone() || !links_[0]) return;
  if (faults().leaves_out(Order::SessionEnds)) return;
  in_order(nullptr, [&] {
    const torch_side::Guard guard(index_);
    for (const auto& link : links_) CHAMELEON_CUDA_CALL(health_.check, cudaStreamSynchronize, link->stream);
  });
  // Torch would find out when what is handed back dies, in a deleter.
  for (const Lane& lane : lanes_) look_for_destroyed(lane);
}

// --------------------------------------------------------------------------------------------------------------- host

// Whole pages, as the plan packs them.
size_t CudaDevice::buffer_bytes(size_t bytes) const {
  constexpr size_t kPageBytes = 4096;
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

void* CudaDevice::allocate_host(size_t bytes, size_t) {
  if (health_.gone()) return nullptr;
  const torch_side::Guard guard(index_);
  if (void* data = pinned_.allocate(bytes)) return data;
  if (pinned_.lacks(bytes)) give_back(pinned_.take_idle(/*all=*/true));
  return pinned_.allocate(bytes);
}

void CudaDevice::free_host(void* data, size_t bytes) { pinned_.free(data, bytes); }

void* CudaDevice::allocate_host_at(size_t place, size_t bytes) {
  return health_.gone() ? nullptr : pinned_.allocate_at(place, bytes);
}

// What an earlier session has left, and this one may not have, goes.
void CudaDevice::set_host_capacity(size_t bytes) {
  pinned_.set_way(default_way());
  pinned_.set_limit(bytes);
  if (pinned_.reserved_bytes() <= bytes) return;
  if (const auto give_back = release_host()) give_back();
}

class CudaDevice::PinnedGrowth final : public Growth {
 public:
  explicit PinnedGrowth(CudaDevice& device) : device_(device), way_(device.pinned_.way()) {}
  ~PinnedGrowth() override {
    if (!added_) device_.pinned_.give_up_growing(wanted);
    for (const Slab& slab : slabs_) device_.pinned_.pinning().unpin(slab);
  }

  void have() override {
    const torch_side::Guard guard(device_.index_);
    device_.give_back(wanted.idle);
    pin(wanted.asked_bytes);
    pin(std::min(wanted.asked_bytes, wanted.bytes));  // where the system has not that much
  }

  void add() override {
    added_ = true;
    device_.pinned_.end_growing(wanted, slabs_);
  }

  PinnedPool::Wanted wanted;

 private:
  void pin(size_t target_bytes) {
    while (pinned_bytes_ < target_bytes) {
      slabs_.reserve(slabs_.size() + 1);  // before there is anything to be lost
      const Slab slab = device_.pinned_.pinning().pin(target_bytes - pinned_bytes_, way_);
      if (!slab.data) return;
      pinned_bytes_ += slab.bytes;
      slabs_.push_back(slab);
    }
  }

  CudaDevice& device_;
  const Way way_;
  std::vector<Slab> slabs_;  // pinned, and not the pool's yet
  size_t pinned_bytes_ = 0;
  bool added_ = false;
};

std::unique_ptr<Device::Growth> CudaDevice::grow_host(size_t bytes) {
  if (health_.gone()) return nullptr;
  auto growth = std::make_unique<PinnedGrowth>(*this);
  growth->wanted = pinned_.begin_growing(bytes);
  return growth->wanted.asked_bytes > 0 ? std::move(growth) : nullptr;
}

std::unique_ptr<Device::Growth> CudaDevice::grow_host_for(size_t bytes) {
  if (!lacks_host(bytes)) return nullptr;
  auto growth = std::make_unique<PinnedGrowth>(*this);
  growth->wanted = pinned_.begin_growing_for(bytes);
  return growth;
}

std::vector<double> CudaDevice::measure_pinning(const std::string& way, size_t bytes) {
  const torch_side::Guard guard(index_);
  Pinning pinning;
  std::vector<Slab> slabs;
  for (size_t pinned = 0; pinned < bytes; pinned += slabs.back().bytes) {
    const Slab slab = pinning.pin(bytes - pinned, way_of(way));
    if (!slab.data) break;
    slabs.push_back(slab);
  }
  const PinTimes times = pinning.spent();
  const Clock clock;
  const Ticks start = now_ticks();
  for (const Slab& slab : slabs) pinning.unpin(slab);
  return {times.touch_s, times.pin_s, clock.duration(now_ticks() - start)};
}

std::function<void()> CudaDevice::release_host() {
  if (health_.gone()) return nullptr;
  return [this, unused = pinned_.take_unused()] { give_back(unused); };
}

std::function<void()> CudaDevice::trim_host(bool all) {
  if (health_.gone()) return nullptr;
  std::vector<Slab> idle = pinned_.take_idle(all);
  if (idle.empty()) return nullptr;
  return [this, idle = std::move(idle)] { give_back(idle); };
}

// The GPU may still copy from and to what is not in use any more (Order::SessionEnds); one that reads the system's
// memory by itself goes on copying when the call has returned.
void CudaDevice::give_back(const std::vector<Slab>& slabs) {
  if (slabs.empty()) return;
  drain();
  for (const Slab& slab : slabs) pinned_.pinning().unpin(slab);
}

// -------------------------------------------------------------------------------------------------------------- torch

c10::Device CudaDevice::torch_device() const { return torch_side::device(index_); }

void CudaDevice::install_allocator() {
  torch_side::install(index_);
  (void)total_bytes();          // from here on that is known, whatever fails
  inherited_bytes_ = SIZE_MAX;  // all that is not ours now
  refresh_other_bytes(torch_side::stats(index_).allocated_bytes);
  const torch_side::Guard guard(index_);
  for (auto& link : links_) {
    if (!link) link.emplace(events_, new_stream(health_));
  }
}

c10::DeleterFnPtr CudaDevice::block_deleter() const { return torch_side::block_deleter(); }
c10::DeleterFnPtr CudaDevice::plain_deleter() const { return torch_side::plain_deleter(); }
c10::DataPtr CudaDevice::allocate_plain(size_t bytes) { return torch_side::allocate_plain(index_, bytes); }
void CudaDevice::out_of_memory(size_t bytes) noexcept { torch_side::out_of_memory(index_, bytes); }

}  // namespace chameleon::cuda

namespace chameleon {

namespace {

const bool registered = register_device(
    c10::DeviceType::CUDA,
    {cuda::torch_side::missing,
     [](c10::Device device) -> std::unique_ptr<Device> { return std::make_unique<cuda::CudaDevice>(device.index()); },
     {.runs_behind = true, .pinned_host = true, .captures_graphs = true},
     &cuda::torch_side::stand_in_front});

}  // namespace

}  // namespace chameleon
