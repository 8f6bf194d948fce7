#include "collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "op_info.h"
#include "tensor_storages.h"

namespace chameleon {

ByteRange ByteRange::of(const at::Tensor& tensor) {
  const size_t item = tensor.dtype().itemsize();
  const auto begin = static_cast<size_t>(tensor.storage_offset()) * item;
  if (tensor.numel() == 0) return {begin, begin};
  size_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += static_cast<size_t>(tensor.size(i) - 1) * static_cast<size_t>(tensor.stride(i));
  }
  return {begin, begin + (last + 1) * item};
}

bool Flight::ended_by(const Storage& storage, const ByteRange& range, bool reads, bool writes) const {
  for (const Part& part : parts) {
    if (part.storage != &storage || !part.alive() || !part.range.overlaps(range)) continue;
    if (writes || (reads && part.written)) return true;
  }
  return false;
}

void Flights::depart(Flight flight) {
  flight.id = next_id_++;
  flights_.push_back(std::move(flight));
}

namespace collectives {

namespace {

struct Wait {
  const void* work;
  std::unique_ptr<at::RecordFunction> op;
  bool over = false;
};

std::vector<Wait>& waits() {
  static thread_local std::vector<Wait> entered;
  return entered;
}

const c10::FunctionSchema& schema() {
  static const auto* made = new c10::FunctionSchema(torch::jit::parseSchema("c10d::wait() -> ()"));
  return *made;
}

// The Work in a result: an object of torch's class of that name.
std::optional<c10::intrusive_ptr<torch::CustomClassHolder>> work_in(const c10::IValue& value) {
  if (!value.isObject()) return std::nullopt;
  const auto& object = value.toObjectRef();
  if (object.slots().size() != 1 || !object.getSlot(0).isCapsule()) return std::nullopt;
  return object.getSlot(0).toCapsule();
}

// Was it launched so that what follows on the caller's stream comes behind it?
bool is_synchronous(const at::RecordFunction& function, const OpInfo& info) {
  const auto index = info.handle ? info.handle->schema().argumentIndexWithName("async_op") : std::nullopt;
  const auto inputs = arguments_of(function);
  if (!index || static_cast<size_t>(*index) >= inputs.size()) return false;
  const c10::IValue& value = inputs[static_cast<size_t>(*index)];
  return value.isBool() && !value.toBool();
}

std::vector<c10::weak_intrusive_ptr<torch::CustomClassHolder>>& kept() {
  static thread_local std::vector<c10::weak_intrusive_ptr<torch::CustomClassHolder>> works;
  return works;
}

}  // namespace

Launched launched(const at::RecordFunction& function, const OpInfo& info) {
  for (const c10::IValue& result : results_of(function)) {
    if (auto work = work_in(result); work && *work) return {std::move(*work), false};
  }
  return {{}, is_synchronous(function, info)};
}

void enter_wait(const void* work) {
  waits().push_back({work, std::make_unique<at::RecordFunction>(at::RecordScope::FUNCTION)});
  Wait& wait = waits().back();
  wait.op->before(std::cref(schema()), c10::ArrayRef<const c10::IValue>());
}

void leave_wait(bool over) {
  TORCH_CHECK(!waits().empty(), "Chameleon Lab: this thread waits for no collective");
  waits().back().over = over;
  waits().back().op->end();
  waits().pop_back();
}

const void* waited_for() { return waits().empty() ? nullptr : waits().back().work; }
bool wait_is_over() { return waits().empty() || waits().back().over; }

bool on_backend_thread() {
  const std::string name = c10::getThreadName();
  return name.rfind("pt_gloo_", 0) == 0 || name.rfind("pt_mpi_", 0) == 0 || name.rfind("pt_nccl_", 0) == 0;
}

void keep(c10::weak_intrusive_ptr<torch::CustomClassHolder> work) { kept().push_back(std::move(work)); }

void release_kept() {
  if (kept().empty()) return;
  std::vector<c10::weak_intrusive_ptr<torch::CustomClassHolder>> works;
  works.swap(kept());
}

}  // namespace collectives

}  // namespace chameleon
