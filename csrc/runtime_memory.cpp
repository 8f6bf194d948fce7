// The runtime's memory: adoption, the allocator's requests, raw access, pressure.
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/ParallelGuard.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "late_deaths.h"
#include "marks.h"
#include "message_of.h"
#include "regions.h"
#include "runtime_internal.h"

namespace chameleon {

namespace {
constexpr std::chrono::seconds kPatience(10);  // for ops of other threads
}

// A tensor made before the session: its bytes move into a block of ours. What torch's own allocator made is owned by
// the storage alone, unless numpy or shared memory has taken the pointer, which the storage knows.
//
// Other threads' ops may be reading the old memory, so it moves when none is running; who else holds the storage may
// have its pointer (DLPack does), so it moves only if all its owners are known.
Runtime::Adopted Runtime::adopt(c10::StorageImpl* impl, Category category, int32_t label, size_t owners, bool trusted,
                                bool evict_last) {
  Lock lock(mutex_);
  if (!find(impl) && !wait_for_other_ops()) return Adopted::Shared;
  Adopted result = Adopted::Known;
  if (!find(impl)) {
    const bool unbacked = options_.unbacked && impl->device_type() == c10::DeviceType::Meta;
    result = unbacked ? adopt_unbacked(impl) : adopt_memory(impl, owners, trusted);
    if (result != Adopted::New && result != Adopted::Known) return result;
  }
  Storage* const storage = find(impl);
  if (result == Adopted::New) recorder_.arrived(*storage);
  if (!storage->impl) attach(*storage, impl);
  storage->settled = true;
  if (!storage->unbacked && storage->pins == 0 && !storage->escaped && access::intact(*storage)) access::arm(*storage);
  storage->evict_last |= evict_last;
  categorize(*storage, category, label);
  if (result != Adopted::New) return result;
  if (limited_ && !options_.unbacked && !swapper_.make_room(0)) {
    note_failure(storage->block_bytes, thread_state());
    return Adopted::NoRoom;
  }
  recorder_.levels(table_.live_bytes(), resident_bytes());
  return result;
}

Runtime::Adopted Runtime::adopt_unbacked(c10::StorageImpl* impl) {
  if (impl->nbytes() < options_.min_tracked_bytes) return Adopted::TooSmall;
  add_unbacked(impl);
  return Adopted::New;
}

// Known: an op of another thread has made it ours meanwhile.
Runtime::Adopted Runtime::adopt_memory(c10::StorageImpl* impl, size_t owners, bool trusted) {
  if (impl->device() != device_->torch_device() || !impl->resizable()) return Adopted::Foreign;
  c10::DataPtr& pointer = impl->_mutable_data_ptr_no_checks();
  const c10::DeleterFnPtr deleter = pointer.get_deleter();
  if (deleter != device_->plain_deleter() || pointer.get() != pointer.get_context()) return Adopted::Foreign;
  const size_t bytes = impl->nbytes();
  if (bytes < tracked_bytes_) return Adopted::TooSmall;
  if (!trusted && c10::raw::intrusive_ptr::use_count(impl) > owners) return Adopted::Shared;
  const size_t block_bytes = device_->block_bytes(bytes);
  const int lane = device_->lane();
  const bool as_it_is = device_->take_over(pointer.get(), block_bytes);
  void* block = as_it_is ? pointer.get() : swapper_.take(block_bytes, lane);
  if (!block) {
    note_failure(block_bytes, thread_state());
    return Adopted::NoRoom;
  }
  // Making room may have waited for other threads, and let their ops in.
  const bool alone = as_it_is || wait_for_other_ops();
  if (!as_it_is && (find(impl) || !alone || pointer.get_deleter() != deleter || impl->nbytes() != bytes)) {
    device_->free(block, block_bytes);
    return find(impl) ? Adopted::Known : Adopted::Shared;
  }
  if (!as_it_is) device_->copy_now(block, pointer.get(), bytes);
  Storage* const storage = table_.add(bytes, block_bytes, block);
  storage->lane = static_cast<uint8_t>(lane);
  storage->adopted = storage->first_block = as_it_is;
  storage->lanes = as_it_is ? ~Lanes{0} : 0;  // see Note [Adopted blocks]
  void* old = pointer.release_context();
  impl->set_data_ptr_noswap({block, block, block_deleter_, device_->torch_device()});
  if (!as_it_is) deleter(old);
  storage->last_use = clock_ops_;
  return Adopted::New;
}

void Runtime::categorize(Storage& storage, Category category, int32_t label) {
  storage.category = category;
  storage.categorized = true;
  storage.label = label;
  // A gradient of this name may be another storage in the next step.
  const bool lasts = category != Category::Gradient && label >= 0 && label < static_cast<int32_t>(label_hashes_.size());
  storage.anchor = lasts ? label_hashes_[label] : 0;
}

// Note [DDP before torch 2.13]
// When a gradient has been accumulated, DDP asks torch whether it is a view of its bucket (Reducer::check_grad_layout).
// That reads the DataPtr of both, though no byte, and torch without the hook raises an error if either is away. So no
// error is set on a bucket, whose pointer leads to inaccessible pages all the same; and a gradient is brought in when
// its accumulation begins. Nothing that could evict it runs from then on until DDP has asked. Every forward of DDP
// calls begin_buckets(), also where the buckets are older than the session.
void Runtime::begin_buckets() {
  asks_for_views_ = !access::has_hook();
  each_known([](Runtime& runtime) {
    Lock lock(runtime.mutex_);
    runtime.buckets_from_uid_ = runtime.table_.next_uid();
  });
}

void Runtime::settle_buckets() {
  each_known([](Runtime& runtime) {
    Lock lock(runtime.mutex_);
    for (const auto& storage : runtime.table_.all()) {
      if (storage->uid < runtime.buckets_from_uid_ || storage->unseen || storage->pins > 0) continue;
      if (!access::movable(*storage) || (access::has_hook() && !access::armed(*storage))) continue;
      storage->settled = storage->bucket = true;
    }
  });
}

void Runtime::set_evict_last(const std::unordered_set<int64_t>& uids) {
  Lock lock(mutex_);
  for (const auto& storage : table_.all()) storage->evict_last = uids.contains(storage->uid);
}

bool Runtime::restore(c10::StorageImpl* impl) {
  const Refusals refusals(*this, thread_state());
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage || storage->residency == Residency::Resident) return true;
  place(thread_state());
  return fetch(*storage);
}

// For who asks from outside of an op; false where there is no room.
bool Runtime::fetch(Storage& storage) {
  try {
    bring_in(storage, Cause::Access, thread_state());
    watch(storage);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
}

bool Runtime::evict(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage) return false;
  place(thread_state());
  if (storage->residency == Residency::Resident) swapper_.have_host_memory(*storage);
  return (storage = find(impl)) && send_out(*storage);
}

bool Runtime::send_out(Storage& storage) {
  if (storage.pins || !swapper_.movable(storage)) return false;
  if (storage.residency == Residency::Returning) swapper_.restore(storage, Cause::Access);
  if (storage.residency == Residency::Resident) swapper_.swap_out(storage, Cause::Evict);
  if (storage.residency == Residency::Leaving) swapper_.finish_swap_out(storage);
  return storage.residency == Residency::Away;
}

void Runtime::evict_always(std::optional<uint64_t> seed) {
  Lock lock(mutex_);
  TORCH_CHECK(open_ && limited_, "Chameleon Lab: evicting always needs an open session with a capacity");
  evicts_always_ = true;
  dice_.reset();
  if (seed) dice_.emplace(static_cast<std::mt19937::result_type>(*seed));
  tracked_bytes_ = 1;
}

std::vector<Transition> Runtime::take_transitions() {
  Lock lock(mutex_);
  auto kept = std::exchange(swapper_.transitions, std::vector<Transition>());
  return kept ? std::move(*kept) : std::vector<Transition>();
}

void Runtime::send_all_out() {
  for (const auto& storage : table_.all()) {
    if (storage->residency == Residency::Away || (dice_ && (*dice_)() % 8 != 0)) continue;
    try {
      send_out(*storage);
    } catch (const c10::Error&) {  // it came back, and could not: whoever uses it is told
    }
  }
}

bool Runtime::hold(c10::StorageImpl* impl) {
  const Refusals refusals(*this, thread_state());
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage || !wait_while_blank(*storage, thread_state())) return true;
  place(thread_state());
  if (storage->residency == Residency::Leaving) swapper_.touch(*storage, false);
  if (storage->residency != Residency::Resident && !fetch(*storage)) return false;
  follow_replays(*storage, device_->lane(), /*writes=*/false);
  hold_here(*storage);
  return true;
}

void Runtime::hold_here(Storage& storage) {
  ++storage.holds;
  ++storage.pins;
  if (storage.impl && access::intact(storage)) access::disarm(storage);
}

void Runtime::let_go(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage || storage->holds == 0) return;  // resized: another block, and nobody holds it
  --storage->holds;
  unpin(*storage);
  if (C10_UNLIKELY(evicts_always_)) send_out(*storage);
}

// While it lives, the storage is taken for given out: it does not move where others get the lock.
class Runtime::Staying {
 public:
  explicit Staying(Storage& storage) : storage_(storage), uid_(storage.uid) { ++storage.loans; }
  ~Staying() {
    if (!alive() || --storage_.loans > 0) return;
    Runtime& owner = *storage_.owner;
    if (owner.threads_waiting_ > 0) owner.pins_released_.notify_all();
  }
  Staying(const Staying&) = delete;
  Staying& operator=(const Staying&) = delete;

  bool alive() const { return storage_.uid == uid_ && storage_.loans > 0; }  // records are reused

 private:
  Storage& storage_;
  const int64_t uid_;
};

std::optional<Loan> Runtime::lend(c10::StorageImpl* impl) {
  ThreadState& thread = thread_state();
  const Refusals refusals(*this, thread);
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage || storage->unbacked) return std::nullopt;
  const Loan loan{this, storage, storage->uid};
  Staying staying(*storage);
  HostWaits waits;
  bring_for_pointer(*storage, thread, &waits);
  expect_writes(*storage, thread, &waits);
  wait_for(waits);
  if (!staying.alive()) return std::nullopt;  // another thread has resized it
  ++storage->loans;
  hold_here(*storage);
  return loan;
}

// On any thread.
void Loan::end() const {
  Lock lock(owner->mutex_);
  if (storage->uid != uid || storage->loans == storage->loans_ended) return;  // it has died, or lives on as a ghost
  ++storage->loans_ended;
  if (owner->runs_behind_) {
    owner->some_loans_ended_ = true;
  } else {
    owner->take_loans_back(*storage, 1);
  }
}

void Runtime::take_loans_back(Storage& storage, int32_t count) {
  storage.loans -= count;
  storage.loans_ended -= count;
  if (storage.loans == 0 && threads_waiting_ > 0) pins_released_.notify_all();
}

// Without the core's lock while the host waits: what the GPU was given may be a callback that ends another loan, and
// waits for the lock. Such a loan is taken back at the end of the next step.
void Runtime::take_loans_back() {
  struct Ended {
    Storage* storage;
    int64_t uid;
    int32_t count;
  };
  std::vector<Ended> ended;
  {
    Lock lock(mutex_);
    if (!some_loans_ended_) return;
    for (const auto& storage : table_.all()) {
      if (storage->loans_ended > 0) ended.push_back({storage.get(), storage->uid, storage->loans_ended});
    }
    some_loans_ended_ = false;
  }
  try {
    device_->host_wait_for_compute();
  } catch (const std::exception&) {  // nothing is known to be over: as before
    Lock lock(mutex_);
    some_loans_ended_ = true;
    return;
  }
  Lock lock(mutex_);
  for (const Ended& each : ended) {
    if (each.storage->uid == each.uid) take_loans_back(*each.storage, each.count);
  }
}

const void* Runtime::identity(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage || storage->unbacked) return nullptr;
  if (!storage->mark) {
    if (!limited_ && storage->block) return storage->block;  // nothing moves, and marks may have no place
    storage->mark = marks::take(storage->bytes);
  }
  return storage->mark;
}

std::optional<Residency> Runtime::residency(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  return storage ? std::optional<Residency>(storage->residency) : std::nullopt;
}

void* Runtime::allocate(size_t bytes) {
  ThreadState& thread = thread_state();
  const Refusals refusals(*this, thread);
  Lock lock(mutex_);
  place(thread);
  const size_t block_bytes = device_->block_bytes(bytes);
  const int lane = device_->lane();
  void* block = swapper_.take(block_bytes, lane);
  const OpPlace& here = place(thread);  // other threads may have had the lock meanwhile
  if (!block) {
    check_device();
    const std::string message = note_failure(block_bytes, thread);
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }
  Storage* storage = nullptr;
  try {
    storage = table_.add(bytes, block_bytes, block, thread.stack.replaying > 0);
    storage->lane = static_cast<uint8_t>(lane);
    begin_life(*storage, here, thread);
  } catch (...) {  // there is no memory for its records
    if (storage) {
      destroyed(storage);
    } else {
      device_->free(block, block_bytes);
    }
    throw;
  }
  return block;
}

void Runtime::begin_life(Storage& storage, const OpPlace& here, ThreadState& thread) {
  if (!thread.stack.nodes.empty()) storage.backward = backwards_;
  // The session has ended while this was asked for. The next one must not move what ops now read without being seen.
  storage.escaped = !open_;
  if (storage.scratch) {
    recorder_.levels(table_.live_bytes(), resident_bytes());
  } else {
    const int32_t ordinal = describe_birth(storage, thread);
    executor_.born(storage, here.plan_op, ordinal);
  }
  if (thread.depth > 0) pin(storage, thread);
}

int32_t Runtime::describe_birth(Storage& storage, ThreadState& thread) {
  storage.last_use = clock_ops_;
  storage.module = thread.stack.nodes.empty()
                       ? modules(thread).current()
                       : forward_modules_.find(thread.stack.nodes.back().first, thread.stack.nodes.back().second);
  storage.category = guess_category(thread);
  const int32_t ordinal = place(thread).ordinal++;
  recorder_.levels(table_.live_bytes(), resident_bytes());
  recorder_.arrived(storage);
  recorder_.born(storage, ordinal);
  return ordinal;
}

size_t Runtime::resident_bytes() const { return options_.unbacked ? table_.live_bytes() : device_->resident_bytes(); }

bool Runtime::release(const void* block) {
  Lock lock(mutex_);
  Storage* storage = table_.at(block);
  if (!storage) return false;
  place_death();
  destroyed(storage);
  return true;
}

// In a tensor's deleter, where nothing may be thrown.
void Runtime::destroyed(Storage* storage) {
  const bool retained = !closing_ && executor_.retains(*storage);
  const int32_t plan = storage->plan;
  const bool ghost = replays_.died(*storage, retained);
  if (!storage->scratch) {
    record_end(*storage, /*dies=*/true, /*leaves=*/!ghost);
    if (!ghost || !retained) executor_.died(*storage);
  }
  if (ghost) {
    table_.make_ghost(storage);
    if (!retained) return;
    try {
      executor_.retained(*storage, plan);
    } catch (const std::bad_alloc&) {
      let_go(*storage);
    }
    return;
  }
  if (!storage->unbacked) swapper_.release(*storage);
  table_.remove(storage);
}

void Runtime::record_end(Storage& storage, bool dies, bool leaves) {
  try {
    if (dies) recorder_.died(storage);
    if (leaves && storage.block) recorder_.left(storage, recorder_.op() + 1);
  } catch (const std::bad_alloc& error) {
    recorder_.cut_short(text_of(error));
  }
}

// Deaths belong to the op that the thread runs. Where there is no memory for the thread's own record, to none.
void Runtime::place_death() {
  try {
    place(thread_state());
  } catch (const std::bad_alloc&) {
    recorder_.resume(newest_.op, /*running=*/false);
  }
}

bool Runtime::make_way(size_t bytes) {
  Lock lock(mutex_);
  if (!limited_) return false;
  place(thread_state());
  if (!swapper_.evict_any(bytes)) return false;
  make_way_while_refused(bytes);
  return true;
}

void Runtime::make_way_where_refused(size_t bytes) {
  if (!is_open()) return;
  Lock lock(mutex_);
  if (!limited_) return;
  place(thread_state());
  make_way_while_refused(bytes);
}

void Runtime::make_way_while_refused(size_t bytes) {
  while (device_->refuses(bytes) && swapper_.evict_any(bytes)) {
  }
}

// Under the lock, so that it does not leave meanwhile.
bool Runtime::recorded(const c10::DataPtr& pointer, const void* stream, const std::function<void()>& tell_torch) {
  Lock lock(mutex_);
  tell_torch();
  Storage* storage = access::away_storage(pointer);
  if (!storage && pointer.get_deleter() == block_deleter_) storage = table_.at(pointer.get());
  if (!storage || storage->owner != this) return false;
  const int lane = device_->lane_of(stream);
  if (lane >= 0) storage->recorded |= lane_bit(lane);
  return true;
}

void Runtime::on_away_deleted(void* address) {
  if (late_deaths::put_off(&Runtime::on_away_deleted, address)) return;
  auto* storage = static_cast<Storage*>(address);
  Runtime& runtime = *storage->owner;
  Lock lock(runtime.mutex_);
  runtime.place_death();
  runtime.destroyed(storage);
}

Category Runtime::guess_category(ThreadState& thread) {
  if (optimizer_stage_.load(std::memory_order_relaxed)) return Category::Other;
  if (!thread.stack.nodes.empty()) return Category::Other;
  if (!c10::GradMode::is_enabled()) return Category::Other;
  return modules(thread).current() >= 0 || thread.in_graph ? Category::Activation : Category::Input;
}

void Runtime::on_access(c10::StorageImpl* impl) {
  const bool by_hook = true;
  if (Runtime* owner = owning(impl)) owner->accessed(impl, by_hook);
}

namespace {

// torch.tensor([...]) and the like fill what they have just allocated, and keep no pointer. Nothing else turns all of
// these off (see internal_new_from_data in torch).
bool torch_fills_a_new_tensor() {
  constexpr c10::DispatchKeySet kOff({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                      c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                      c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::DeferredInit,
                                      c10::DispatchKey::Functionalize, c10::DispatchKey::ADInplaceOrView});
  return c10::impl::tls_local_dispatch_key_set().excluded_.has_all(kOff);
}

}  // namespace

// Is the pointer for an op that uses the storage, and is done with it when it ends?
bool Runtime::taken_by_op(Storage& storage, const ThreadState& thread, bool by_hook) {
  if (storage.residency != Residency::Resident || storage.pins == 0) return false;
  // A kernel's workers are on no op's thread.
  const bool by_worker = c10::ParallelGuard::is_enabled() || at::in_parallel_region();
  if (by_worker || thread.has_pinned(storage)) {
    if (!by_hook) storage.lanes = ~Lanes{0};  // Python code inside of an op may use it along any of them
    return true;
  }
  // Its collective's: gloo takes the address on a thread of its own.
  return by_hook && storage.flights > 0;
}

bool Runtime::accessed(c10::StorageImpl* impl, bool by_hook) {
  ThreadState& thread = thread_state();
  const Refusals refusals(*this, thread);
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage) return false;
  // The op that reads it next settles it and arms it again; until then it cannot move.
  if (by_hook && !storage->settled && thread.depth == 0 && torch_fills_a_new_tensor()) return true;
  if (taken_by_op(*storage, thread, by_hook)) return true;
  HostWaits waits;
  // Only when the bytes are there it stays for good: until then ops arm the hook again, and others wait as well.
  Staying staying(*storage);
  bring_for_pointer(*storage, thread, &waits);
  const bool used = thread.has_pinned(*storage);
  const bool by_region = !used && thread.depth > 0 && regions::depth() > 0;
  const bool for_good = !used && !by_region;
  if (by_region) {  // its own until it ends, like what it was given
    pin(*storage, thread);
    if (open_) recorder_.used(*storage, /*reads=*/true, /*writes=*/true);
  }
  if (!used) expect_writes(*storage, thread, by_region ? nullptr : &waits);
  wait_for(waits);
  if (for_good && staying.alive()) storage->escaped = true;
  return true;
}

void Runtime::bring_for_pointer(Storage& storage, ThreadState& thread, HostWaits* waits) {
  if (!wait_while_blank(storage, thread)) return;
  place(thread);
  if (storage.residency == Residency::Leaving) swapper_.touch(storage, true);
  EventPtr arrived;
  if (storage.residency != Residency::Resident) bring_in(storage, Cause::Access, thread, &arrived);
  if (arrived) waits->emplace_back(arrived, Order::HostRead);
  storage.lanes = ~Lanes{0};  // whoever has the pointer may use it along any of them
}

// Whoever has the pointer may write through it: along the thread's lane, or anyhow where there are `waits`.
void Runtime::expect_writes(Storage& storage, ThreadState& thread, HostWaits* waits) {
  restore_dependents(storage, Cause::Access, thread);
  if (waits) {
    host_follows(storage, waits);
  } else if (storage.made_by | storage.replays_read) {
    follow_replays(storage, thread.lane, /*writes=*/true);
  }
  replays_.ended(storage, Refusal::Foreign);
  swapper_.drop_host(storage);
}

// By the host, for a storage that cannot leave meanwhile: other threads' ops go on.
void Runtime::wait_for(const HostWaits& waits) {
  if (waits.empty()) return;
  const Unlocked unlocked(mutex_);
  for (const auto& [event, why] : waits) device_->host_wait(event, why);
}

bool Runtime::on_mark_read(const void* address) {
  bool shown = false;
  each_known([&](Runtime& runtime) { shown = shown || runtime.show(address); });
  return shown;
}

// In a signal's handler. The thread holds no lock of ours: our own code never reads what marks point at.
bool Runtime::show(const void* address) {
  if (!device_->torch_device().is_cpu()) return false;  // the host cannot read a device's memory
  bool dropped = false;
  if (show_bytes(address, &dropped)) return true;
  if (!dropped) return false;
  // The handler's stack may be too small for an op, and the op it interrupts is none that we may take part in.
  try {
    std::thread([this, address] { make_behind(address); }).join();
  } catch (const std::system_error&) {  // the system has no thread left
    return false;
  }
  return show_bytes(address, &dropped);
}

bool Runtime::show_bytes(const void* address, bool* dropped) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!mutex_.try_lock()) {
    if (std::chrono::steady_clock::now() > until) return false;
    sched_yield();
  }
  Storage* storage = behind(address);
  *dropped = storage && storage->residency == Residency::Dropped;
  const bool shown = storage && access::show_at_mark(*storage, target());
  mutex_.unlock();
  return shown;
}

// The bytes of a dropped storage, which come to stay.
void Runtime::make_behind(const void* address) {
  Lock lock(mutex_);
  Storage* storage = behind(address);
  if (!storage || storage->residency != Residency::Dropped || !access::keep(*storage)) return;
  try {
    fetch(*storage);
  } catch (const std::exception&) {  // the op cannot be replayed: whoever reads is told by the fault
  }
}

Storage* Runtime::behind(const void* address) const {
  for (const auto& storage : table_.all()) {
    const auto* mark = static_cast<const char*>(storage->mark);
    if (mark && address >= mark && address < mark + storage->bytes) return storage.get();
  }
  return nullptr;
}

bool Runtime::wait_for_pins() {
  if (late_deaths::any()) {
    bool died;
    {
      const Unlocked unlocked(mutex_);
      died = late_deaths::settle();
    }
    place(thread_state());
    if (died) return true;
  }
  const int mine = thread_state().depth > 0 ? 1 : 0;
  // If every other thread inside an op waits as well, none of them will let go.
  if (threads_in_ops_ - mine - threads_waiting_in_ops_ <= 0) return settle_unseen();
  threads_waiting_in_ops_ += mine;
  ++threads_waiting_;
  bool released;
  {
    const WithoutPython without_python(mutex_);
    released = pins_released_.wait_for(mutex_, kPatience) == std::cv_status::no_timeout;
  }
  --threads_waiting_;
  threads_waiting_in_ops_ -= mine;
  place(thread_state());  // other threads' ops have come between
  return released || settle_unseen();
}

// Another thread's ops may run inside of one that began before the session. By and by that has ended.
bool Runtime::settle_unseen() {
  const auto unseen = [](const auto& storage) { return storage->unseen; };
  if (std::none_of(table_.all().begin(), table_.all().end(), unseen)) return false;
  const int mine = thread_state().depth > 0 ? 1 : 0;
  threads_waiting_in_ops_ += mine;
  ++threads_waiting_;
  // By value: another session may open meanwhile, and waiting reads it without the lock.
  for (auto until = unseen_until_; std::chrono::steady_clock::now() < until; until = unseen_until_) {
    const WithoutPython without_python(mutex_);
    pins_released_.wait_until(mutex_, until);
  }
  --threads_waiting_;
  threads_waiting_in_ops_ -= mine;
  place(thread_state());
  for (const auto& storage : table_.all()) {
    if (std::exchange(storage->unseen, false)) storage->settled = true;
  }
  return true;
}

bool Runtime::wait_for_other_ops() {
  const int mine = thread_state().depth > 0 ? 1 : 0;
  ++threads_waiting_;
  const auto alone = [&] { return threads_in_ops_ <= mine; };
  bool none;
  do {
    const WithoutPython without_python(mutex_);
    none = pins_released_.wait_for(mutex_, kPatience, alone);
  } while (none && !alone());
  --threads_waiting_;
  return none;
}

std::string Runtime::full_words() const {
  if (!disk_) {
    return "the host memory for storages that are away is used up: host_capacity is " +
           human(options_.host_capacity_bytes);
  }
  const std::string why = disk_->refusal();
  return "the disk " + options_.disk.folder + " takes no more storages: " +
         (why.empty() ? human(disk_->used_bytes()) + " of the " + human(options_.disk.capacity_bytes) +
                            " that it is given are in use"
                      : why);
}

// Which storage is meant, and what keeps it.
std::string Runtime::kept_words(const Storage& storage) const {
  const char* why = storage.loans > 0  ? " which a numpy array or another library shows"
                    : storage.escaped  ? " to which a raw pointer was taken"
                    : !storage.settled ? " which no op has read yet"
                                       : "";
  return ", such as " + name_of(storage) + why;
}

std::string Runtime::note_failure(size_t request_bytes, ThreadState& thread) {
  if (thread.refused_bytes == 0) thread.refused_bytes = request_bytes;
  Failure failure;
  failure.op = thread.depth > 0 && thread.op_name ? thread.op_name : "an allocation between ops";
  failure.request_bytes = request_bytes;
  failure.capacity_bytes = options_.capacity_bytes;
  const Storage* largest_kept = nullptr;
  for (const auto& storage : table_.all()) {
    if (!storage->block) continue;
    if (storage->pins > 0) {
      failure.pinned_bytes += storage->block_bytes;
    } else if (!swapper_.movable(*storage)) {
      failure.unmovable_bytes += storage->block_bytes;
      if (!largest_kept || storage->block_bytes > largest_kept->block_bytes) largest_kept = storage.get();
    }
  }
  const MemoryInfo memory = device_->memory_info();
  const size_t used_bytes = memory.resident_bytes + memory.other_bytes;
  const size_t free_bytes = memory.capacity_bytes - std::min(memory.capacity_bytes, used_bytes);
  failure.other_bytes = memory.other_bytes;
  // With room enough and refused all the same, none of that room is of use.
  if (memory.capacity_bytes != SIZE_MAX) {
    failure.useless_bytes = request_bytes <= free_bytes ? free_bytes : std::min(free_bytes, memory.split_bytes);
  }
  failure.below_floor = !swapper_.host_full();
  failure.step = recorder_.log().index;
  failure.ops = recorder_.ops();
  recorder_.log().fails(failure.ops - 1);
  failure.since = recorder_.log().failed_before + 1;
  if (failure.below_floor) {
    failure.needs = "Chameleon Lab: the capacity of " + human(failure.capacity_bytes) +
                    " is below the floor: " + failure.op + " needs " + human_enough(failure.needed_bytes()) +
                    " at once (" + human(failure.request_bytes) + " asked for, " + human(failure.pinned_bytes) +
                    " in use by the op, " + human(failure.unmovable_bytes) + " in storages that cannot leave";
    if (largest_kept) failure.needs += kept_words(*largest_kept);
    if (failure.other_bytes > 0) {
      failure.needs += ", " + human(failure.other_bytes) + " taken by others, such as libraries' work spaces";
    }
    if (failure.useless_bytes > 0) {
      failure.needs += ", " + human(failure.useless_bytes) + " free, but not to be had in one piece";
    }
    failure.needs += ").";
    if (const std::string& why = swapper_.copy_failure(); !why.empty()) {
      failure.needs += " Storages cannot leave: their copies to the host cannot be begun (" + why + ").";
    }
    failure.advice =
        "Give a capacity of at least that: what other ops of the step need is not known yet, and may be more. "
        "`chameleon run SCRIPT` without --capacity says in its report how much is enough, after two steps already. Or "
        "make the op's tensors smaller (a smaller batch, or the loss computed in chunks).";
  } else {
    failure.needs = "Chameleon Lab: " + full_words() + ", and " + failure.op + " needs " +
                    human(failure.request_bytes) + " more room on the device.";
    failure.advice = disk_ ? "Give a disk with more room, or a larger capacity."
                           : "Give a larger host_capacity, or a larger capacity.";
  }
  if (failures_.size() == kMostFailures) failures_.erase(failures_.begin());
  failures_.push_back(failure);
  return failure.message();
}

}  // namespace chameleon
