#include "runtime.h"

#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

#include "storage_access.h"
#include "tensor_storages.h"

namespace chameleon {

namespace {

// Storages made before a step's first op are told apart from those of that op.
constexpr int32_t kBeforeFirstOp = 1 << 16;

std::string human(size_t bytes) {
  std::ostringstream text;
  text.precision(3);
  if (bytes >= size_t{1} << 30) {
    text << static_cast<double>(bytes) / (1 << 30) << " GiB";
  } else if (bytes >= size_t{1} << 20) {
    text << static_cast<double>(bytes) / (1 << 20) << " MiB";
  } else if (bytes >= size_t{1} << 10) {
    text << static_cast<double>(bytes) / (1 << 10) << " KiB";
  } else {
    text << bytes << " B";
  }
  return text.str();
}

// The core's lock; what was kept while it was held is released after it.
class Lock {
 public:
  explicit Lock(std::mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() {
    mutex_.unlock();
    access::release_kept();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  std::mutex& mutex_;
};

}  // namespace

struct Runtime::ThreadState {
  int depth = 0;        // ops on this thread's stack
  uint64_t serial = 0;  // of its outermost op; 0 outside
  int32_t index = -1;   // in order of appearance
  OpTable ops;
  std::vector<const OpInfo*> frames;  // every RecordFunction on this thread's stack
  ModuleStack modules;
  int64_t epoch = 0;                                 // the session that they belong to
  std::vector<std::pair<Storage*, int64_t>> pinned;  // with their uids: records are reused
  std::vector<std::pair<uint64_t, int64_t>> nodes;   // autograd nodes being evaluated: forward thread, sequence number
  const char* op_name = nullptr;
  bool in_graph = false;  // does the op read a parameter or an activation?
  bool saving = false;    // torch.save reads storages one at a time, each under hold()
  std::vector<std::pair<Storage*, int64_t>> seen_saving;
};

Runtime::ThreadState& Runtime::thread_state() {
  static thread_local ThreadState state;
  return state;
}

Runtime& Runtime::instance() {
  static auto* runtime = new Runtime();
  return *runtime;
}

Runtime::Runtime()
    : device_(make_cpu_device()),
      host_(*device_),
      swapper_(*device_, host_, table_, recorder_),
      executor_(swapper_, table_, recorder_) {
  swapper_.next_use = [this](const Storage& storage) { return executor_.next_use(storage, clock_ops_); };
  swapper_.wait_for_pins = [this] { return wait_for_pins(); };
  access::set_hook(&Runtime::on_access);
  access::set_away_deleter(&Runtime::on_away_deleted);
  access::set_block_deleter(cpu_block_deleter());
  pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork_in_parent(); },
                 [] { instance().after_fork_in_child(); });
}

// ---------------------------------------------------------------------------------------------- the session's calls

void Runtime::open(const Options& options) {
  install_cpu_allocator();
  Lock lock(mutex_);
  TORCH_CHECK(!open_, "Chameleon Lab: the runtime is open already");
  options_ = options;
  limited_ = options.capacity_bytes != SIZE_MAX;
  device_->set_capacity(options.capacity_bytes);
  device_->set_link(options.link_out_bytes_per_s, options.link_in_bytes_per_s);
  device_->reset_peaks();
  host_.set_capacity(options.host_capacity_bytes);
  host_.reset_peak();
  swapper_.min_bytes = options.min_swap_bytes;
  recorder_ = Recorder();
  for (const auto& storage : table_.all()) {
    storage->log_step = storage->resident_step = -1;
    storage->plan = -1;
    storage->label = storage->module = -1;
    storage->categorised = false;
  }
  executor_.unload();
  forward_modules_ = ForwardModules();
  ++epoch_;
  failure_.reset();
  optimizer_stage_ = false;
  ordinal_ = kBeforeFirstOp;
  const size_t resident_bytes = device_->memory_info().resident_bytes;
  if (resident_bytes > options.capacity_bytes) {
    device_->set_capacity(SIZE_MAX);
    TORCH_CHECK(false, "Chameleon Lab: tensors of an earlier session hold ", human(resident_bytes),
                " that cannot move, more than the capacity of ", human(options.capacity_bytes),
                ": delete them, or give a larger capacity");
  }
  device_->keep_free_blocks(true);
  install_callback(limited_);
  open_ = true;
}

// Outputs are needed to know which StorageImpl holds a new block before anything uses it as an input; they cost about
// as much again as inputs, so they are asked for only where storages may have to leave.
void Runtime::install_callback(bool needs_outputs) {
  callback_ = at::addGlobalCallback(at::RecordFunctionCallback(&Runtime::on_op_start, &Runtime::on_op_end)
                                        .needsInputs(true)
                                        .needsOutputs(needs_outputs)
                                        .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void Runtime::close() {
  Lock lock(mutex_);
  if (!open_) return;
  open_ = false;
  executor_.unload();
  device_->set_capacity(SIZE_MAX);
  swapper_.restore_all();
  limited_ = false;
  hand_back();
  // Only now: other threads' ops must come past the hook, and wait there, while storages move.
  at::removeCallback(callback_);
  host_.release_cached();
  device_->keep_free_blocks(false);
}

// Storages go back to torch's own allocator, as if the session had never been. What has a raw pointer outside, is in
// use on another thread, or was never seen by an op stays where it is, and is freed when it dies.
void Runtime::hand_back() {
  std::vector<Storage*> ours;
  for (const auto& storage : table_.all()) ours.push_back(storage.get());
  for (Storage* storage : ours) {
    const bool goes = storage->residency == Residency::Resident && storage->pins == 0 && storage->settled &&
                      !storage->escaped && access::movable(*storage) && access::keep(*storage);
    storage->escaped = true;  // what stays is out of sight from here on: no later session may move it
    if (!goes) continue;
    c10::DataPtr plain = allocate_plain_cpu(storage->bytes);
    device_->copy_now(plain.get(), storage->block, storage->bytes);
    if (!access::intact(*storage)) continue;  // what Python knows by an object is not kept from dying meanwhile
    storage->impl->_mutable_data_ptr_no_checks().release_context();
    storage->impl->set_data_ptr_noswap(std::move(plain));
    destroyed(storage);
  }
}

void Runtime::set_capacity(size_t capacity_bytes) {
  Lock lock(mutex_);
  const bool limited = capacity_bytes != SIZE_MAX;
  if (open_ && limited && !limited_) {
    at::removeCallback(callback_);
    install_callback(true);
  }
  limited_ = limited;
  options_.capacity_bytes = capacity_bytes;
  device_->set_capacity(capacity_bytes);
  // Taking nothing at all makes the room that the new capacity asks for.
  if (limited) {
    if (void* block = swapper_.take(0)) device_->free(block, 0);
  }
}

void Runtime::set_link(double out_bytes_per_s, double in_bytes_per_s) {
  Lock lock(mutex_);
  options_.link_out_bytes_per_s = out_bytes_per_s;
  options_.link_in_bytes_per_s = in_bytes_per_s;
  device_->set_link(out_bytes_per_s, in_bytes_per_s);
}

std::pair<double, double> Runtime::measure_link() {
  constexpr size_t kBytes = 4 << 20;
  constexpr int kCopies = 4;
  Lock lock(mutex_);
  void* here = device_->allocate_host(kBytes);
  void* there = device_->allocate_host(kBytes);
  const auto best = [&](auto copy) {
    double best_s = 1e9;
    for (int i = 0; i < kCopies; ++i) {  // the first one touches the pages
      const EventPtr event = copy();
      device_->host_wait(event);
      best_s = std::min(best_s, clock_.duration(event->end_ticks() - event->start_ticks()));
    }
    return kBytes / best_s;
  };
  const double out = best([&] { return device_->copy_out(there, here, kBytes); });
  const double in = best([&] { return device_->copy_in(here, there, kBytes, nullptr); });
  device_->free_host(here, kBytes);
  device_->free_host(there, kBytes);
  return {out, in};
}

std::shared_ptr<StepLog> Runtime::end_step() {
  Lock lock(mutex_);
  executor_.end_step();
  auto log = recorder_.end_step(table_, [this](const Storage& storage) { return swapper_.movable(storage); });
  executor_.begin_step();
  ordinal_ = kBeforeFirstOp;
  thread_state().modules.clear();  // whatever an interrupt has left there
  return log;
}

std::vector<std::shared_ptr<StepLog>> Runtime::logs() {
  Lock lock(mutex_);
  return {recorder_.finished().begin(), recorder_.finished().end()};
}

void Runtime::load_program(Program program) {
  Lock lock(mutex_);
  executor_.load(std::move(program));
}

void Runtime::unload_program() {
  Lock lock(mutex_);
  executor_.unload();
}

// A tensor made before the session: its bytes move into a block of ours. What torch's own allocator made is owned by
// the storage alone, unless numpy or shared memory has taken the pointer, which the storage knows.
//
// Other threads' ops may be reading the old memory, so it moves when none is running; who else holds the storage may
// have its pointer (DLPack does), so it moves only if all its owners are known.
Runtime::Adopted Runtime::adopt(c10::StorageImpl* impl, Category category, int32_t label, size_t owners, bool trusted) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  Adopted result = Adopted::Known;
  if (!storage) {
    if (impl->device_type() != c10::DeviceType::CPU || !impl->resizable()) return Adopted::Foreign;
    c10::DataPtr& pointer = impl->_mutable_data_ptr_no_checks();
    const c10::DeleterFnPtr deleter = pointer.get_deleter();
    if (deleter != original_cpu_deleter() || pointer.get() != pointer.get_context()) return Adopted::Foreign;
    const size_t bytes = impl->nbytes();
    if (bytes < kTrackedBytes) return Adopted::TooSmall;
    if (!trusted && c10::raw::intrusive_ptr::use_count(impl) > owners) return Adopted::Shared;
    const int mine = thread_state().depth > 0 ? 1 : 0;
    while (threads_in_ops_ > mine) {
      ++threads_waiting_;
      const auto outcome = pins_released_.wait_for(mutex_, std::chrono::seconds(10));
      --threads_waiting_;
      if (outcome == std::cv_status::timeout) return Adopted::Shared;
    }
    const size_t block_bytes = device_->block_bytes(bytes);
    void* block = swapper_.take(block_bytes);
    if (!block) {
      note_failure(block_bytes, thread_state());
      return Adopted::NoRoom;
    }
    device_->copy_now(block, pointer.get(), bytes);
    storage = table_.add(bytes, block_bytes, block);
    void* old = pointer.release_context();
    impl->set_data_ptr_noswap({block, block, cpu_block_deleter(), c10::Device(c10::DeviceType::CPU)});
    deleter(old);
    storage->last_use = clock_ops_;
    recorder_.arrived(*storage);
    recorder_.levels(table_.live_bytes(), device_->memory_info().resident_bytes);
    result = Adopted::New;
  }
  if (!storage->impl) attach(*storage, impl);
  storage->settled = true;
  if (limited_ && storage->pins == 0 && !storage->escaped && access::intact(*storage)) access::arm(*storage);
  storage->category = category;
  storage->categorised = true;
  storage->label = label;
  return result;
}

bool Runtime::restore(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage || storage->residency == Residency::Resident) return true;
  if (swapper_.restore(*storage, Cause::Access)) return true;
  note_failure(storage->block_bytes, thread_state());
  return false;
}

bool Runtime::evict(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage || storage->pins || !swapper_.movable(*storage)) return false;
  if (storage->residency == Residency::Returning) swapper_.restore(*storage, Cause::Access);
  if (storage->residency == Residency::Resident) swapper_.swap_out(*storage, Cause::Evict);
  if (storage->residency == Residency::Leaving) swapper_.finish_swap_out(*storage);
  return storage->residency == Residency::Away;
}

bool Runtime::hold(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage) return true;
  if (storage->residency == Residency::Leaving) swapper_.touch(*storage, false);
  if (storage->residency != Residency::Resident && !swapper_.restore(*storage, Cause::Access)) {
    note_failure(storage->block_bytes, thread_state());
    return false;
  }
  if (++storage->pins == 1 && storage->impl) access::disarm(*storage);
  return true;
}

void Runtime::let_go(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage || storage->pins == 0 || --storage->pins > 0) return;  // resized: another block, and nobody holds it
  if (limited_ && !storage->escaped && access::intact(*storage)) access::arm(*storage);
}

void Runtime::set_saving(bool on) {
  ThreadState& thread = thread_state();
  Lock lock(mutex_);
  thread.saving = on;
  if (on) return;
  for (auto& [storage, uid] : thread.seen_saving) {
    if (storage->uid == uid && storage->pins == 0 && limited_ && !storage->escaped && access::intact(*storage)) {
      access::arm(*storage);
    }
  }
  thread.seen_saving.clear();
}

std::optional<Residency> Runtime::residency(c10::StorageImpl* impl) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  return storage ? std::optional<Residency>(storage->residency) : std::nullopt;
}

Counters Runtime::counters() {
  Lock lock(mutex_);
  Counters counters;
  counters.memory = device_->memory_info();
  counters.live_bytes = table_.live_bytes();
  counters.storages = table_.all().size();
  for (const auto& storage : table_.all()) counters.escaped += storage->escaped;
  counters.host_used_bytes = host_.used_bytes();
  counters.host_reserved_bytes = host_.reserved_bytes();
  counters.host_peak_bytes = host_.peak_bytes();
  counters.step = recorder_.log().index;
  counters.ops_in_step = recorder_.op() + 1;
  return counters;
}

std::optional<Failure> Runtime::take_failure() {
  Lock lock(mutex_);
  auto failure = std::move(failure_);
  failure_.reset();
  return failure;
}

void Runtime::enter_module(int32_t module) { modules(thread_state()).enter(module); }
void Runtime::leave_module() { modules(thread_state()).leave(); }

// Ids of an earlier session mean nothing in this one; a thread may still have them if its forward was cut short.
ModuleStack& Runtime::modules(ThreadState& thread) {
  const int64_t epoch = epoch_.load(std::memory_order_relaxed);
  if (thread.epoch != epoch) {
    thread.epoch = epoch;
    thread.modules.clear();
  }
  return thread.modules;
}

// ------------------------------------------------------------------------------------------------- the allocator's
// side

void* Runtime::allocate(size_t bytes) {
  ThreadState& thread = thread_state();
  Lock lock(mutex_);
  const size_t block_bytes = device_->block_bytes(bytes);
  void* block = swapper_.take(block_bytes);
  if (!block) {
    const std::string message = note_failure(block_bytes, thread);
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }
  Storage* storage = table_.add(bytes, block_bytes, block);
  storage->last_use = clock_ops_;
  storage->module = thread.nodes.empty() ? modules(thread).current()
                                         : forward_modules_.find(thread.nodes.back().first, thread.nodes.back().second);
  storage->category = guess_category(thread);
  const int32_t ordinal = ordinal_++;
  recorder_.levels(table_.live_bytes(), device_->memory_info().resident_bytes);
  recorder_.arrived(*storage);
  recorder_.born(*storage, ordinal);
  executor_.born(*storage, ordinal);
  if (thread.depth > 0) pin(*storage, thread);
  return block;
}

bool Runtime::release(const void* block) {
  Lock lock(mutex_);
  Storage* storage = table_.at(block);
  if (!storage) return false;
  destroyed(storage);
  return true;
}

void Runtime::destroyed(Storage* storage) {
  recorder_.died(*storage);
  if (storage->block) recorder_.left(*storage, recorder_.op() + 1);
  executor_.died(*storage);
  swapper_.release(*storage);
  table_.remove(storage);
}

void Runtime::on_away_deleted(void* storage) {
  Runtime& runtime = instance();
  Lock lock(runtime.mutex_);
  runtime.destroyed(static_cast<Storage*>(storage));
}

Category Runtime::guess_category(ThreadState& thread) {
  if (optimizer_stage_.load(std::memory_order_relaxed)) return Category::Other;
  if (!thread.nodes.empty()) return Category::Other;
  if (!c10::GradMode::is_enabled()) return Category::Other;
  return modules(thread).current() >= 0 || thread.in_graph ? Category::Activation : Category::Input;
}

// ------------------------------------------------------------------------------------------------- the dispatcher's
// side

std::unique_ptr<at::ObserverContext> Runtime::on_op_start(const at::RecordFunction& function) {
  Runtime& runtime = instance();
  ThreadState& thread = thread_state();
  const OpInfo& info = thread.ops.of(function);
  thread.frames.push_back(&info);
  if (info.kind == OpKind::Op) {
    runtime.op_start(function, info, thread);
  } else if (info.kind == OpKind::BackwardNode) {
    thread.nodes.emplace_back(function.forwardThreadId(), function.seqNr());
  }
  return nullptr;
}

void Runtime::on_op_end(const at::RecordFunction& function, at::ObserverContext*) {
  ThreadState& thread = thread_state();
  if (thread.frames.empty()) return;  // it began on another thread
  const OpInfo& info = *thread.frames.back();
  thread.frames.pop_back();
  if (info.kind == OpKind::Op) {
    instance().op_end(function, info, thread);
  } else if (info.kind == OpKind::BackwardNode && !thread.nodes.empty()) {
    thread.nodes.pop_back();
  }
}

void Runtime::op_start(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread) {
  const bool outermost = thread.depth == 0;
  // Strong references, taken before the lock and released after it.
  std::vector<at::Tensor> inner;
  std::vector<c10::Storage> bare;
  for (const c10::IValue& input : function.inputs()) {
    inner_tensors(input, &inner);
    if (C10_UNLIKELY(input.isStorage())) bare.push_back(input.toStorage());
  }
  std::shared_ptr<torch::CapturedTraceback> stack;
  if (outermost && options_.stacks && open_) stack = torch::CapturedTraceback::gather(true, false, false);
  Lock lock(mutex_);
  ++thread.depth;
  if (outermost) {
    thread.serial = static_cast<uint64_t>(++clock_ops_);
    thread.op_name = info.name.c_str();
    thread.in_graph = false;
    if (thread.index < 0) thread.index = next_thread_++;
    ++threads_in_ops_;
    Stage stage;
    int32_t module = modules(thread).current();
    int64_t sequence_nr = function.seqNr();
    if (!thread.nodes.empty()) {
      stage = Stage::Backward;
      sequence_nr = thread.nodes.back().second;
      const int32_t forward = forward_modules_.find(thread.nodes.back().first, sequence_nr);
      if (forward >= 0) module = forward;
    } else if (optimizer_stage_.load(std::memory_order_relaxed) && !c10::GradMode::is_enabled()) {
      stage = Stage::Optimizer;  // with grad mode on it is a closure's forward, or the step has failed
    } else if (c10::GradMode::is_enabled()) {
      stage = Stage::Forward;
      if (sequence_nr >= 0) forward_modules_.record(at::RecordFunction::currentThreadId(), sequence_nr, module);
    } else {
      stage = Stage::NoGrad;
    }
    if (open_) {
      OpRow* row = recorder_.begin_op(info.id, stage, module, sequence_nr, thread.index);
      plan_op_ = executor_.begin_op(info.id, static_cast<uint8_t>(stage));  // frees what is due first
      recorder_.levels(table_.live_bytes(), device_->memory_info().resident_bytes);
      if (row) {
        ordinal_ = 0;
        row->plan_op = plan_op_;
        if (stack) {
          row->stack = static_cast<int32_t>(recorder_.log().stacks.size());
          recorder_.log().stacks.push_back(std::move(stack));
        }
      }
    }
  }
  if (info.reads_inputs) {
    const auto inputs = function.inputs();
    missing_.clear();
    for (size_t i = 0; i < inputs.size(); ++i) use_input(inputs[i], i, info, thread);
    for (const at::Tensor& tensor : inner) {
      if (tensor.has_storage()) use(tensor.storage().unsafeGetStorageImpl(), true, thread);
    }
    for (const c10::Storage& storage : bare) use(storage.unsafeGetStorageImpl(), true, thread);
    // All inputs are pinned by now, so that making room for one can't push out another. The list is this op's own
    // from here on: waiting for another thread lets that thread's ops in.
    if (!missing_.empty()) {
      std::vector<Storage*> missing = std::move(missing_);
      missing_ = {};
      for (Storage* storage : missing) {
        if (storage->failed || swapper_.restore(*storage, Cause::Demand)) continue;
        access::mark_failed(*storage, note_failure(storage->block_bytes, thread));
      }
    }
  }
  if (outermost && open_) executor_.prefetch();
}

void Runtime::use_input(const c10::IValue& value, size_t argument, const OpInfo& info, ThreadState& thread) {
  each_storage(value, [&](c10::StorageImpl* impl) { use(impl, info.writes(argument), thread); });
}

void Runtime::use(c10::StorageImpl* impl, bool writes, ThreadState& thread) {
  Storage* storage = find(impl);
  if (!storage) return;
  if (!storage->impl) attach(*storage, impl);
  storage->settled = true;
  if (storage->residency != Residency::Resident) {
    if (storage->residency == Residency::Leaving) {
      swapper_.touch(*storage, false);
    } else {
      missing_.push_back(storage);
    }
  }
  pin(*storage, thread);
  // A stale host copy must never come back. While the bytes are still away it is the only copy: it goes at op end.
  if (writes && storage->host.data) {
    if (storage->residency == Residency::Resident) {
      swapper_.drop_host(*storage);
    } else {
      storage->host_stale = true;
    }
  }
  storage->last_use = clock_ops_;
  if (storage->category == Category::Activation || storage->category == Category::Parameter) thread.in_graph = true;
  if (open_) recorder_.used(*storage, true, writes);
}

void Runtime::pin(Storage& storage, ThreadState& thread) {
  if (storage.pinned_by == thread.serial) return;
  storage.pinned_by = thread.serial;
  ++storage.pins;
  thread.pinned.emplace_back(&storage, storage.uid);
  if (storage.impl && storage.residency == Residency::Resident) access::disarm(storage);
}

void Runtime::op_end(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread) {
  Lock lock(mutex_);
  if (function.needsOutputs()) {
    for (const c10::IValue& output : function.outputs()) attach_output(output, !info.raw_written_output);
  }
  if (--thread.depth > 0) return;
  --threads_in_ops_;
  unpin_all(thread);
  thread.serial = 0;
  if (threads_waiting_ > 0) pins_released_.notify_all();  // those who wait for room, and adoption
  if (!open_) return;
  executor_.end_op(plan_op_);
  recorder_.end_op();
}

void Runtime::unpin_all(ThreadState& thread) {
  for (auto& [storage, uid] : thread.pinned) {
    if (storage->uid != uid) continue;  // died inside the op
    if (storage->pinned_by == thread.serial) storage->pinned_by = 0;
    if (--storage->pins > 0) continue;
    if (storage->failed) access::clear_failed(*storage);
    const bool stale = std::exchange(storage->host_stale, false);
    if (storage->residency != Residency::Resident) continue;  // bringing it in failed, and so did the op
    const bool intact = access::intact(*storage);
    if (stale || !intact) swapper_.drop_host(*storage);
    // The op has taken the DataPtr away (copy-on-write): neither writes nor raw accesses are seen until it is back.
    if (storage->impl && !intact) storage->escaped = true;
    // See Note [The mark for "away"]: armed while resident, the hook reports escaping pointers.
    if (limited_ && intact && !storage->escaped) access::arm(*storage);
  }
  thread.pinned.clear();
}

void Runtime::attach_output(const c10::IValue& value, bool settled) {
  each_storage(value, [&](c10::StorageImpl* impl) {
    Storage* storage = find(impl);
    if (!storage) return;
    if (!storage->impl) attach(*storage, impl);
    storage->settled |= settled;
  });
}

void Runtime::attach(Storage& storage, c10::StorageImpl* impl) {
  storage.impl = impl;
  storage.weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl);
}

Storage* Runtime::find(c10::StorageImpl* impl) const {
  const c10::DataPtr& pointer = impl->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() == cpu_block_deleter()) {
    Storage* storage = table_.at(pointer.get());
    // The DataPtr has moved to another StorageImpl: follow it.
    if (storage && storage->impl && storage->impl != impl) {
      storage->impl = impl;
      storage->weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl);
    }
    return storage;
  }
  return access::away_storage(impl);
}

// ------------------------------------------------------------------------------------------------- raw access

void Runtime::on_access(c10::StorageImpl* impl) { instance().accessed(impl); }

void Runtime::accessed(c10::StorageImpl* impl) {
  ThreadState& thread = thread_state();
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage) return;
  if (thread.saving) {
    // torch has cleared the hook, or will: it is armed again when saving ends.
    thread.seen_saving.emplace_back(storage, storage->uid);
    return;
  }
  if (storage->residency == Residency::Leaving) swapper_.touch(*storage, true);
  if (storage->residency != Residency::Resident && !swapper_.restore(*storage, Cause::Access)) {
    const std::string message = note_failure(storage->block_bytes, thread);
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }
  const bool own_op = thread.depth > 0 && storage->pinned_by == thread.serial;
  if (!own_op) {
    storage->escaped = true;
    swapper_.drop_host(*storage);  // whoever has the pointer may write through it
  }
}

// ------------------------------------------------------------------------------------------------- pressure

bool Runtime::wait_for_pins() {
  const int mine = thread_state().depth > 0 ? 1 : 0;
  // If every other thread inside an op waits as well, none of them will let go.
  if (threads_in_ops_ - mine - threads_waiting_ <= 0) return false;
  ++threads_waiting_;
  const bool released = pins_released_.wait_for(mutex_, std::chrono::seconds(10)) == std::cv_status::no_timeout;
  --threads_waiting_;
  return released;
}

std::string Runtime::note_failure(size_t request_bytes, const ThreadState& thread) {
  Failure failure;
  failure.op = thread.depth > 0 && thread.op_name ? thread.op_name : "an allocation between ops";
  failure.request_bytes = request_bytes;
  failure.capacity_bytes = options_.capacity_bytes;
  for (const auto& storage : table_.all()) {
    if (storage->residency == Residency::Away) continue;
    if (storage->pins > 0) {
      failure.pinned_bytes += storage->block_bytes;
    } else if (!swapper_.movable(*storage)) {
      failure.unmovable_bytes += storage->block_bytes;
    }
  }
  failure_ = failure;
  const size_t needed = failure.request_bytes + failure.pinned_bytes + failure.unmovable_bytes;
  if (swapper_.host_full()) {
    return "Chameleon Lab: the host memory for storages that are away is used up: host_capacity is " +
           human(options_.host_capacity_bytes) + ", and " + failure.op + " needs " + human(failure.request_bytes) +
           " more room on the device. Give a larger host_capacity, or a larger capacity.";
  }
  return "Chameleon Lab: the capacity of " + human(failure.capacity_bytes) + " is below the floor: " + failure.op +
         " needs " + human(needed) + " at once (" + human(failure.request_bytes) + " asked for, " +
         human(failure.pinned_bytes) + " in use by the op, " + human(failure.unmovable_bytes) +
         " in storages that cannot leave). Give a capacity of at least that, or make the op's tensors smaller "
         "(a smaller batch, or the loss computed in chunks).";
}

// ------------------------------------------------------------------------------------------------- fork

void Runtime::before_fork() {
  mutex_.lock();
  device_->drain();
}

void Runtime::after_fork_in_parent() { mutex_.unlock(); }

// The child has no copy engines, and none of the parent's budget is its own: it records and plans nothing, and still
// brings back what is away when it is used.
void Runtime::after_fork_in_child() {
  open_ = false;
  device_->after_fork_in_child();
  device_->set_capacity(SIZE_MAX);
  executor_.unload();
  threads_in_ops_ = thread_state().depth > 0 ? 1 : 0;
  threads_waiting_ = 0;
  mutex_.unlock();
}

}  // namespace chameleon
