// The dispatcher's hook: what happens when an op starts and when it ends.
#include <ATen/EmptyTensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "collectives.h"
#include "message_of.h"
#include "overwriting.h"
#include "runtime_internal.h"
#include "tensor_storages.h"

namespace chameleon {

namespace {

// Ranks and dtypes of an op's first tensors; no sizes.
uint32_t shapes_token(const at::RecordFunction& function) {
  constexpr size_t kFirst = 3;
  constexpr c10::DispatchKeySet kAsked({c10::DispatchKey::Python, c10::DispatchKey::NestedTensor});
  uint32_t token = 0;
  const auto inputs = arguments_of(function);
  for (size_t i = 0; i < inputs.size() && i < kFirst; ++i) {
    if (!inputs[i].isTensor() || !inputs[i].toTensor().defined()) continue;
    const at::Tensor& tensor = inputs[i].toTensor();
    // A subclass may ask Python for its rank, which must not be done under the core's lock.
    if (tensor.unsafeGetTensorImpl()->key_set().has_any(kAsked)) continue;
    const auto dtype = static_cast<uint32_t>(tensor.dtype().toScalarType());
    token = token << 10 ^ token >> 22 ^ (static_cast<uint32_t>(tensor.dim()) << 6 | dtype);
  }
  return token;
}

// How many elements a list op works on: as many as its first list has.
size_t list_length(c10::ArrayRef<const c10::IValue> inputs) {
  const auto* list =
      std::find_if(inputs.begin(), inputs.end(), [](const c10::IValue& input) { return input.isList(); });
  return list != inputs.end() ? list->toListRef().size() : 0;
}

// set_() of a tensor: does the storage that it gets, of so many bytes, have to grow, and keep them in doing so?
bool grows_source(c10::ArrayRef<const c10::IValue> inputs, size_t source_bytes) {
  if (inputs.size() < 4) return false;  // it gets all of the storage, or what another tensor has of it
  if (!inputs[0].isTensor() || !inputs[2].isInt() || !inputs[3].isIntList()) return true;
  const auto sizes = inputs[3].toIntVector();
  const auto strides = inputs.size() > 4 && inputs[4].isIntList() ? inputs[4].toIntVector() : std::vector<int64_t>();
  const size_t item_bytes = inputs[0].toTensor().dtype().itemsize();
  const auto offset = static_cast<size_t>(inputs[2].toInt());
  try {
    return source_bytes < (strides.size() == sizes.size()
                               ? at::detail::computeStorageNbytes(sizes, strides, item_bytes, offset)
                               : at::detail::computeStorageNbytesContiguous(sizes, item_bytes, offset));
  } catch (const c10::Error&) {  // no such size: the op raises
    return true;
  }
}

bool is_wait(const at::RecordFunction& function) { return std::strcmp(function.name(), "c10d::wait") == 0; }

// Kernels below autograd call ops with its keys off; so does inference mode, everywhere, and Python when it makes a
// tensor of numbers.
bool inside_a_kernel() {
  return !c10::InferenceMode::is_enabled() &&
         c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
}

}  // namespace

Runtime::Places Runtime::concerned(const at::RecordFunction& function, CallStack& stack) {
  const Places listening = listening_.load(std::memory_order_relaxed);
  const bool several = (listening & (listening - 1)) != 0;
  const bool asks = several || (listening & beside_host_.load(std::memory_order_relaxed)) != 0;
  return C10_UNLIKELY(asks) ? concerned_of(function, stack, listening) : listening;
}

Runtime::Places Runtime::concerned_of(const at::RecordFunction& function, CallStack& stack, Places listening) {
  if (const void* work = collectives::waited_for(); work && is_wait(function)) {
    Places waiting = 0;
    each_of(listening, [&](Runtime& runtime) {
      if (runtime.has_flight(work)) waiting |= runtime.bit();
    });
    if (waiting) return waiting;
  }
  Places named = 0, first = 0;
  const auto names = [&](c10::Device device) {
    each_of(listening, [&](const Runtime& runtime) {
      if (!runtime.serves(device)) return;
      named |= runtime.bit();
      if (!first) first = runtime.bit();
    });
  };
  for (const c10::IValue& input : arguments_of(function)) {
    if (input.isDevice()) {
      names(input.toDevice());
    } else if (input.isStorage()) {
      names(input.toStorage().device());
    } else {
      each_tensor(input, [&](const at::Tensor& tensor) {
        c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
        if (impl->is_wrapped_number()) return;  // Python's, that a GPU's op is called with
        if (impl->has_storage()) {
          names(impl->unsafe_storage().device());
        } else if (!impl->key_set().has(c10::DispatchKey::Python)) {
          names(impl->device());
        }
      });
    }
  }
  if (first) stack.last = first;
  Places around = 0;
  each_of(listening, [&](const Runtime& runtime) {
    if (stack.of(runtime).depth > 0) around |= runtime.bit();
  });
  if (named | around) return named | around;
  Places open = 0;
  each_of(listening, [&](const Runtime& runtime) {
    if (runtime.is_open() && runtime.on_host()) open |= runtime.bit();
  });
  return stack.last & open ? stack.last & open : std::bit_floor(open);
}

std::unique_ptr<at::ObserverContext> Runtime::on_op_start(const at::RecordFunction& function) {
  CallStack& stack = CallStack::here();
  // How torch works out the results of a leaf without memory is no part of the program, and a replay is none either.
  // And what a communication library's threads run is a part of the collective.
  if (stack.leaf_frame > 0 || stack.replaying > 0 || C10_UNLIKELY(stack.of_backend)) {
    stack.frames.push_back({&OpInfo::ignored(), 0});
    return nullptr;
  }
  stack.frames.push_back({&OpInfo::ignored(), 0});
  const OpInfo& called = stack.ops.of(function);
  const Places belongs_to = concerned(function, stack);
  Runtime* unbacked = unbacked_runtime_.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(unbacked != nullptr) && !(belongs_to & unbacked->bit())) unbacked = nullptr;
  const bool adds = C10_UNLIKELY(unbacked != nullptr) && unbacked->accumulates(function, called, stack.of(*unbacked));
  const OpInfo& info = adds ? OpInfo::add_in_place() : called;
  if (info.seeded) Draw::begin(function, info);
  stack.frames.back() = {&info, 0};
  Surroundings::watch_denormals();
  if (info.kind == OpKind::Op) {
    each_of(belongs_to, [&](Runtime& runtime) {
      ThreadState& thread = stack.of(runtime);
      stack.frames.back().concerned |= runtime.bit();  // of those alone op_end() is called
      runtime.op_start(function, info, thread);
    });
  } else if (info.kind == OpKind::BackwardNode) {
    stack.nodes.emplace_back(function.forwardThreadId(), function.seqNr());
    if (C10_UNLIKELY(asks_for_views_.load(std::memory_order_relaxed))) bring_gradient(function);
  } else if (C10_UNLIKELY(info.held_argument >= 0)) {
    hold_argument(function, info, stack);
  }
  if (info.leaf && C10_UNLIKELY(unbacked != nullptr)) unbacked->leaf_start(function, info, stack);
  return nullptr;
}

void Runtime::on_op_end(const at::RecordFunction& function, at::ObserverContext*) {
  CallStack& stack = CallStack::here();
  if (stack.frames.empty()) return;  // it began on another thread
  const OpInfo& info = *stack.frames.back().info;
  const Places belongs_to = info.kind == OpKind::Op ? stack.frames.back().concerned : 0;
  if (C10_UNLIKELY(stack.frames.size() == stack.leaf_frame))
    stack.leaf_of->leaf_end(function, stack.of(*stack.leaf_of));
  each_of(belongs_to, [&](const Runtime& runtime) {
    ThreadState& thread = stack.of(runtime);
    thread.ended.reset();
    if (thread.makers.empty() || thread.makers.back().frame != stack.frames.size()) return;
    thread.ended = std::move(thread.makers.back());
    thread.makers.pop_back();
  });
  if (C10_UNLIKELY(!stack.held.empty()) && stack.held.back().first == stack.frames.size()) {
    c10::StorageImpl* held = stack.held.back().second;
    if (Runtime* owner = owning(held)) owner->let_go(held);
    stack.held.pop_back();
  }
  stack.frames.pop_back();
  each_of(belongs_to, [&](const Runtime& runtime) {
    if (ThreadState& thread = stack.of(runtime); thread.ended) thread.ended->end_draw();
  });
  if (info.seeded) Draw::end();
  each_of(belongs_to, [&](Runtime& runtime) {
    ThreadState& thread = stack.of(runtime);
    runtime.op_end(function, info, thread, thread.ended ? &*thread.ended : nullptr);
    thread.ended.reset();
  });
  if (info.kind == OpKind::BackwardNode && !stack.nodes.empty()) stack.nodes.pop_back();
}

// See Note [DDP before torch 2.13]. Where there is no room, torch's own error follows.
void Runtime::bring_gradient(const at::RecordFunction& function) {
  if (std::strcmp(function.name(), "torch::autograd::AccumulateGrad") != 0) return;
  for (const c10::IValue& input : arguments_of(function)) {
    each_tensor(input, [](const at::Tensor& gradient) {
      if (!gradient.has_storage()) return;
      c10::StorageImpl* impl = gradient.storage().unsafeGetStorageImpl();
      if (Runtime* owner = owning(impl)) owner->restore(impl);
    });
  }
}

// The caller holds the tensor until the op has ended.
void Runtime::hold_argument(const at::RecordFunction& function, const OpInfo& info, CallStack& stack) {
  const auto inputs = arguments_of(function);
  const auto index = static_cast<size_t>(info.held_argument);
  if (index >= inputs.size() || !inputs[index].isTensor() || !inputs[index].toTensor().has_storage()) return;
  c10::StorageImpl* impl = inputs[index].toTensor().storage().unsafeGetStorageImpl();
  try {
    Runtime* owner = owning(impl);
    if (owner && owner->hold(impl)) stack.held.emplace_back(stack.frames.size(), impl);
  } catch (const std::exception&) {  // it stays away: reads through its mark are shown the bytes (csrc/marks.h)
  }
}

// A stretch that the user has named: no op, and nothing that it could pin.
namespace {
struct MarkContext : at::ObserverContext {
  Runtime::Marks marks;
};
}  // namespace

std::unique_ptr<at::ObserverContext> Runtime::on_mark_start(const at::RecordFunction& function) {
  auto context = std::make_unique<MarkContext>();  // first: a mark that has begun is ended by it
  context->marks = begin_marks(function.name());
  return context->marks.empty() ? nullptr : std::move(context);
}

void Runtime::on_mark_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context) end_marks(static_cast<MarkContext*>(context)->marks);
}

// Of an op's inputs that arguments do not show by themselves: tensors inside of others, and storages without a tensor.
struct Runtime::StrongReferences {
  explicit StrongReferences(const at::RecordFunction& function) {
    for (const c10::IValue& input : arguments_of(function)) {
      each_inner_tensor(input, [this](at::Tensor tensor) { inner.push_back(std::move(tensor)); });
      if (C10_UNLIKELY(input.isStorage())) bare.push_back(input.toStorage());
    }
  }
  std::vector<at::Tensor> inner;
  std::vector<c10::Storage> bare;
  mutable std::shared_ptr<void> level;  // see overwritten_by()
};

// Is it the thread's first op since the session began, inside of one that nobody saw begin?
void Runtime::look_for_unseen_op(ThreadState& thread) {
  const bool older = older_threads_.empty() || older_threads_.contains(gettid());
  thread.unseen = older && inside_a_kernel() && std::chrono::steady_clock::now() < unseen_until_;
  if (!thread.unseen) thread.seen = epoch_;
}

void Runtime::begin_outermost(const OpInfo& info, ThreadState& thread) {
  ++clock_ops_;
  thread.serial = next_serial();
  thread.op_name = info.name.c_str();
  thread.in_graph = false;
  thread.parts = 0;
  if (thread.index < 0) thread.index = next_thread_++;
  ++threads_in_ops_;
  if (C10_UNLIKELY(thread.seen != epoch_)) look_for_unseen_op(thread);
}

// What op_end() takes back comes first: that is called also where op_start() throws.
void Runtime::enter(const OpInfo& info, ThreadState& thread) {
  if (thread.depth++ == 0) begin_outermost(info, thread);
  thread.lane = device_->lane();  // behind what other lanes have been told to wait for: Order::ArrivalElsewhere
  op_lanes_ |= lane_bit(thread.lane);
}

// Backward ops belong to the module whose forward made their node.
Runtime::Origin Runtime::origin_of(const at::RecordFunction& function, ThreadState& thread) {
  Origin origin{Stage::NoGrad, modules(thread).current(), function.seqNr()};
  if (const auto& nodes = thread.stack.nodes; !nodes.empty()) {
    origin.stage = Stage::Backward;
    origin.sequence_nr = nodes.back().second;
    const int32_t forward = forward_modules_.find(nodes.back().first, origin.sequence_nr);
    if (forward >= 0) origin.module = forward;
  } else if (c10::GradMode::is_enabled()) {  // in an optimizer's step it is a closure's forward, or the step has failed
    origin.stage = Stage::Forward;
    if (origin.sequence_nr >= 0) {
      forward_modules_.record(at::RecordFunction::currentThreadId(), origin.sequence_nr, origin.module);
    }
  } else if (optimizer_stage_.load(std::memory_order_relaxed)) {
    origin.stage = Stage::Optimizer;
  }
  follow_backward(origin.stage, thread);
  return origin;
}

// Autograd may run a GPU's nodes on a thread of its own, while the one that called it waits.
void Runtime::follow_backward(Stage stage, const ThreadState& thread) {
  if (stage == Stage::Backward) {
    if (!std::exchange(backward_goes_on_, true)) ++backwards_;
    if ((op_lanes_ & (op_lanes_ - 1)) && !access::has_hook()) swapper_.backward = backwards_;
  } else if (!backward_goes_on_ || thread.index == backward_caller_) {
    backward_caller_ = thread.index;
    end_backward();
  }
}

int64_t Runtime::backwards() {
  Lock lock(mutex_);
  return backwards_;
}

void Runtime::end_backward() {
  backward_goes_on_ = false;
  swapper_.backward.reset();
}

void Runtime::record_start(const at::RecordFunction& function, const OpInfo& info, const Origin& origin,
                           std::shared_ptr<torch::CapturedTraceback> stack, ThreadState& thread) {
  OpRow* row = recorder_.begin_op(info.id, origin.stage, origin.module, origin.sequence_nr, thread.index);
  newest_ = {step_serial_, recorder_.op(), -1, row ? 0 : newest_.ordinal};
  thread.place = newest_;
  if (row && stack) {
    recorder_.log().stacks.push_back(std::move(stack));
    row->stack = static_cast<int32_t>(recorder_.log().stacks.size()) - 1;
  }
  thread.token = mix_token(info.hash, static_cast<uint32_t>(origin.stage));
  if (origin.module >= 0 && origin.module < static_cast<int32_t>(module_hashes_.size())) {
    thread.token = mix_token(thread.token, module_hashes_[origin.module]);
  }
  thread.token = mix_token(thread.token, shapes_token(function));
}

// All inputs are pinned by now: nothing that fires here can push them out.
void Runtime::follow_plan(ThreadState& thread) {
  const int32_t plan_op = executor_.begin_op(thread.token);
  newest_.plan_op = thread.place.plan_op = plan_op;
  recorder_.levels(table_.live_bytes(), resident_bytes());
  if (OpRow* row = recorder_.row(thread.place.op)) {
    row->token = thread.token;
    row->plan_op = plan_op;
  }
}

// The device's time of it begins behind all that it waits for: those times are stalls, and not its own.
void Runtime::time_start(ThreadState& thread) {
  if (timed_every_ <= 0 || thread.place.op % timed_every_ != timed_first_ % timed_every_) return;
  thread.began = device_->moment(thread.lane);
  thread.began_lane = thread.lane;
}

// Torch takes no error from here: the op runs, whatever happens.
void Runtime::op_start(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread) {
  const int depth = thread.depth;
  const Refusals refusals(*this, thread);
  try {
    if (keeps_producers_.load(std::memory_order_relaxed)) begin_maker(function, info, thread);
    follow(function, info, thread);
  } catch (const std::exception& error) {
    {
      Lock lock(mutex_);
      if (thread.depth == depth) enter(info, thread);
      if (thread.lost_frame == 0) thread.lost_frame = thread.stack.frames.size();
      missing_.clear();
      written_.clear();
      recorder_.cut_short(text_of(error));
    }
    const auto inputs = arguments_of(function);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool reads = info.reads_inputs, writes = info.writes(i);
      each_storage(inputs[i], [&](c10::StorageImpl* impl) { lose_sight(impl, reads, writes, thread); });
      each_inner_tensor(inputs[i], [&](const at::Tensor& inner) {
        each_storage(inner, [&](c10::StorageImpl* impl) { lose_sight(impl, reads, writes, thread); });
      });
    }
  }
}

// What an op uses that could not be followed is on the device from then on. What it writes has no copy on the host and
// no maker any more. See Note [The host has no memory left].
void Runtime::lose_sight(c10::StorageImpl* impl, bool reads, bool writes, ThreadState& thread) {
  Lock lock(mutex_);
  Storage* storage = find(impl);
  if (!storage) return;
  try {
    stay(*storage);
    if (!reads) return;
    pin(*storage, thread);
    if (storage->residency != Residency::Resident) bring_in_missing(*storage, thread);
    if (storage->residency != Residency::Resident) return;
    if (storage->made_by | storage->replays_read) follow_replays(*storage, thread.lane, writes);
    if (!writes) return;
    swapper_.drop_host(*storage);
    if (storage->value) end_value(*storage, /*in_place=*/false, thread);
  } catch (const std::exception&) {  // there is not even memory to say why
    if (writes && storage->residency == Residency::Resident) replays_.ended(*storage, Refusal::Written);
  }
}

void Runtime::stay(Storage& storage) {
  storage.escaped = true;
  if (storage.residency != Residency::Leaving) return;
  swapper_.drop_host(storage);
  swapper_.touch(storage, false);
}

void Runtime::follow(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread) {
  const bool outermost = thread.depth == 0;
  const StrongReferences strong(function);  // taken before the lock and released after it
  std::shared_ptr<torch::CapturedTraceback> stack;
  if (outermost && stacks_.load(std::memory_order_relaxed) && open_)
    stack = torch::CapturedTraceback::gather(true, false, false);
  Lock lock(mutex_);
  enter(info, thread);
  if (outermost) {
    const Origin origin = origin_of(function, thread);
    if (open_) record_start(function, info, origin, std::move(stack), thread);
    if (C10_UNLIKELY(evicts_always_)) send_all_out();
  } else {
    place(thread);
  }
  if (info.reads_inputs) use_inputs(function, info, thread, strong);
  link_maker(thread);
  if (outermost && open_) follow_plan(thread);
  // The lists are this op's own from here on: waiting for another thread lets that thread's ops in.
  const std::vector<Storage*> missing = std::exchange(missing_, {});
  const std::vector<Storage*> written = std::exchange(written_, {});
  if (outermost && open_) executor_.send_waiting();
  have_inputs(missing, missing.empty() ? nullptr : overwritten(function, info, strong), written, thread);
  if (C10_UNLIKELY(info.sets_hook)) {
    for (const c10::IValue& input : arguments_of(function)) make_way_for_hook(input);
  }
  if (outermost && open_) {
    executor_.prefetch();
    replay_planned(thread);
  }
  device_->lane();  // behind what other threads have brought in for this op meanwhile
  if (outermost && open_) time_start(thread);
}

void Runtime::use_inputs(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread,
                         const StrongReferences& strong) {
  const auto inputs = arguments_of(function);
  missing_.clear();
  written_.clear();
  if (C10_UNLIKELY(info.sets) && access::has_hook() && only_sets(inputs, thread, strong)) return;
  const size_t parts = info.list_op && options_.splits_lists && thread.depth == 1 ? list_length(inputs) : 0;
  if (parts > 1) thread.parts = parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (C10_UNLIKELY(parts > 1) && inputs[i].isList() && inputs[i].toListRef().size() == parts) {
      use_elements(inputs[i], i, info, thread);
    } else {
      use_input(inputs[i], i, info, thread);
    }
  }
  for (const at::Tensor& tensor : strong.inner) {
    if (tensor.has_storage()) use(tensor.storage().unsafeGetStorageImpl(), true, true, thread);
  }
  for (const c10::Storage& storage : strong.bare) use(storage.unsafeGetStorageImpl(), true, true, thread);
  if (C10_UNLIKELY(info.launches)) board(inputs, info, thread);
  if (C10_UNLIKELY(info.waits)) use_waited(function, thread);
}

// It changes no byte, and needs none. Without the hook, torch takes no storage that is away.
bool Runtime::only_sets(c10::ArrayRef<const c10::IValue> inputs, ThreadState& thread, const StrongReferences& strong) {
  std::vector<c10::StorageImpl*> given;
  for (const c10::Storage& storage : strong.bare) given.push_back(storage.unsafeGetStorageImpl());
  if (inputs.size() > 1) each_storage(inputs[1], [&](c10::StorageImpl* impl) { given.push_back(impl); });
  if (grows_source(inputs, given.empty() ? 0 : given.back()->nbytes())) return false;
  for (c10::StorageImpl* impl : given) {  // at the op's end it is settled with the result, and armed
    if (Storage* storage = find(impl)) pin(*storage, thread);
  }
  return true;
}

void Runtime::use_elements(const c10::IValue& list, size_t argument, const OpInfo& info, ThreadState& thread) {
  int32_t part = 0;
  for (const c10::IValue& element : list.toListRef()) {
    each_storage_of(element, [&](const at::Tensor& tensor, c10::StorageImpl* impl) {
      Storage* storage = use(impl, info.reads(argument), info.writes(argument), thread, part);
      if (storage && C10_UNLIKELY(storage->flights > 0)) end_flights_of(*storage, tensor, argument, info);
    });
    ++part;
  }
}

// A lazy clone puts a hook of its own there, and torch allows for one.
void Runtime::make_way_for_hook(const c10::IValue& value) {
  each_storage(value, [&](c10::StorageImpl* impl) {
    Storage* storage = find(impl);
    // No impl: another thread has resized it since, and no op has shown yet who holds the new block.
    if (storage && storage->impl && storage->residency == Residency::Resident) access::disarm(*storage);
  });
}

void Runtime::have_inputs(const std::vector<Storage*>& missing, Storage* overwritten,
                          const std::vector<Storage*>& written, ThreadState& thread) {
  if (C10_UNLIKELY(blanks_ > 0)) wait_while_blank(thread);
  if (!missing.empty()) bring_in_missing(missing, overwritten, thread);
  if (!written.empty()) end_values(written, thread);
}

// All inputs are pinned by now, so that making room for one can't push out another. The one that the op overwrites
// comes last: its host copy must not make way for another one's, and if another one cannot come, the op raises.
void Runtime::bring_in_missing(const std::vector<Storage*>& missing, Storage* overwritten, ThreadState& thread) {
  bool raises = false;
  for (Storage* storage : missing) {
    if (storage == overwritten) continue;
    bring_in_missing(*storage, thread);
    raises |= storage->failed;
  }
  if (!overwritten) return;
  if (!raises) begin_overwriting(*overwritten, thread);
  bring_in_missing(*overwritten, thread);
}

void Runtime::bring_in_missing(Storage& storage, ThreadState& thread) {
  if (storage.failed) return;
  try {
    bring_in(storage, Cause::Demand, thread);
  } catch (const c10::Error& error) {
    access::mark_failed(storage, message_of(error));
  } catch (const std::exception& error) {  // torch would swallow it here
    access::mark_failed(storage, swapper_.not_back(storage, message_of(error)));
  }
}

// See Note [Overwriting].
Storage* Runtime::overwritten(const at::RecordFunction& function, const OpInfo& info, const StrongReferences& strong) {
  if (!info.replaces || !access::has_hook()) return nullptr;
  c10::StorageImpl* impl = overwritten_by(info, arguments_of(function), &strong.level);
  Storage* storage = impl ? find(impl) : nullptr;
  const bool away = storage && storage->residency == Residency::Away && !storage->unbacked;
  return away && impl->nbytes() == storage->bytes ? storage : nullptr;
}

// If it gets no block here, it is copied in like any other input. Its value ends first (see Note [Values]): what was
// dropped and is made from it comes back, for which it may have to come in; and making room drops nothing more like
// that.
void Runtime::begin_overwriting(Storage& storage, ThreadState& thread) {
  if (thread.blank) return;
  const int64_t uid = storage.uid;
  end_values({&storage}, thread);
  if (storage.uid != uid || storage.failed) return;
  try {
    swapper_.restore(storage, Cause::Demand, nullptr, /*blank=*/true);
  } catch (const std::exception&) {
  }
  if (storage.uid != uid || !storage.blank) return;
  ++blanks_;
  thread.blank = &storage;
  thread.blank_uid = uid;
  thread.blank_depth = thread.depth;
  thread.blank_exceptions = std::uncaught_exceptions();
}

void Runtime::end_overwriting(ThreadState& thread) {
  if (thread.depth != thread.blank_depth) return;
  Storage* storage = std::exchange(thread.blank, nullptr);
  --blanks_;
  if (threads_waiting_ > 0) pins_released_.notify_all();
  if (storage->uid != thread.blank_uid || !storage->blank) return;
  storage->blank = false;
  if (std::uncaught_exceptions() <= thread.blank_exceptions) return;
  try {
    swapper_.refill(*storage);
  } catch (const std::exception&) {  // the device is gone
  }
}

// What the op has pinned was blank then, or is not: nothing becomes blank that another op uses. A thread has nothing
// blank while it waits here, so that none waits for it.
void Runtime::wait_while_blank(ThreadState& thread) {
  if (thread.blank) return;
  for (size_t i = 0; i < thread.pinned.size(); ++i) {
    const auto [storage, uid] = thread.pinned[i];
    if (storage->uid != uid || !storage->blank) continue;
    wait_while_blank(*storage, thread);
    bring_in_missing(*storage, thread);  // where the old bytes could not come back
  }
}

bool Runtime::wait_while_blank(Storage& storage, ThreadState& thread) {
  const int64_t uid = storage.uid;
  while (storage.uid == uid && storage.blank && thread.blank != &storage) wait_for_others(thread);
  return storage.uid == uid;
}

Runtime::OpPlace& Runtime::place(ThreadState& thread) {
  const bool in_op = thread.depth > 0 && thread.place.step == newest_.step;
  OpPlace& here = in_op ? thread.place : newest_;
  recorder_.resume(here.op, in_op);
  return here;
}

void Runtime::use_input(const c10::IValue& value, size_t argument, const OpInfo& info, ThreadState& thread) {
  each_storage_of(value, [&](const at::Tensor& tensor, c10::StorageImpl* impl) {
    Storage* storage = use(impl, info.reads(argument), info.writes(argument), thread);
    if (!storage) return;
    if (C10_UNLIKELY(storage->form.dtype < 0)) storage->form = forms_.of(tensor, storage->bytes);
    if (C10_UNLIKELY(storage->flights > 0)) end_flights_of(*storage, tensor, argument, info);
  });
}

Storage* Runtime::use(c10::StorageImpl* impl, bool reads, bool writes, ThreadState& thread, int32_t part) {
  Storage* storage = find(impl);
  if (!storage && options_.unbacked) storage = see_unbacked(impl, thread);  // made before, or out of torch's sight
  if (!storage) return nullptr;
  if (!storage->impl) attach(*storage, impl);
  settle(*storage, thread);
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
  if (C10_UNLIKELY(storage->made_by | storage->replays_read)) follow_replays(*storage, thread.lane, writes);
  storage->lanes |= lane_bit(thread.lane);  // before its block is there, if it is away
  if (writes && storage->value) written_.push_back(storage);
  storage->last_use = clock_ops_;
  if (storage->anchor && thread.depth == 1) thread.token = mix_token(thread.token, storage->anchor);
  if (storage->category == Category::Activation || storage->category == Category::Parameter) thread.in_graph = true;
  if (open_) recorder_.used(*storage, reads, writes, part);
  return storage;
}

void Runtime::pin(Storage& storage, ThreadState& thread) {
  if (storage.pinned_by == thread.serial) return;
  thread.pinned.emplace_back(&storage, storage.uid);
  storage.pinned_by = thread.serial;
  ++storage.pins;
}

// False: there was no memory for it.
bool Runtime::take_results(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread, Maker* maker,
                           const collectives::Launched* launched) {
  try {
    for (const c10::IValue& output : results_of(function)) attach_output(output, !info.raw_written_output, thread);
    if (C10_UNLIKELY(launched != nullptr)) depart(*launched, thread);
    if (C10_UNLIKELY(info.waits)) end_waited(thread);
    if (maker) end_maker(function, *maker);
    place(thread);
    if (C10_UNLIKELY(thread.parts > 1) && thread.depth == 1) mark_results(function, thread.parts);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

void Runtime::op_end(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread, Maker* maker) {
  std::optional<collectives::Launched> launched;  // released after the lock
  bool lost = thread.lost_frame > thread.stack.frames.size();
  if (C10_UNLIKELY(lost)) {
    thread.lost_frame = 0;
    maker = nullptr;
  }
  try {
    if (C10_UNLIKELY(info.launches)) launched = collectives::launched(function, info);
  } catch (const std::exception&) {
    lost = true;
  }
  Lock lock(mutex_);
  if (C10_UNLIKELY(thread.blank != nullptr)) end_overwriting(thread);
  if (C10_UNLIKELY(!take_results(function, info, thread, maker, launched ? &*launched : nullptr) || lost)) {
    for (const c10::IValue& output : results_of(function)) {
      each_storage(output, [&](c10::StorageImpl* impl) {
        if (Storage* storage = find(impl)) stay(*storage);
      });
    }
  }
  if (--thread.depth > 0) return;
  --threads_in_ops_;
  const EventPtr began = std::exchange(thread.began, nullptr);
  const EventPtr ended = began ? device_->moment(thread.began_lane) : nullptr;  // unpinning may have the lane wait
  unpin_all(thread);
  thread.serial = 0;
  if (threads_waiting_ > 0) pins_released_.notify_all();  // those who wait for room, and adoption
  try {
    end_outermost(began, ended, thread);
  } catch (const std::exception& error) {
    recorder_.cut_short(text_of(error));
  }
}

void Runtime::end_outermost(const EventPtr& began, const EventPtr& ended, const ThreadState& thread) {
  const bool of_this_step = open_ && thread.place.step == newest_.step;
  if (began && of_this_step) recorder_.timed(thread.place.op, began, ended);
  if (C10_UNLIKELY(evicts_always_)) send_all_out();
  if (!of_this_step) return;
  executor_.end_op(thread.place.plan_op);
  recorder_.end_op(thread.place.op, threads_in_ops_ == 0);
  if (thread.place.op == newest_.op) newest_ = thread.place;
  executor_.send_waiting();
}

// The results of a list op: one for each element of its lists.
void Runtime::mark_results(const at::RecordFunction& function, size_t parts) {
  for (const c10::IValue& output : results_of(function)) {
    if (!output.isList() || output.toListRef().size() != parts) continue;
    int32_t part = 0;
    for (const c10::IValue& element : output.toListRef()) {
      each_storage(element, [&](c10::StorageImpl* impl) {
        if (Storage* storage = find(impl)) recorder_.belongs(*storage, part);
      });
      ++part;
    }
  }
}

void Runtime::unpin_all(ThreadState& thread) {
  while (!thread.pinned.empty()) {
    const auto [storage, uid] = thread.pinned.back();
    thread.pinned.pop_back();
    if (storage->uid != uid) continue;  // died inside the op
    if (storage->pinned_by == thread.serial) storage->pinned_by = 0;
    unpin(*storage);
  }
}

void Runtime::unpin(Storage& storage) {
  if (--storage.pins > 0) return;
  if (storage.ghost) {
    if (!storage.retained && !replays_.needed(storage)) free_ghost(storage);
    return;
  }
  if (storage.failed) access::clear_failed(storage);
  const bool stale = std::exchange(storage.host_stale, false);
  if (storage.residency != Residency::Resident) return;  // bringing it in failed, and so did the op
  const bool intact = access::intact(storage);
  if (stale || !intact) swapper_.drop_host(storage);
  // The op has taken the DataPtr away (copy-on-write): neither writes nor raw accesses are seen until it is back.
  if (storage.impl && !intact) storage.escaped = true;
  // See Note [The mark for "away"]: armed while resident, the hook reports escaping pointers; the op's own kernel has
  // used it up, maybe. Also where nothing leaves: a capacity may be given later.
  if (intact && !storage.unbacked && !storage.escaped) access::arm(storage);
}

void Runtime::attach_output(const c10::IValue& value, bool settled, const ThreadState& thread) {
  each_storage_of(value, [&](const at::Tensor& tensor, c10::StorageImpl* impl) {
    Storage* storage = find(impl);
    if (!storage) return;
    if (!storage->impl) attach(*storage, impl);
    if (storage->form.dtype < 0) storage->form = forms_.of(tensor, storage->bytes);
    if (settled) settle(*storage, thread);
  });
}

// The kernel of an op that nobody saw begin may still fill or read what ops inside it have made and used.
void Runtime::settle(Storage& storage, const ThreadState& thread) {
  storage.unseen = !storage.settled && thread.unseen;
  storage.settled |= !thread.unseen;
}

void Runtime::attach(Storage& storage, c10::StorageImpl* impl) {
  storage.impl = impl;
  storage.weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl);
}

Storage* Runtime::find(c10::StorageImpl* impl) const {
  const c10::DataPtr& pointer = impl->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() == block_deleter_) {
    Storage* storage = table_.at(pointer.get());
    // The DataPtr has moved to another StorageImpl: follow it.
    if (storage && storage->impl && storage->impl != impl) {
      storage->impl = impl;
      storage->weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl);
    }
    return storage;
  }
  if (pointer.get_deleter() == &on_unbacked_deleted) return table_.at(pointer.get_context());
  Storage* storage = access::away_storage(impl);
  return storage && storage->owner == this ? storage : nullptr;
}

}  // namespace chameleon
