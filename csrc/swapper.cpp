#include "swapper.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "message_of.h"
#include "storage_access.h"

namespace chameleon {

namespace {
// What the calling thread makes room for. Others may do so meanwhile: making room may let go of the core's lock.
thread_local Room wanted_room;

// While it lives, what is waited for makes room for this.
class ForRoom {
 public:
  explicit ForRoom(Room room) : before_(wanted_room) { wanted_room = room; }
  ~ForRoom() { wanted_room = before_; }
  ForRoom(const ForRoom&) = delete;
  ForRoom& operator=(const ForRoom&) = delete;

 private:
  const Room before_;
};
}  // namespace

void* Swapper::take(size_t block_bytes, int lane, Storage* whose) {
  copy_failure_.clear();
  const ForRoom reason({static_cast<int64_t>(block_bytes), whose ? recorder_.row_of(*whose) : -1});
  for (;;) {
    if (void* block = device_.allocate(block_bytes, lane)) return block;
    if (!free_something(block_bytes)) return device_.allocate(block_bytes, lane, Effort::Last);
  }
}

bool Swapper::make_room(size_t block_bytes) {
  const ForRoom reason({static_cast<int64_t>(block_bytes), -1});
  while (!device_.has_room(block_bytes)) {
    if (!free_something(block_bytes)) return false;
  }
  return true;
}

bool Swapper::free_something(size_t block_bytes) {
  return evict_any(block_bytes) || (wait_for_pins && wait_for_pins());
}

// It ends where host memory has to be had first, and goes on when it is asked again.
bool Swapper::evict_any(size_t bytes) {
  lacking_bytes_ = 0;
  bool left = finish_any_leaving();
  if (!left) {
    left = evict(bytes);
  } else if (!sent_enough(0)) {
    gather_candidates();
    send_ahead(0);
  }
  return get_lacking() || left;
}

bool Swapper::get_lacking() {
  const size_t bytes = std::exchange(lacking_bytes_, 0);
  if (bytes > 0) grow_host(bytes);
  return bytes > 0;
}

void Swapper::have_host_memory(const Storage& storage) {
  if (grow_host && !storage.host.data && host_->lacks(storage.bytes)) grow_host(storage.bytes);
}

// Storages on their way out free their blocks first: those that the host has a copy of already, else the one issued
// first. Which copies are done has no say: what is resident must not depend on time.
bool Swapper::finish_any_leaving() {
  if (leaving_.empty()) return false;
  const auto copied = std::find_if(leaving_.begin(), leaving_.end(), [](Storage* one) { return !one->host.written; });
  Storage* storage = copied != leaving_.end() ? *copied : leaving_.front();
  if (storage->moved_by == Cause::Evict) count_eviction(*storage);
  finish_swap_out(*storage);
  return true;
}

void Swapper::count_eviction(const Storage& storage) {
  ++recorder_.log().evictions;
  recorder_.log().evicted_bytes += static_cast<int64_t>(storage.bytes);
}

bool Swapper::movable(const Storage& storage) const {
  const bool under_way = backward && storage.backward == backward;
  return storage.settled && !storage.given_out() && !under_way && access::movable(storage);
}

namespace {
// See Note [Adopted blocks].
Lanes used_by(const Storage& storage) { return storage.adopted ? ~Lanes{0} : storage.lanes; }

bool sooner(const std::pair<int64_t, Storage*>& a, const std::pair<int64_t, Storage*>& b) {
  return a.first != b.first ? a.first < b.first : a.second->uid > b.second->uid;
}
}  // namespace

void Swapper::gather_candidates() {
  candidates_.clear();
  for (const auto& storage : table_.all()) {
    const bool here = storage->residency == Residency::Resident || storage->residency == Residency::Returning;
    if (here && storage->pins == 0 && movable(*storage)) {
      // Small ones leave where nothing else is left, the largest first.
      const int64_t distance = next_use(*storage);
      const bool small = storage->bytes < min_bytes && distance >= 0;
      candidates_.emplace_back(small ? static_cast<int64_t>(storage->bytes) - kLastResort : distance, storage.get());
    }
  }
  std::make_heap(candidates_.begin(), candidates_.end(), sooner);  // a few of many are taken
}

Storage* Swapper::furthest_candidate() {
  std::pop_heap(candidates_.begin(), candidates_.end(), sooner);
  Storage* storage = candidates_.back().second;
  candidates_.pop_back();
  return storage;
}

// Belady's choice as far as the future is known: the storages used furthest in the future leave. The op waits for as
// many as it needs; behind them, others begin to leave.
bool Swapper::evict(size_t block_bytes) {
  gather_candidates();
  const MemoryInfo memory = device_.memory_info();
  const size_t used_bytes = memory.resident_bytes + memory.other_bytes;
  const size_t free_bytes = memory.capacity_bytes > used_bytes ? memory.capacity_bytes - used_bytes : 0;
  // With room enough and refused all the same, memory is in pieces: as much again has to leave.
  size_t short_bytes = block_bytes > free_bytes ? block_bytes - free_bytes : std::max<size_t>(block_bytes, 1);
  std::vector<Storage*> chosen;
  size_t chosen_bytes = 0;
  size_t refused_bytes = SIZE_MAX;  // the smallest copy that the host had no room for
  while (!candidates_.empty()) {
    Storage* storage = furthest_candidate();
    if (storage->residency == Residency::Returning) {
      undo_swap_in(*storage);
    } else {
      if (storage->host.data || storage->bytes < refused_bytes) swap_out(*storage, Cause::Evict, /*at_hand=*/true);
      if (lacking_bytes_ > 0) break;
      if (storage->residency != Residency::Leaving) {
        if (copy_failure_.empty()) refused_bytes = std::min(refused_bytes, storage->bytes);
        if (!drop_instead || !drop_instead(*storage)) continue;
      }
    }
    count_eviction(*storage);
    chosen.push_back(storage);
    if (storage->residency == Residency::Leaving) chosen_bytes += storage->block_bytes;
    if (storage->block_bytes >= short_bytes) break;
    short_bytes -= storage->block_bytes;
  }
  if (lacking_bytes_ == 0) send_ahead(chosen_bytes);
  for (Storage* storage : chosen) {
    if (storage->residency == Residency::Leaving) finish_swap_out(*storage);
  }
  return !chosen.empty();
}

// A step that has evicted so many bytes may have to evict as many again: those leave while it computes, and give their
// blocks when somebody asks. What is used before that has lost nothing.
void Swapper::send_ahead(size_t waited_for_bytes) {
  while (!candidates_.empty() && candidates_.front().first > kSoon && !sent_enough(waited_for_bytes)) {
    Storage* storage = furthest_candidate();
    if (storage->residency == Residency::Returning) {
      undo_swap_in(*storage);
      count_eviction(*storage);
      continue;
    }
    swap_out(*storage, Cause::Evict, /*at_hand=*/true);
    if (storage->residency != Residency::Leaving) return;  // no host memory left, or none yet
  }
}

bool Swapper::sent_enough(size_t waited_for_bytes) const {
  const auto evicted_bytes = static_cast<size_t>(recorder_.log().evicted_bytes);
  const size_t wanted_bytes = std::min(evicted_bytes, device_.memory_info().capacity_bytes / kAheadShare);
  size_t leaving_bytes = 0;
  for (const Storage* storage : leaving_) leaving_bytes += storage->block_bytes;
  return leaving_bytes >= wanted_bytes + waited_for_bytes;
}

void Swapper::become(Storage& storage, Residency to) {
  if (transitions) transitions->push_back({storage.uid, storage.residency, to});
  storage.residency = to;
}

void Swapper::swap_out(Storage& storage, Cause cause, bool at_hand) {
  lacking_bytes_ = 0;
  access::have_mark(storage);
  try {
    if (!storage.host.data && !copy_out(storage, cause, at_hand)) return;
    if (!keeps_host_copies) access::forbid(storage);
    leaving_.push_back(&storage);  // first: there may be no memory for it
  } catch (...) {
    if (!keeps_host_copies) {  // nothing tells of writes to what stays
      access::allow(storage);
      drop_host(storage);
    }
    throw;
  }
  become(storage, Residency::Leaving);
  storage.moved_by = cause;
}

namespace {
// What has failed once may not fail again.
template <class F>
EventPtr begun(F&& copy) {
  try {
    return copy();
  } catch (const std::exception&) {
    return copy();
  }
}
}  // namespace

// See Note [Copies that fail]: the storage is told of a copy that there is.
bool Swapper::copy_out(Storage& storage, Cause cause, bool at_hand) {
  void* data = take_host(storage, cause, at_hand && grow_host);
  host_full_ = !data && lacking_bytes_ == 0;
  if (!data) return false;
  const Ticks issue = now_ticks();
  EventPtr written;
  try {
    written = begun([&] {
      return host_->copy_out(data, storage.block, storage.bytes,
                             device_.record(used_by(storage) | storage.recorded | lane_bit(storage.lane)));
    });
  } catch (const std::exception& error) {
    host_->free(data, storage.bytes);
    copy_failure_ = message_of(error);
    return false;
  }
  copy_failure_.clear();
  storage.due[0] = storage.issued[0] = issue;
  storage.host = {data, written};
  recorder_.transfer(storage, Direction::Out, cause, issue, written);
  was_made(storage, written, Direction::Out, cause);
  return true;
}

// Where the host is full, copies make way that nobody needs for now: those of storages that are here. The ones used
// soonest go first, since they are the last to leave again. Whoever writes to their memory next is a copy out, which
// comes after the copy in from it (Order::BufferReused), and after a copy out to it that is given up.
void* Swapper::take_host(const Storage& storage, Cause cause, bool at_hand) {
  const int64_t place = host_place ? host_place(storage) : -1;
  const auto taken = [&] {
    void* data = host_->allocate(storage.bytes, place, cause == Cause::Planned, at_hand);
    if (!data && at_hand && host_->lacks(storage.bytes)) lacking_bytes_ = storage.bytes;
    return data;
  };
  if (void* data = taken()) return data;
  if (lacking_bytes_ > 0) return nullptr;
  std::vector<std::pair<int64_t, Storage*>> spare;
  size_t spare_bytes = 0;
  for (const auto& one : table_.all()) {
    if (one->residency != Residency::Resident || !one->host.data || one->blank) continue;
    spare.emplace_back(next_use(*one), one.get());
    spare_bytes += host_->buffer_bytes(one->bytes);
  }
  if (!host_->allows(storage.bytes, spare_bytes)) return nullptr;
  std::sort(spare.begin(), spare.end(), sooner);
  for (const auto& one : spare) {
    drop_host(*one.second);
    if (void* data = taken()) return data;
    if (lacking_bytes_ > 0) break;
  }
  return nullptr;
}

void Swapper::forget_leaving(Storage& storage) {
  leaving_.erase(std::find(leaving_.begin(), leaving_.end(), &storage));
}

// See Note [Copies that fail].
void Swapper::stay(Storage& storage) {
  forget_leaving(storage);
  become(storage, Residency::Resident);
  if (!keeps_host_copies) access::allow(storage);
  drop_host(storage);
}

void Swapper::finish_swap_out(Storage& storage) {
  if (storage.host.written) {
    wait(storage, storage.host.written, Direction::Out, storage.lane);
    const EventPtr written = std::exchange(storage.host.written, nullptr);
    if (written->failure()) return stay(storage);
  }
  if (!access::keep(storage)) {  // it dies on another thread, or its DataPtr was moved elsewhere, while the copy ran
    forget_leaving(storage);
    become(storage, Residency::Resident);
    if (!keeps_host_copies) access::allow(storage);
    drop_host(storage);
    return;
  }
  recorder_.left(storage, std::max(recorder_.op(), 0));
  forget_leaving(storage);  // not before: there may be no memory for the record
  become(storage, Residency::Away);
  storage.due[1] = 0;
  give_block_back(storage);
}

void Swapper::give_block_back(Storage& storage) {
  void* block = storage.block;
  access::mark_away(storage);
  table_.set_block(&storage, nullptr);
  device_.join(storage.lane, used_by(storage), Order::BlockBack);  // those that only read it are not behind any copy
  device_.join(storage.lane, storage.recorded, Order::UserRecorded);
  storage.lanes = storage.made_by = storage.replays_read = 0;  // from here on, of the next block
  if (std::exchange(storage.first_block, false)) {
    device_.free_behind(block, storage.block_bytes, storage.lane);
  } else {
    device_.free(block, storage.block_bytes);
  }
}

void Swapper::drop(Storage& storage) {
  drop_host(storage);
  recorder_.left(storage, recorder_.op() + 1);
  become(storage, Residency::Dropped);
  give_block_back(storage);
}

void Swapper::remade(Storage& storage, void* block) {
  table_.set_block(&storage, block);
  storage.moved = true;
  become(storage, Residency::Resident);
  access::mark_resident(storage);
}

bool Swapper::has_room(size_t block_bytes) {
  while (!device_.has_room(block_bytes)) {
    if (!finish_any_leaving()) return false;
  }
  return true;
}

// Compute that is given to the lane from here on comes after the copy; after one that is done it does anyway.
void Swapper::wait(Storage& storage, const EventPtr& copy, Direction direction, int lane) {
  if (!copy->done()) {
    recorder_.stalled(storage, direction, storage.moved_by, copy, device_.compute_wait(copy, lane), wanted_room);
  }
}

// Compute has waited for a copy that this thread has made.
void Swapper::was_made(Storage& storage, const EventPtr& copy, Direction direction, Cause cause) {
  if (copy->made_at_once()) recorder_.stalled(storage, direction, cause, copy, copy, wanted_room);
}

bool Swapper::swap_in(Storage& storage, Cause cause) {
  const ForRoom reason({static_cast<int64_t>(storage.block_bytes), recorder_.row_of(storage)});
  const Effort effort = cause == Cause::Planned ? Effort::Cheap : Effort::Last;  // a prefetch can wait
  storage.lane = static_cast<uint8_t>(device_.living(storage.lane));
  void* block = device_.allocate(storage.block_bytes, storage.lane, effort);
  // Where the bytes are there, in pieces, what leaves does not have to be hurried.
  if (!block && !device_.has_room(storage.block_bytes) && finish_any_leaving()) {
    block = device_.allocate(storage.block_bytes, storage.lane, effort);
  }
  if (!block) return false;
  if (cause != Cause::Planned) {
    begin_swap_in(storage, block, cause);
    return true;
  }
  try {
    begin_swap_in(storage, block, cause);
  } catch (const std::exception&) {  // whoever needs it tries again, and is told
    return false;
  }
  return true;
}

// Where the copy cannot begin, the block has gone back and the storage is away. See Note [Copies that fail].
void Swapper::begin_swap_in(Storage& storage, void* block, Cause cause) {
  const Ticks issue = now_ticks();
  EventPtr arriving;
  try {
    table_.set_block(&storage, block);
    arriving = begun([&] {
      return host_->copy_in(block, storage.host.data, storage.bytes, device_.record(lane_bit(storage.lane)),
                            /*urgent=*/cause != Cause::Planned);
    });
  } catch (const std::exception& error) {
    table_.set_block(&storage, nullptr);
    device_.free(block, storage.block_bytes);
    TORCH_CHECK(false, not_back(storage, message_of(error)));
  }
  become(storage, Residency::Returning);
  storage.moved_by = cause;
  storage.moved = true;
  storage.issued[1] = issue;
  if (storage.due[1] == 0) storage.due[1] = issue;
  storage.arriving = std::move(arriving);
  recorder_.arrived(storage);
  recorder_.transfer(storage, Direction::In, cause, issue, storage.arriving);
  was_made(storage, storage.arriving, Direction::In, cause);
  recorder_.levels(table_.live_bytes(), device_.resident_bytes());
}

// Fetched too soon: the host still has the bytes.
void Swapper::undo_swap_in(Storage& storage) {
  recorder_.left(storage, std::max(recorder_.op(), 0));
  cancel(storage, storage.arriving, Direction::In);
  void* block = storage.block;
  become(storage, Residency::Away);
  storage.due[1] = 0;
  table_.set_block(&storage, nullptr);
  device_.free(block, storage.block_bytes);
}

std::string Swapper::not_back(const Storage& storage, const std::string& why) const {
  return "Chameleon Lab: " + (name_of ? name_of(storage) : "a storage") + " could not be brought back: " + why +
         ". Its bytes are not on the device; using it again tries again.";
}

void Swapper::arrive(Storage& storage, EventPtr* arrived) {
  wait(storage, storage.arriving, Direction::In, device_.lane());
  if (const std::string* why = storage.arriving->failure()) {
    const std::string message = not_back(storage, *why);
    undo_swap_in(storage);
    TORCH_CHECK(false, message);
  }
  if (arrived) *arrived = storage.arriving;
  storage.arriving.reset();
  storage.due[1] = 0;
  become(storage, Residency::Resident);
  access::mark_resident(storage);
  if (!keeps_host_copies || (host_kept && !host_kept(storage))) drop_host(storage);
}

bool Swapper::restore(Storage& storage, Cause cause, EventPtr* arrived, bool blank) {
  if (storage.residency == Residency::Away) {
    const int64_t uid = storage.uid;
    const size_t block_bytes = storage.block_bytes;
    ++storage.pins;  // making room must not look at this one
    if (storage.due[1] == 0) storage.due[1] = now_ticks();
    void* block = nullptr;
    const int lane = blank ? device_.lane() : device_.living(storage.lane);
    try {
      block = take(block_bytes, lane, &storage);
    } catch (...) {  // no memory for the host's books: it may be tried again
      if (storage.uid == uid) --storage.pins;
      throw;
    }
    if (storage.uid != uid) {  // it died on another thread while this one waited
      if (block) device_.free(block, block_bytes);
      return true;
    }
    --storage.pins;
    if (!block) return false;
    if (storage.residency != Residency::Away) {  // another thread brought it in while this one waited
      device_.free(block, block_bytes);
    } else {
      if (blank) storage.recorded |= lane_bit(storage.lane);  // it may be another one: see Note [Deaths]
      storage.lane = static_cast<uint8_t>(lane);
      if (blank && storage.pins == 1) {  // nobody else uses it
        come_blank(storage, block);
      } else {
        begin_swap_in(storage, block, cause);
        if (cause == Cause::Demand) ++recorder_.log().demand_swap_ins;
      }
    }
  }
  if (storage.residency == Residency::Returning) arrive(storage, arrived);
  if (storage.residency == Residency::Leaving) touch(storage, false);
  return true;
}

// The block belongs to the lane that is about to write it, which has no copy to wait for.
void Swapper::come_blank(Storage& storage, void* block) {
  try {
    table_.set_block(&storage, block);
  } catch (...) {
    device_.free(block, storage.block_bytes);
    throw;
  }
  become(storage, Residency::Resident);
  storage.moved = storage.blank = true;
  storage.moved_by = Cause::Demand;
  storage.due[1] = 0;
  access::mark_resident(storage);
  recorder_.arrived(storage);
  recorder_.levels(table_.live_bytes(), device_.resident_bytes());
}

// If that cannot be, it is away again: whoever uses it next tries again.
void Swapper::refill(Storage& storage) {
  try {
    const Ticks issue = now_ticks();
    const EventPtr arrived = begun([&] {
      return host_->copy_in(storage.block, storage.host.data, storage.bytes, device_.record(lane_bit(storage.lane)),
                            /*urgent=*/true);
    });
    wait(storage, arrived, Direction::In, storage.lane);
    if (!arrived->failure()) {
      ++recorder_.log().demand_swap_ins;
      recorder_.transfer(storage, Direction::In, Cause::Demand, issue, arrived);
      return;
    }
  } catch (const std::exception&) {
  }
  if (!access::intact(storage)) return;
  recorder_.left(storage, std::max(recorder_.op(), 0));
  become(storage, Residency::Away);
  give_block_back(storage);
}

void Swapper::touch(Storage& storage, bool writes) {
  if (storage.residency == Residency::Leaving) {  // not expected this soon; the copy is good for the next time
    forget_leaving(storage);
    become(storage, Residency::Resident);
    if (!keeps_host_copies) access::allow(storage);
  }
  if (writes || !keeps_host_copies) drop_host(storage);
}

// A copy that nobody wants any more: its memory must not go back before the engine has let go of it. Of one that is
// done it has: whoever writes there next is given to a lane or to a link after that.
void Swapper::cancel(Storage& storage, EventPtr& copy, Direction direction) noexcept {
  try {
    if (!copy->done()) {
      copy->cancel();
      const int lane = device_.lane();  // is about to write the block, or to let go of it
      if (lane != storage.lane) wait(storage, copy, direction, lane);
      wait(storage, copy, direction, storage.lane);
    }
  } catch (const std::exception&) {  // the bytes are not all there: the copy must not be taken for one
    device_.finish();
  }
  copy.reset();
}

void Swapper::drop_host(Storage& storage) {
  if (!storage.host.data) return;
  if (storage.blank) {  // the only copy of the old bytes, should the op raise
    storage.host_stale = true;
    return;
  }
  if (storage.host.written) cancel(storage, storage.host.written, Direction::Out);
  host_->free(std::exchange(storage.host, {}).data, storage.bytes);
}

// In a tensor's deleter, where nothing may be thrown.
void Swapper::release(Storage& storage) noexcept {
  if (storage.residency == Residency::Leaving) forget_leaving(storage);
  if (storage.arriving) cancel(storage, storage.arriving, Direction::In);
  storage.blank = false;
  drop_host(storage);
  access::give_mark_back(storage);
  try {
    if (storage.block) let_block_die(storage);
  } catch (const std::exception&) {  // torch could not take it back: nobody gets it any more
  }
}

// See Note [Deaths].
void Swapper::let_block_die(Storage& storage) {
  if (storage.moved) {
    // Who has its address may have used it where no op was seen, in an order that some lane knows.
    device_.join(storage.lane, storage.given_out() ? ~Lanes{0} : used_by(storage), Order::Death);
    device_.join(storage.lane, storage.recorded, Order::UserRecorded);
  }
  if (storage.replays_read) device_.join(storage.lane, storage.replays_read, Order::ReplayRead);
  if (storage.first_block && storage.replays_read) {
    device_.free_behind(storage.block, storage.block_bytes, storage.lane);
  } else {
    device_.free(storage.block, storage.block_bytes);
  }
}

// What does not come back now comes when it is used. A device that is gone, maybe since a moment ago, brings nothing.
bool Swapper::restore_all(std::vector<Storage*>* lost) {
  bool all_here = device_.failure().empty() && bring_all(lost);
  device_.drain();
  if (!device_.failure().empty()) {
    all_here = true;
    lost->clear();
    for (const auto& storage : table_.all()) {
      if (storage->residency == Residency::Leaving) touch(*storage, false);
      if (storage->residency != Residency::Resident && access::keep(*storage)) lost->push_back(storage.get());
    }
  }
  for (const auto& storage : table_.all()) {
    if (storage->residency != Residency::Resident) continue;
    storage->blank = false;
    drop_host(*storage);
    if (all_here && access::intact(*storage)) access::disarm(*storage);
  }
  return all_here;
}

bool Swapper::bring_all(std::vector<Storage*>* lost) {
  bool all_here = true;
  // By lane: each refusal makes torch give back all that it keeps, and wait for the GPU.
  std::array<size_t, 8 * sizeof(Lanes)> refused_bytes;
  refused_bytes.fill(SIZE_MAX);
  for (const auto& storage : table_.all()) {
    if (storage->residency == Residency::Leaving) touch(*storage, false);
    if (!access::keep(*storage)) continue;
    if (storage->residency == Residency::Away) {
      size_t& refused = refused_bytes[storage->lane];
      bool comes = false;
      try {
        comes = storage->block_bytes < refused && swap_in(*storage, Cause::Access);
        if (!comes) refused = std::min(refused, storage->block_bytes);
      } catch (const std::exception&) {  // its copy could not be begun
      }
      if (!comes) {
        all_here = false;
        continue;
      }
    }
    if (storage->residency == Residency::Returning) {
      try {
        arrive(*storage, nullptr);
      } catch (const c10::Error&) {
        lost->push_back(storage.get());
        continue;
      }
    }
    // Where all fit, what is still dropped cannot be made again.
    if (storage->residency == Residency::Dropped && device_.total_bytes() != SIZE_MAX) all_here = false;
  }
  return all_here;
}

}  // namespace chameleon
