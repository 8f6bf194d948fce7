// Dropped storages: giving blocks back whose bytes can be made again, and making them again.
#include <c10/util/Exception.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "late_deaths.h"
#include "message_of.h"
#include "runtime_internal.h"
#include "tensor_storages.h"

namespace chameleon {

namespace {

constexpr const char* kLost =
    "Chameleon Lab: the bytes of this tensor were dropped to be made again, and there was no memory left for that when "
    "the session ended";

// An autocast kernel casts its inputs and calls the op again with its key off. What runs there was not made by it.
bool inside_autocast(c10::DispatchKeySet now, c10::DispatchKeySet outside) {
  return now != outside && (now & outside) == now;
}

}  // namespace

// What a thread replays outside of any op is an op of its own as far as pins are concerned, and is not counted.
class Runtime::PinsOfReplay {
 public:
  PinsOfReplay(Runtime& runtime, ThreadState& thread)
      : runtime_(runtime), thread_(thread), outermost_(thread.depth == 0) {
    if (!outermost_) return;
    thread_.depth = 1;
    thread_.serial = runtime_.next_serial();
    thread_.place = runtime_.newest_;
    thread_.op_name = "a replay between ops";
    ++runtime_.threads_in_ops_;
  }
  ~PinsOfReplay() {
    if (!outermost_) return;
    thread_.depth = 0;
    runtime_.unpin_all(thread_);
    thread_.serial = 0;
    --runtime_.threads_in_ops_;
    runtime_.pins_released_.notify_all();
  }
  PinsOfReplay(const PinsOfReplay&) = delete;
  PinsOfReplay& operator=(const PinsOfReplay&) = delete;

 private:
  Runtime& runtime_;
  ThreadState& thread_;
  const bool outermost_;
};

// While it lives, what the thread runs belongs to no step, and does not hold the core's lock.
class Runtime::Replaying {
 public:
  Replaying(Runtime& runtime, ThreadState& thread) : unlocked_(runtime.mutex_), thread_(thread) {
    ++thread_.stack.replaying;
  }
  ~Replaying() { --thread_.stack.replaying; }
  Replaying(const Replaying&) = delete;
  Replaying& operator=(const Replaying&) = delete;

 private:
  Unlocked unlocked_;
  ThreadState& thread_;
};

// The bytes that a replay reads: resident and pinned, or made for it alone.
class Runtime::ReplayInputs {
 public:
  ReplayInputs(Runtime& runtime, int lane) : runtime_(runtime), lane_(lane) {}
  ~ReplayInputs() {
    for (const auto& value : pinned_) {
      if (value->storage) runtime_.unpin(*value->storage);
    }
    if (!made.empty()) release_made();
  }
  ReplayInputs(const ReplayInputs&) = delete;
  ReplayInputs& operator=(const ReplayInputs&) = delete;

  // So that nothing is made or pinned of which there is no memory to know.
  void reserve(size_t count) {
    pinned_.reserve(count);
    data.reserve(count);
    made.reserve(count);
  }
  void pin(const std::shared_ptr<Value>& value) {
    Storage& storage = *value->storage;
    ++storage.pins;
    runtime_.follow_replays(storage, lane_, /*writes=*/false, Order::ReplayedBefore);
    storage.replays_read |= lane_bit(lane_);
    storage.lanes |= lane_bit(lane_);
    pinned_.push_back(value);
    data.push_back(storage.block);
  }
  void release_made() {
    Unlocked unlocked(runtime_.mutex_);  // the allocator takes the lock
    made.clear();
  }

  std::vector<void*> data;
  std::vector<at::Tensor> made;

 private:
  Runtime& runtime_;
  const int lane_;  // that the replay goes along
  std::vector<std::shared_ptr<Value>> pinned_;
};

// While it lives, nothing is dropped that is made from the value.
class Runtime::Ending {
 public:
  explicit Ending(std::shared_ptr<Value> value) : value_(std::move(value)) { ++value_->ending; }
  ~Ending() { --value_->ending; }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

 private:
  const std::shared_ptr<Value> value_;
};

void Runtime::allow_replays(const std::unordered_map<std::string, uint64_t>& dtypes) {
  const CheckedSettings settings(device_->torch_device().type());
  Lock lock(mutex_);
  replays_.allow(dtypes, settings);
}

void Runtime::keep_producers(bool on) {
  Lock lock(mutex_);
  always_keep_producers_ = on;
  keep_producers_if_needed();
}

void Runtime::keep_producers_if_needed() {
  keeps_producers_ = open_ && limited_ && !options_.unbacked && (always_keep_producers_ || executor_.drops());
  recorder_.record_makings(keeps_producers_);
}

// Storages are made by the outermost op with a kernel of its own: an op called by its kernel may not be the last to
// write them. What composite ops call stands for itself.
void Runtime::begin_maker(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread) {
  if (!info.opaque) return;
  if (!thread.makers.empty() && !inside_autocast(Surroundings::active_autocast(), thread.makers.back().autocast))
    return;
  if (optimizer_stage_.load(std::memory_order_relaxed) && thread.makers.empty()) return;  // all in place, and many
  thread.makers.push_back(replays_.describe(function, info));
  thread.makers.back().frame = thread.stack.frames.size();
}

void Runtime::link_maker(ThreadState& thread) {
  if (thread.makers.empty() || thread.makers.back().frame != thread.stack.frames.size()) return;
  Maker& maker = thread.makers.back();
  maker.first_uid = table_.next_uid();
  if (maker.producer) maker.producer->lane = thread.lane;
  replays_.link(&maker);
}

void Runtime::end_maker(const at::RecordFunction& function, Maker& maker) {
  const auto outputs = results_of(function);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].isTensor() || !outputs[i].toTensor().defined() || !outputs[i].toTensor().has_storage()) continue;
    const at::Tensor& tensor = outputs[i].toTensor();
    Storage* storage = find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (!storage || !storage->impl || !replays_.attach(&maker, static_cast<int32_t>(i), tensor, storage)) continue;
    made_from_.clear();
    if (maker.producer && storage->value) {
      for (const KeptInput& input : maker.producer->inputs) {
        if (!input.value) continue;
        Storage* const held = maker.producer->writes(input) ? storage : input.value->storage;
        if (held) made_from_.push_back(held);
      }
    }
    recorder_.made(*storage, made_from_);
  }
}

Refusal Runtime::drop(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage) return Refusal::Unmovable;
  place(thread_state());
  if (storage->residency == Residency::Leaving) swapper_.touch(*storage, false);
  return drop_bytes(*storage);
}

Refusal Runtime::drop_bytes(Storage& storage, bool note) {
  // At the end of a session everything comes back, and stays.
  Refusal refusal = closing_ ? Refusal::Unmovable : replays_.drop(storage);
  if (refusal == Refusal::None) {
    try {
      if (access::keep(storage)) {
        access::have_mark(storage);
        swapper_.drop(storage);
      } else {
        replays_.restored(storage);
        refusal = Refusal::Unmovable;
      }
    } catch (...) {  // it is held only while it is dropped
      if (storage.residency == Residency::Resident) replays_.restored(storage);
      throw;
    }
  }
  if (refusal == Refusal::None) {
    recorder_.dropped(storage);
  } else if (note && storage.residency == Residency::Resident) {
    recorder_.declined(storage, refusal);
  }
  return refusal;
}

// Be resident when this returns. Raises OutOfMemoryError, and what a replayed op raises. Whoever waits here gives up
// the lock, and other threads may send the storage away again.
void Runtime::bring_in(Storage& storage, Cause cause, ThreadState& thread, EventPtr* arrived) {
  const int64_t uid = storage.uid;
  while (storage.uid == uid && storage.residency != Residency::Resident) {
    if (storage.residency == Residency::Dropped) {
      TORCH_CHECK_WITH(OutOfMemoryError, storage.value, kLost);
      rematerialize(storage.value, cause, thread);
    } else if (!swapper_.restore(storage, cause, arrived)) {
      check_device();
      const std::string message = note_failure(storage.block_bytes, thread);
      TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    }
  }
  // Another thread may have made it, along another lane: before its turn came, too.
  if (storage.uid == uid) follow_replays(storage, device_->lane(), /*writes=*/false, Order::ReplayedMeanwhile);
}

// Before the DataPtr of a storage that nobody here holds is replaced. False: look again; its last tensor was going, on
// a thread that has had the lock since.
bool Runtime::keep_or_let_die(Storage& storage) {
  if (access::keep(storage)) return true;
  TORCH_CHECK(access::dying(storage), "Chameleon Lab: the memory of a tensor was moved while its bytes were away");
  Unlocked unlocked(mutex_);
  late_deaths::settle();
  sched_yield();
  return false;
}

// Note [Chains]
// What a replay reads may be gone itself. A value that no storage holds any more is made for the replay alone, from
// values that may be gone too: a line of at most Replays::kLongestChain ops, so that recursion will do. Several ops of
// the chain may read it: it is made once, and freed by the last of them. Only an op in place gets one of its own,
// unless it is that last reader. A storage that is dropped too is restored first, and is pinned then until the replay
// is done. What that reads may be dropped as well, as deep as the step is long: these go on a stack of their own,
// inputs first.

// One storage that is being restored by the ops that made it.
class Runtime::Restoration {
 public:
  Restoration(Runtime& runtime, ThreadState& thread, std::shared_ptr<Value> value)
      : runtime_(runtime),
        thread_(thread),
        value_(std::move(value)),
        storage_(value_->storage),
        pins_(runtime, thread) {
    storage_->replaying = true;
    ++runtime_.replays_running_;
    ++thread_.replays;
  }
  ~Restoration() {
    if (!done_) end();
  }
  Restoration(const Restoration&) = delete;
  Restoration& operator=(const Restoration&) = delete;

  // The next storage that has to be restored before; null: there is none.
  std::shared_ptr<Value> missing() {
    shared_.clear();
    std::vector<Value*> open = {value_.get()};
    while (!open.empty()) {
      const Value* reader = open.back();
      open.pop_back();
      if (!reader->producer) continue;  // lost, which making it will say
      for (const KeptInput& input : reader->producer->inputs) {
        if (!input.value || input.blank) continue;
        if (input.value->gone()) {
          if (++shared_[input.value.get()].readers == 1) open.push_back(input.value.get());
        } else if (input.value->storage->residency == Residency::Dropped) {
          return input.value;
        }
      }
    }
    return nullptr;
  }

  // It has been restored for this one: it stays.
  void keep(const std::shared_ptr<Value>& value) {
    if (!value->storage || value->storage->residency != Residency::Resident) return;
    try {
      kept_.push_back(value);
    } catch (const std::bad_alloc&) {  // it may leave again, and is made again then
      return;
    }
    ++value->storage->pins;
  }

  void run(Cause cause) {
    made_ = runtime_.make_again(value_, *this, cause, thread_);
    while (value_->storage && !runtime_.keep_or_let_die(*storage_)) {
    }
    if (value_->storage) runtime_.take_over(*storage_, made_, thread_);
  }

  // Those who wait for it may go on.
  void end() {
    done_ = true;
    if (value_->storage) {
      storage_->replaying = false;
      if (storage_->ghost && !storage_->retained) runtime_.replays_.let_go(*storage_);  // nobody reads it any more
    } else {
      runtime_.replays_.gave_up(value_);  // it died meanwhile, on another thread
    }
    --runtime_.replays_running_;
    --thread_.replays;
    for (const auto& value : kept_) {
      if (value->storage) runtime_.unpin(*value->storage);
    }
    kept_.clear();
    runtime_.pins_released_.notify_all();
  }

  // Memory that goes with it. Call it without the core's lock.
  void release() {
    made_.reset();
    shared_.clear();
  }

  const std::shared_ptr<Value>& value() const { return value_; }

  // A value that is gone, for one of its readers; undefined: it has to be made. An op in place changes it.
  at::Tensor take(const Value* value, bool in_place) {
    const auto found = shared_.find(value);
    if (found == shared_.end()) return {};
    Shared& shared = found->second;
    const bool last = --shared.readers <= 0;
    if (!shared.made.defined()) return {};
    if (in_place && (!last || shared.made.use_count() > 1)) return {};  // another op of the chain has yet to read it
    return last ? std::exchange(shared.made, at::Tensor()) : shared.made;
  }
  void share(const Value* value, const at::Tensor& made) {
    const auto found = shared_.find(value);
    if (found != shared_.end() && found->second.readers > 0) found->second.made = made;
  }

 private:
  struct Shared {
    int readers = 0;  // that have not had it yet
    at::Tensor made;
  };

  Runtime& runtime_;
  ThreadState& thread_;
  const std::shared_ptr<Value> value_;
  Storage* const storage_;
  const PinsOfReplay pins_;
  std::vector<std::shared_ptr<Value>> kept_;
  std::unordered_map<const Value*, Shared> shared_;  // by value that is gone
  at::Tensor made_;
  bool done_ = false;
};

void Runtime::rematerialize(const std::shared_ptr<Value> value, Cause cause, ThreadState& thread) {
  std::vector<std::unique_ptr<Restoration>> open;
  std::exception_ptr error;
  begin_restoration(value, open, thread);
  while (!open.empty() && !error) {
    Restoration& newest = *open.back();
    try {
      if (const std::shared_ptr<Value> missing = newest.missing()) {
        begin_restoration(missing, open, thread);
        if (open.back().get() == &newest) newest.keep(missing);  // another thread has restored it
        continue;
      }
      newest.run(cause);
    } catch (...) {
      error = std::current_exception();
    }
    if (!error) end_restoration(open, thread);
  }
  while (!open.empty()) end_restoration(open, thread);
  if (error) std::rethrow_exception(error);
}

// Unless it is restored, or gone, when this thread's turn has come.
void Runtime::begin_restoration(const std::shared_ptr<Value>& value, std::vector<std::unique_ptr<Restoration>>& open,
                                ThreadState& thread) {
  Storage* const storage = value->storage;
  while (value->storage == storage && storage->replaying) wait_for_others(thread);
  if (value->storage != storage || storage->residency != Residency::Dropped) return;
  open.push_back(std::make_unique<Restoration>(*this, thread, value));
}

void Runtime::end_restoration(std::vector<std::unique_ptr<Restoration>>& open, ThreadState& thread) {
  const std::unique_ptr<Restoration> ended = std::move(open.back());
  open.pop_back();
  ended->end();
  if (!open.empty()) open.back()->keep(ended->value());
  {
    Unlocked unlocked(mutex_);  // the allocator takes the lock
    ended->release();
  }
  place(thread);
}

// Run the op that made a value, and the ops that made its inputs where they are gone too: see Note [Chains].
at::Tensor Runtime::make_again(const std::shared_ptr<Value>& value, Restoration& wanted, Cause cause,
                               ThreadState& thread) {
  const std::shared_ptr<const Producer> producer = value->producer;
  TORCH_CHECK_WITH(OutOfMemoryError, producer, kLost);
  ReplayInputs inputs(*this, device_->lane());
  inputs.reserve(producer->inputs.size());
  at::Tensor written;  // its memory is an op in place's result
  size_t used_bytes = producer->results[value->result].bytes;
  for (const KeptInput& input : producer->inputs) {
    if (!input.value && !input.blank) {
      inputs.data.push_back(nullptr);
      continue;
    }
    while (!input.blank && input.value->storage && input.value->storage->residency != Residency::Resident) {
      Storage& needed = *input.value->storage;
      if (keep_or_let_die(needed)) bring_in(needed, input.value->has_bytes() ? Cause::Demand : cause, thread);
    }
    if (!input.blank && input.value->storage) {
      inputs.pin(input.value);
      used_bytes += input.value->storage->bytes;
      continue;
    }
    const bool in_place = producer->writes(input);
    at::Tensor made = input.blank ? blank(input, thread) : wanted.take(input.value.get(), in_place);
    if (!made.defined()) {
      made = make_again(input.value, wanted, cause, thread);
      if (!in_place) wanted.share(input.value.get(), made);
    }
    if (in_place) written = made;
    used_bytes += made.storage().nbytes();
    inputs.data.push_back(made.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
    inputs.made.push_back(std::move(made));
  }
  TORCH_CHECK(producer->written < 0 || written.defined(),
              "Chameleon Lab: an op in place would change a tensor that is in use; please report this");
  // Whoever wrote what it reads did so before the op ran first. What asks for it now may know nothing of that: another
  // op ahead of the one that needs it, or the user at the end of a session.
  const int lane = device_->lane();
  device_->join(lane, lane_bit(producer->lane), Order::FirstRun);
  at::Tensor made;
  std::exception_ptr error;
  const Ticks start = now_ticks();
  {
    const Replaying replaying(*this, thread);
    try {
      made = producer->run(value->result, inputs.data);
    } catch (...) {
      error = std::current_exception();
    }
    if (written.defined()) made = std::move(written);  // the op's own result is but a view of it
    if (error) made.reset();
    inputs.made.clear();
  }
  place(thread);
  if (error) std::rethrow_exception(error);
  modeled_time.pass_op(used_bytes);
  note_replay(wanted.value()->storage, *producer, producer->results[value->result].bytes, cause, start);
  return made;
}

// Called while what was made lives: were it to die here, its deleter would wait for the lock for ever.
void Runtime::note_replay(Storage* storage, const Producer& producer, size_t bytes, Cause cause, Ticks start) {
  try {
    recorder_.replayed(storage, bytes, producer.info->id, cause, start, now_ticks());
  } catch (const std::bad_alloc& error) {
    recorder_.cut_short(text_of(error));
  }
}

at::Tensor Runtime::blank(const KeptInput& input, ThreadState& thread) {
  const Replaying replaying(*this, thread);
  return input.memory();
}

// The block of what was made becomes the storage's own.
// The lane that the storage was made for counts as recorded: its user orders its death by that one, see Note [Deaths].
void Runtime::take_over(Storage& storage, const at::Tensor& made, ThreadState& thread) {
  c10::StorageImpl* impl = made.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  Storage* temporary = find(impl);
  void* block;
  if (temporary && temporary->block_bytes == storage.block_bytes && temporary->residency == Residency::Resident &&
      c10::raw::intrusive_ptr::use_count(impl) == 1) {
    block = temporary->block;
    storage.recorded |= lane_bit(std::exchange(storage.lane, temporary->lane));
    impl->_mutable_data_ptr_no_checks().release_context();
    impl->set_data_ptr_noswap(c10::DataPtr(nullptr, impl->device()));
    table_.set_block(temporary, nullptr);
    table_.remove(temporary);
  } else {  // its memory is not the session's (which is closing), or something else holds it
    const std::shared_ptr<Value> value = storage.value;
    const size_t block_bytes = storage.block_bytes;
    block = swapper_.take(block_bytes, device_->lane());
    if (value->storage != &storage) {  // it died on another thread, while this one waited
      if (block) device_->free(block, block_bytes);
      return;
    }
    if (!block) {
      check_device();
      const std::string message = note_failure(storage.block_bytes, thread);
      TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    }
    storage.recorded |= lane_bit(std::exchange(storage.lane, static_cast<uint8_t>(device_->lane())));
    device_->copy_now(block, impl->_mutable_data_ptr_no_checks().get(), storage.bytes);
  }
  storage.made_by = lane_bit(device_->lane());
  storage.lanes |= storage.made_by;
  swapper_.remade(storage, block);
  replays_.restored(storage);
  recorder_.arrived(storage);
  recorder_.levels(table_.live_bytes(), resident_bytes());
}

// The program orders an op behind the one that made its input, and a write behind those that read what it overwrites.
// It knows nothing of replays.
void Runtime::follow_replays(const Storage& storage, int lane, bool writes, Order made) {
  if (C10_UNLIKELY(storage.made_by)) device_->join(lane, storage.made_by, made);
  if (C10_UNLIKELY(writes && storage.replays_read)) device_->join(lane, storage.replays_read, Order::ReplayRead);
}

// Whoever gets an address may use it along any lane, or on the host, in an order that was right before copies and
// replays came in between.
void Runtime::host_follows(const Storage& storage, HostWaits* waits) {
  for (const EventPtr& arrival : device_->arrivals()) waits->emplace_back(arrival, Order::PointerTaken);
  const EventPtr made = storage.made_by ? device_->record(storage.made_by) : nullptr;
  if (made) waits->emplace_back(made, Order::HostReadReplayed);
  const EventPtr read = storage.replays_read ? device_->record(storage.replays_read) : nullptr;
  if (read) waits->emplace_back(read, Order::PointerReplayed);
}

// What a producer keeps is the host's, and no session's: it is freed under the core's lock.
c10::DataPtr Runtime::allocate_kept(size_t bytes) {
  return torch_device_.is_cpu() ? device_->allocate_plain(bytes) : allocate_aside(c10::DeviceType::CPU, bytes);
}

// Before a storage's value ends: everything that is made from it comes back while it can. It must not be dropped again
// meanwhile, to make room for the rest: that would go on for ever.
void Runtime::restore_dependents(Storage& storage, Cause cause, ThreadState& thread) {
  if (!replays_.needed(storage)) return;
  const Ending ending(storage.value);
  while (replays_.needed(storage)) {
    const auto dependents = replays_.dropped_dependents(storage);
    if (dependents.empty()) {
      // What was being made from it has died, and the thread that makes it still reads this one.
      TORCH_CHECK(replays_running_ > thread.replays, "Chameleon Lab: a value is held for nothing; please report this");
      ++storage.pins;
      wait_for_others(thread);
      --storage.pins;
      continue;
    }
    ++storage.pins;
    std::exception_ptr error;
    try {
      for (const auto& value : dependents) {
        if (!value->storage || value->storage->residency != Residency::Dropped) continue;
        rematerialize(value, cause, thread);
        if (value->storage) watch(*value->storage);
      }
    } catch (...) {
      error = std::current_exception();
    }
    --storage.pins;
    if (error) std::rethrow_exception(error);
  }
}

// Of storages that the op is about to write. A value that cannot be saved stops the write.
void Runtime::end_values(const std::vector<Storage*>& written, ThreadState& thread) {
  const bool own = !thread.makers.empty() && thread.makers.back().frame == thread.stack.frames.size();
  const bool in_place = own && thread.makers.back().info->in_place;  // says what it has made when it ends
  for (Storage* storage : written) {
    if (storage->failed || !storage->value) continue;  // the op raises; or an op inside was there first
    end_value(*storage, in_place, thread);
  }
}

void Runtime::end_value(Storage& storage, bool in_place, ThreadState& thread) {
  try {
    restore_dependents(storage, Cause::Demand, thread);
    follow_replays(storage, thread.lane, /*writes=*/true);
    replays_.ended(storage, Refusal::Written);
    storage.maker = -1;
    if (!in_place) recorder_.made(storage, {});
  } catch (const std::exception& error) {
    access::mark_failed(storage, message_of(error));
  }
}

void Runtime::replay_planned(ThreadState& thread) {
  for (Storage* storage : executor_.take_replays()) {
    const std::shared_ptr<Value> value = storage->value;
    if (!value || value->storage != storage || !swapper_.has_room(storage->block_bytes)) continue;
    try {
      rematerialize(value, Cause::Planned, thread);
      if (value->storage) watch(*value->storage);
    } catch (const std::exception&) {
      thread.refused_bytes = 0;  // the op that needs it tries again, and says what is wrong
    }
  }
}

// Whatever is dropped comes back, as far as there is room.
void Runtime::restore_dropped(ThreadState& thread) {
  std::unordered_set<int64_t> tried;
  for (;;) {
    Storage* next = nullptr;
    for (const auto& storage : table_.all()) {
      if (storage->residency == Residency::Dropped && storage->value && !storage->ghost && !tried.count(storage->uid))
        next = storage.get();
    }
    if (!next || !device_->failure().empty()) break;
    tried.insert(next->uid);
    const std::shared_ptr<Value> value = next->value;
    if (!access::keep(*next)) continue;  // it dies on another thread
    try {
      rematerialize(value, Cause::Access, thread);
      if (value->storage) watch(*value->storage);
    } catch (const std::exception&) {
      // It stays dropped, and who uses it is told why.
    }
  }
  // Those too whose storage has died meanwhile: they read what it was made from.
  while (replays_running_ > thread.replays) wait_for_others(thread);
}

// At the end of a session nothing can be made again any more: what could not be restored raises when it is used.
void Runtime::forget_values() {
  const auto each = [this](auto&& f) {  // of those that are there now: forgetting one may free others
    std::vector<std::pair<Storage*, int64_t>> storages;
    for (const auto& storage : table_.all()) storages.emplace_back(storage.get(), storage->uid);
    for (const auto& [storage, uid] : storages) {
      if (storage->uid == uid) f(*storage);
    }
  };
  each([this](Storage& storage) {
    const bool lost = storage.residency == Residency::Dropped && !storage.ghost;
    if (lost && access::keep(storage)) access::mark_failed(storage, kLost);
    replays_.forget(storage);
  });
  each([this](Storage& storage) {
    if (storage.ghost) free_ghost(storage);
  });
}

// See Note [The mark for "away"]: armed while resident, the hook reports escaping pointers.
void Runtime::watch(Storage& storage) {
  if (limited_ && storage.pins == 0 && storage.residency == Residency::Resident && !storage.escaped &&
      access::intact(storage)) {
    access::arm(storage);
  }
}

void Runtime::free_ghost(Storage& ghost) {
  record_end(ghost, /*dies=*/false, /*leaves=*/true);
  executor_.died(ghost);
  replays_.ended(ghost, Refusal::Unknown);
  swapper_.release(ghost);
  table_.remove(&ghost);
}

// The plan has retained it: see Note [Retention].
void Runtime::let_go(Storage& ghost) {
  executor_.died(ghost);
  ghost.plan = -1;
  ghost.retained = false;
  replays_.let_go(ghost);
}

void Runtime::wait_for_others(ThreadState& thread) {
  const int mine = thread.depth > 0 ? 1 : 0;
  threads_waiting_in_ops_ += mine;
  ++threads_waiting_;
  {
    const WithoutPython without_python(mutex_);
    pins_released_.wait(mutex_);
  }
  --threads_waiting_;
  threads_waiting_in_ops_ -= mine;
  place(thread);
}

}  // namespace chameleon
