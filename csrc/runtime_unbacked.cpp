// Tracing without memory: meta tensors have storages without bytes. Those get a made-up address for their context, by
// which the recorder knows them, and a deleter that tells it when they die.
#include <c10/core/Device.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "runtime_internal.h"
#include "tensor_storages.h"

namespace chameleon {

namespace {
const c10::Device kMeta(c10::DeviceType::Meta);
}

// Where gradients of one tensor meet, autograd adds to the first one in place, if nobody else holds it; but never for
// meta tensors, which it takes for a subclass (see InputBuffer::accumulate). On a real device it would be aten::add_.
bool Runtime::accumulates(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread) {
  CallStack& stack = thread.stack;
  stack.accumulated = nullptr;
  // Of an evaluated node's two frames the inner one has ended.
  if (stack.nodes.size() != 1 || thread.depth > 0 || c10::GradMode::is_enabled() || info.name != "aten::add") {
    return false;
  }
  const auto inputs = arguments_of(function);
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return false;
  c10::TensorImpl* sum = inputs[0].toTensor().unsafeGetTensorImpl();
  constexpr size_t kOwners = 3;  // the engine, its buffer, and this argument
  if (!sum->has_storage() || !sum->is_non_overlapping_and_dense_default() ||
      c10::raw::intrusive_ptr::use_count(sum) > kOwners || sum->unsafe_storage().use_count() > 1) {
    return false;
  }
  stack.accumulated = sum->unsafe_storage().unsafeGetStorageImpl();
  return true;
}

void Runtime::leaf_start(const at::RecordFunction& function, const OpInfo& info, CallStack& stack) {
  stack.leaf_frame = stack.frames.size();
  stack.leaf_of = this;
  stack.leaf_call = {-1, info.name, function.overload_name(), {}, {}};
  for (const c10::IValue& input : arguments_of(function)) stack.leaf_call.arguments.push_back(leaf_value(input));
}

void Runtime::leaf_end(const at::RecordFunction& function, ThreadState& thread) {
  CallStack& stack = thread.stack;
  stack.leaf_frame = 0;
  for (const c10::IValue& output : results_of(function)) stack.leaf_call.results.push_back(leaf_value(output));
  Lock lock(mutex_);
  if (!open_ || !options_.unbacked) return;
  Storage* accumulated = stack.accumulated ? find(std::exchange(stack.accumulated, nullptr)) : nullptr;
  for (const c10::IValue& output : results_of(function)) {
    each_storage(output, [&](c10::StorageImpl* impl) {
      if (accumulated) {
        hand_over(*accumulated, impl);
      } else if (!find(impl)) {
        see_unbacked(impl, thread);
      }
    });
  }
  stack.leaf_call.op = std::max(recorder_.op(), 0);
  recorder_.log().leaf_calls.push_back(std::move(stack.leaf_call));
}

Storage* Runtime::see_unbacked(c10::StorageImpl* impl, ThreadState& thread) {
  if (impl->device_type() != kMeta.type() || impl->nbytes() < options_.min_tracked_bytes) return nullptr;
  Storage* storage = add_unbacked(impl);
  describe_birth(*storage, thread);
  return storage;
}

Storage* Runtime::add_unbacked(c10::StorageImpl* impl) {
  const size_t bytes = impl->nbytes();
  const size_t unit = options_.unbacked_block_bytes;
  const size_t block_bytes = unit ? (bytes + unit - 1) / unit * unit : device_->block_bytes(bytes);
  // Addresses that no allocator hands out, and never one twice.
  static uintptr_t next = 0;
  void* address = reinterpret_cast<void*>(++next);
  Storage* storage = table_.add(bytes, block_bytes, address);
  storage->unbacked = true;
  storage->settled = true;
  attach(*storage, impl);
  impl->set_data_ptr_noswap({nullptr, address, &Runtime::on_unbacked_deleted, kMeta});
  return storage;
}

void Runtime::hand_over(Storage& storage, c10::StorageImpl* impl) {
  storage.impl->_mutable_data_ptr_no_checks().release_context();
  storage.impl->set_data_ptr_noswap(c10::DataPtr(nullptr, kMeta));
  attach(storage, impl);
  impl->set_data_ptr_noswap({nullptr, storage.block, &Runtime::on_unbacked_deleted, kMeta});
}

void Runtime::on_unbacked_deleted(void* address) {
  Runtime* runtime = unbacked_runtime_;
  if (!runtime) return;  // the session has just let go of it
  Lock lock(runtime->mutex_);
  if (Storage* storage = runtime->table_.at(address)) runtime->destroyed(storage);
}

// What is still alive when the trace ends is torch's alone again.
void Runtime::forget_unbacked() {
  std::vector<Storage*> ours;
  for (const auto& storage : table_.all()) {
    if (storage->unbacked) ours.push_back(storage.get());
  }
  for (Storage* storage : ours) {
    // One that dies just now on another thread finds nothing in the table.
    if (storage->weak->use_count() > 0) {
      storage->impl->_mutable_data_ptr_no_checks().release_context();
      storage->impl->set_data_ptr_noswap(c10::DataPtr(nullptr, kMeta));
    }
    table_.remove(storage);
  }
}

}  // namespace chameleon
