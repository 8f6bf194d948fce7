#include "replay.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "tensor_storages.h"

namespace chameleon {

namespace {

constexpr int32_t kNever = 1 << 20;
constexpr uint64_t kEveryDtype = ~uint64_t{0};

constexpr c10::DispatchKeySet kPlainKeys({c10::DispatchKey::Dense, c10::DispatchKey::AutogradFunctionality,
                                          c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutocastCPU,
                                          c10::DispatchKey::AutocastCUDA, c10::DispatchKey::Conjugate,
                                          c10::DispatchKey::Negative});

// No subclass, no wrapper, and bytes of its own.
bool plain(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) return false;
  return (impl->key_set() - kPlainKeys).highestFunctionalityKey() == c10::DispatchKey::Undefined;
}

bool is_number(const c10::IValue& value) {
  return value.isNone() || value.isBool() || value.isInt() || value.isDouble() || value.isComplexDouble() ||
         value.isIntList() || value.isDoubleList() || value.isBoolList() || value.isString() || value.isDevice();
}

c10::Storage storage_over(void* data, size_t bytes, c10::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            c10::DataPtr(data, device), nullptr, false));
}

at::Tensor shell_of(const at::Tensor& tensor, c10::Storage storage) {
  auto impl = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
  impl->set_storage_keep_dtype(std::move(storage));
  return at::Tensor(std::move(impl));
}

bool is_tensor_list(const c10::IValue& value) {
  if (value.isTensorList()) return true;
  if (!value.isList()) return false;
  const auto elements = value.toListRef();
  return std::any_of(elements.begin(), elements.end(), [](const c10::IValue& one) { return one.isTensor(); });
}

c10::impl::GenericList with_holes(const c10::IValue& list) {
  const c10::TypePtr type = list.toList().elementType();
  c10::impl::GenericList holes(type);
  const c10::IValue hole = type->kind() == c10::TypeKind::OptionalType ? c10::IValue() : c10::IValue(at::Tensor());
  for (size_t i = 0; i < list.toListRef().size(); ++i) holes.push_back(hole);
  return holes;
}

c10::impl::GenericList copy_of(const c10::IValue& list) {
  c10::impl::GenericList copy(list.toList().elementType());
  for (const c10::IValue& element : list.toListRef()) copy.push_back(element);
  return copy;
}

// TorchScript may change a list that an op was given.
c10::IValue copy_of_number(const c10::IValue& number) {
  return number.isList() ? c10::IValue(copy_of(number)) : number;
}

ResultForm form_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), tensor.storage().nbytes(),
          tensor.scalar_type()};
}

bool same_form(const at::Tensor& tensor, const ResultForm& form) {
  return tensor.sizes() == form.sizes && tensor.strides() == form.strides && tensor.storage_offset() == form.offset &&
         tensor.storage().nbytes() == form.bytes && tensor.scalar_type() == form.dtype;
}

}  // namespace

const char* refusal_text(Refusal refusal) {
  switch (refusal) {
    case Refusal::None:
      return "";
    case Refusal::Unknown:
      return "nobody saw the op that made it";
    case Refusal::Op:
      return "the op that made it is not replayed";
    case Refusal::Random:
      return "it was made with random numbers of a generator that has moved on";
    case Refusal::Arguments:
      return "the op that made it had arguments that cannot be kept";
    case Refusal::Foreign:
      return "an input is memory that the session does not own, or that a raw pointer can write";
    case Refusal::Written:
      return "it was written after it was made";
    case Refusal::InputLost:
      return "an input was written or is gone, and cannot be made again";
    case Refusal::TooLong:
      return "too many ops would have to be replayed in a row";
    case Refusal::InUse:
      return "an op uses it, or it is not resident";
    case Refusal::Unmovable:
      return "it must stay where it is";
    case Refusal::Denormals:
      return "a thread flushes denormals to zero, and which of its workers do is not known";
    case Refusal::NoMemory:
      return "the host has no memory left";
    case Refusal::Settings:
      return "it ran under settings of torch under which it has not been seen to repeat itself to the bit";
  }
  return "";
}

// --- producers

// What describe() has found so far.
struct Replays::Description {
  Maker* maker;
  Producer* producer;
  c10::DeviceType device = c10::DeviceType::CPU;  // of the op's tensors
  std::optional<c10::ScalarType> dtype = {};      // of the first one with fractions
};

bool Replays::keep_tensor(const at::Tensor& tensor, size_t argument, int32_t element, Description* found) const {
  if (!plain(tensor)) return false;
  const OpInfo& info = *found->maker->info;
  if (!found->dtype && (tensor.is_floating_point() || tensor.is_complex())) found->dtype = tensor.scalar_type();
  if (tensor.device().type() != c10::DeviceType::CPU) found->device = tensor.device().type();
  c10::StorageImpl* impl = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  KeptInput input;
  input.argument = static_cast<int32_t>(argument);
  input.element = element;
  input.bytes = impl->nbytes();
  input.impl = impl;
  if (info.in_place && argument == 0) {
    // What an op only overwrites in part is a value that it reads.
    input.blank = info.overwrites && tensor.is_non_overlapping_and_dense() && tensor.nbytes() == input.bytes;
    found->producer->written = static_cast<int32_t>(found->producer->inputs.size());
  } else if (input.bytes < copied_bytes && impl->device_type() == c10::DeviceType::CPU) {
    c10::DataPtr copy = allocate_plain_(input.bytes);
    if (input.bytes > 0) std::memcpy(copy.get(), impl->data(), input.bytes);
    input.copy = c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), input.bytes,
                                                                    std::move(copy), nullptr, false));
  }
  input.form = shell_of(tensor, storage_over(nullptr, 0, tensor.device()));
  found->producer->inputs.push_back(std::move(input));
  return true;
}

// False: it cannot be kept.
bool Replays::keep_argument(const c10::IValue& argument, size_t index, Description* found) const {
  std::vector<c10::IValue>& kept = found->producer->arguments;
  if (argument.isTensor()) {
    kept.emplace_back(at::Tensor());
    return !argument.toTensor().defined() || keep_tensor(argument.toTensor(), index, -1, found);
  }
  if (is_tensor_list(argument)) {
    kept.emplace_back(with_holes(argument));
    const auto elements = argument.toListRef();
    for (size_t k = 0; k < elements.size(); ++k) {
      if (!elements[k].isTensor() || !elements[k].toTensor().defined()) continue;
      if (!keep_tensor(elements[k].toTensor(), index, static_cast<int32_t>(k), found)) return false;
    }
    return true;
  }
  if (argument.isGenerator()) {
    if (found->maker->draw) return false;
    found->maker->draw.emplace(argument.toGenerator());
    kept.emplace_back(found->maker->draw->before());
    return true;
  }
  if (!is_number(argument)) return false;
  kept.push_back(copy_of_number(argument));
  return true;
}

// The generator's state that an op without one of its own draws from. False: its draw cannot be repeated.
bool Replays::keep_draw(Description* found) {
  const OpInfo& info = *found->maker->info;
  if (!info.seeded) return true;
  std::vector<c10::IValue>& kept = found->producer->arguments;
  c10::IValue* const own = info.generator_argument >= 0 ? &kept[info.generator_argument] : nullptr;
  if (own && own->isNone() && found->device == c10::DeviceType::CPU) {
    found->maker->draw.emplace(at::detail::getDefaultCPUGenerator());
    *own = found->maker->draw->before();
    return true;
  }
  if (own && own->isGenerator()) return true;
  const auto& dropout = info.dropout_argument >= 0 ? kept[info.dropout_argument] : c10::IValue();
  return dropout.isDouble() && dropout.toDouble() == 0.0;
}

Refusal Replays::described(const Replayable& may, Description* found) {
  const uint64_t dtypes = may.dtypes_of(*found->maker->info);
  const bool every = dtypes == kEveryDtype;
  if (!every && !(found->dtype && (dtypes >> static_cast<int>(*found->dtype) & 1))) return Refusal::Op;
  if (!keep_draw(found)) return Refusal::Random;
  found->producer->surroundings = Surroundings::now(found->device);
  const Surroundings& now = *found->producer->surroundings;
  if (found->device == c10::DeviceType::CPU && now.threads > 1 && Surroundings::workers_may_flush()) {
    return Refusal::Denormals;
  }
  return every || may.settings.hold_for(now) ? Refusal::None : Refusal::Settings;
}

void Replays::allow(const std::unordered_map<std::string, uint64_t>& dtypes, CheckedSettings settings) {
  Replayable may{{}, std::move(settings)};
  for (const auto& [name, bits] : dtypes) {
    const auto number = static_cast<size_t>(name_number(name));
    if (number >= may.dtypes.size()) may.dtypes.resize(number + 1);
    may.dtypes[number] = bits;
  }
  // A script may change its settings back and forth.
  auto found = std::find_if(all_.begin(), all_.end(), [&may](const auto& each) { return *each == may; });
  if (found == all_.end()) found = all_.insert(found, std::make_unique<const Replayable>(std::move(may)));
  replayable_.store(found->get(), std::memory_order_release);
}

Maker Replays::describe(const at::RecordFunction& function, const OpInfo& info) const {
  Maker maker;
  maker.info = &info;
  maker.autocast = Surroundings::active_autocast();
  const Replayable* const may = replayable_.load(std::memory_order_acquire);
  if (!may || may->dtypes_of(info) == 0) return maker;
  // What runs inside a dispatch mode is up to Python.
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return maker;
  const auto arguments = arguments_of(function);
  auto producer = std::make_shared<Producer>();
  producer->info = &info;
  producer->arguments.reserve(arguments.size());
  Description found{&maker, producer.get()};
  maker.refusal = Refusal::Arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!keep_argument(arguments[i], i, &found)) return maker;
  }
  maker.refusal = described(*may, &found);
  if (maker.refusal == Refusal::None) maker.producer = std::move(producer);
  return maker;
}

namespace {

// The first one is the default generator's; others that meet in a slot count as one.
constexpr int32_t kSlots = 64;
struct Draws {
  std::atomic<int64_t> begun{0}, running{0};
};
struct OwnDraws {
  int64_t begun = 0, running = 0;
};
Draws draws[kSlots];
thread_local OwnDraws own_draws[kSlots];
thread_local std::vector<int32_t> open_draws;  // of this thread, by slot

int32_t slot_of(const at::Generator& generator) {
  if (generator == at::detail::getDefaultCPUGenerator()) return 0;
  const auto address = reinterpret_cast<uintptr_t>(generator.unsafeGetGeneratorImpl());
  return 1 + static_cast<int32_t>((address * 0x9E3779B97F4A7C15u >> 32) % (kSlots - 1));
}

}  // namespace

void Draw::begin(const at::RecordFunction& function, const OpInfo& info) {
  const auto arguments = arguments_of(function);
  const size_t own = static_cast<size_t>(info.generator_argument);
  const bool named = info.generator_argument >= 0 && own < arguments.size() && arguments[own].isGenerator();
  const int32_t slot = slot_of(named ? arguments[own].toGenerator() : at::detail::getDefaultCPUGenerator());
  open_draws.push_back(slot);
  ++draws[slot].begun;
  ++draws[slot].running;
  ++own_draws[slot].begun;
  ++own_draws[slot].running;
}

void Draw::end() {
  const int32_t slot = open_draws.back();
  open_draws.pop_back();
  --draws[slot].running;
  --own_draws[slot].running;
}

void Draw::after_fork_in_child() {
  for (int32_t slot = 0; slot < kSlots; ++slot) draws[slot].running = own_draws[slot].running;
}

Draw::Draw(at::Generator generator)
    : generator_(std::move(generator)),
      slot_(slot_of(generator_)),
      others_begun_(draws[slot_].begun - own_draws[slot_].begun),
      began_alone_(draws[slot_].running == own_draws[slot_].running) {
  std::lock_guard<std::mutex> lock(generator_.mutex());
  before_ = generator_.clone();
}

bool Draw::ended(std::optional<uint64_t>* drawn_to) {
  if (generator_.device().is_cpu()) {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    *drawn_to = position(generator_);
  }
  // Asked last: who has drawn since would be in the position.
  return began_alone_ && draws[slot_].begun - own_draws[slot_].begun == others_begun_;
}

uint64_t Draw::position(const at::Generator& generator) {
  const at::mt19937_data_pod state = at::check_generator<at::CPUGeneratorImpl>(generator)->engine().data();
  uint64_t hash = state.seed_;
  const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u ^ hash >> 29; };
  mix(static_cast<uint64_t>(state.left_) << 32 ^ state.next_);
  for (const uint32_t word : state.state_) mix(word);
  return hash;
}

void Maker::end_draw() {
  if (!draw || !producer) return;
  if (draw->ended(&producer->drawn_to)) return;
  refusal = Refusal::Random;
  producer.reset();
}

void Replays::link(Maker* maker) {
  if (!maker->producer) return;
  const auto refuse = [maker](Refusal why) {
    maker->refusal = why;
    maker->producer.reset();
  };
  const Producer& producer = *maker->producer;
  const c10::StorageImpl* const written = producer.written < 0 ? nullptr : producer.inputs[producer.written].impl;
  for (KeptInput& input : maker->producer->inputs) {
    c10::StorageImpl* impl = std::exchange(input.impl, nullptr);
    // It would have to be there in two versions.
    if (impl == written && !producer.writes(input)) return refuse(Refusal::Arguments);
    if (input.copy || !maker->info->reads_inputs) continue;  // zeros_like and the like want a shape
    Storage* storage = find_(impl);
    if (!storage || storage->given_out()) return refuse(Refusal::Foreign);
    if (input.blank) continue;
    if (producer.writes(input) && !(storage->value && storage->value->producer)) return refuse(Refusal::InputLost);
    if (!storage->value) {
      storage->value = std::make_shared<Value>();
      storage->value->storage = storage;
    }
    input.value = storage->value;
  }
}

bool Replays::attach(Maker* maker, int32_t result, const at::Tensor& tensor, Storage* storage) {
  // An op inside may have made it; and where it returns an input, or was given the storage, it has not made it at all,
  // unless it is one in place: that has ended the value that was there.
  if (storage->value || storage->given_out()) return false;
  if (storage->uid < maker->first_uid && !maker->info->in_place) return false;
  storage->maker = maker->info->id;
  storage->refusal = maker->refusal;
  if (!maker->producer) return true;
  if (!plain(tensor)) {
    storage->refusal = Refusal::Arguments;
    return true;
  }
  auto& results = maker->producer->results;
  if (results.size() <= static_cast<size_t>(result)) results.resize(result + 1);
  results[result] = form_of(tensor);
  storage->value = std::make_shared<Value>();
  storage->value->storage = storage;
  storage->value->producer = maker->producer;
  storage->value->result = result;
  return true;
}

std::atomic<int64_t> Producer::count{0};

Producer::Producer() { ++count; }

// A line of values that only hold each other goes one by one: recursion could be as deep as the step is long.
Producer::~Producer() {
  static thread_local std::vector<std::shared_ptr<Value>> going;
  static thread_local bool draining = false;
  --count;
  try {
    for (KeptInput& input : inputs) {
      if (input.value) going.push_back(std::move(input.value));
    }
  } catch (const std::bad_alloc&) {  // they go with their inputs, then
  }
  if (draining) return;
  draining = true;
  while (!going.empty()) {
    const std::shared_ptr<Value> value = std::move(going.back());
    going.pop_back();
  }
  draining = false;
}

at::Tensor KeptInput::memory() const {
  const c10::impl::ForceDispatchKeyGuard keys(
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset | c10::python_ks);
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(form.device()));
}

at::Tensor Producer::run(int32_t result, const std::vector<void*>& data) const {
  const c10::DispatchKeySet excluded =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::python_ks |
      (c10::autocast_dispatch_keyset - c10::DispatchKeySet(c10::DispatchKeySet::RAW, surroundings->autocast));
  c10::impl::ForceDispatchKeyGuard keys(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), excluded);
  c10::AutoGradMode no_grad(false);
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  at::Generator generator;
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) {
      generator = argument.toGenerator().clone();
      stack.emplace_back(generator);
    } else {
      stack.push_back(argument.isList() ? c10::IValue(copy_of(argument)) : argument);
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const KeptInput& input = inputs[i];
    at::Tensor tensor =
        shell_of(input.form, input.copy ? input.copy : storage_over(data[i], input.bytes, input.form.device()));
    if (input.element < 0) {
      stack[input.argument] = std::move(tensor);
    } else {
      stack[input.argument].toList().set(input.element, c10::IValue(std::move(tensor)));
    }
  }
  {
    Reenacted then(*surroundings);
    info->handle->callBoxed(&stack);
  }
  at::Tensor made;
  if (static_cast<size_t>(result) < stack.size() && stack[result].isTensor()) made = stack[result].toTensor();
  TORCH_CHECK(made.defined() && same_form(made, results[result]) && is_where_it_was(made, data),
              "Chameleon Lab: replaying ", info->name,
              " gave a tensor of another form than the first run. Please report this; "
              "`Session(rematerialize=False)` goes without replays.");
  TORCH_CHECK(
      !drawn_to || Draw::position(generator) == *drawn_to, "Chameleon Lab: ", info->name,
      " cannot draw its numbers again: while it drew them, another thread set the state of its generator, or drew "
      "from that without an op. Give one of the two a generator of its own, or use "
      "`Session(rematerialize=False)`.");
  return made;
}

// In the memory that an op in place was given to write; else in memory of its own, which may be written.
bool Producer::is_where_it_was(const at::Tensor& made, const std::vector<void*>& data) const {
  const void* const block = made.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (data[i] && (block == data[i]) != writes(inputs[i])) return false;
  }
  return true;
}

// --- values

// Ops to replay in a row for a value that is gone; 0: it is not. More than `most` where that is not enough, and kNever
// where nothing is, or will be soon. Each value is looked at once: lines that part and meet again would be
// exponentially many.
int32_t Replays::line_below(Value& value, int32_t most) {
  if (!value.gone()) return value.ending ? kNever : 0;
  if (!value.producer) return kNever;
  if (value.mark == mark_) return value.line;
  if (most == 0) return 1;
  int32_t longest = 0;
  for (const KeptInput& input : value.producer->inputs) {
    if (input.value) longest = std::max(longest, line_below(*input.value, most - 1));
    if (longest >= most) return longest >= kNever ? kNever : most + 1;  // too long whatever the rest is
  }
  value.mark = mark_;
  value.line = longest + 1;
  return value.line;
}

// Ops that come in a row after it until storages have their bytes that are made from it.
int32_t Replays::line_above(Value& value) {
  if (value.mark == mark_) return value.line;
  int32_t longest = 0;
  for (Value* dependent : value.dependents) {
    longest = std::max(longest, 1 + (dependent->gone() ? line_above(*dependent) : 0));
  }
  value.mark = mark_;
  value.line = longest;
  return longest;
}

// Could it be made again, were its bytes gone?
Refusal Replays::why_not(Value& value) {
  ++mark_;
  int32_t below = 0;
  for (const KeptInput& input : value.producer->inputs) {
    if (input.value) below = std::max(below, line_below(*input.value, kLongestChain - 1));
  }
  if (below >= kNever) return Refusal::InputLost;
  ++mark_;
  return below + 1 + line_above(value) > kLongestChain ? Refusal::TooLong : Refusal::None;
}

Refusal Replays::drop(Storage& storage) {
  if (storage.residency != Residency::Resident || storage.pins > 0) return Refusal::InUse;
  if (!movable_(storage)) return Refusal::Unmovable;
  if (!storage.value || !storage.value->producer) {
    return storage.refusal == Refusal::None ? Refusal::Written : storage.refusal;
  }
  const Refusal refusal = why_not(*storage.value);
  if (refusal != Refusal::None) return refusal;
  return hold(*storage.value) ? Refusal::None : Refusal::NoMemory;
}

// False: there is no memory for it, and it holds nothing.
bool Replays::hold(Value& value) {
  value.held = true;
  const auto holds = [&](Value& made_from) {
    made_from.dependents.push_back(&value);
    return made_from.has_bytes() || made_from.held || hold(made_from);
  };
  try {
    const auto& inputs = value.producer->inputs;
    const auto held = [&](const KeptInput& input) { return !input.value || holds(*input.value); };
    if (std::all_of(inputs.begin(), inputs.end(), held)) return true;
  } catch (const std::bad_alloc&) {
  }
  release(value);
  return false;
}

void Replays::release(Value& value) {
  value.held = false;
  for (const KeptInput& input : value.producer->inputs) {
    if (!input.value) continue;
    Value& made_from = *input.value;
    auto& dependents = made_from.dependents;
    const auto dependent = std::find(dependents.begin(), dependents.end(), &value);
    if (dependent == dependents.end()) continue;  // hold() found no memory before it came to this one
    dependents.erase(dependent);
    if (!dependents.empty()) continue;
    if (!made_from.storage) {
      if (made_from.held) release(made_from);
      gone(made_from);
    } else if (made_from.storage->ghost && made_from.storage->pins == 0 && !made_from.storage->retained) {
      end_ghost(*made_from.storage);
    }
  }
}

// Its value may be held itself: one that is retained may be dropped meanwhile.
void Replays::end_ghost(Storage& ghost) {
  const std::shared_ptr<Value> value = std::move(ghost.value);
  ghost.value.reset();
  value->storage = nullptr;
  if (value->held) release(*value);
  gone(*value);
  free_ghost_(ghost);
}

// Values that are gone are remembered only for as long as a chain may be.
void Replays::gone(Value& value) {
  value.gone_in_a_row = 1;
  if (!value.producer) return;
  for (const KeptInput& input : value.producer->inputs) {
    if (!input.value || input.value->storage) continue;
    value.gone_in_a_row = std::max(value.gone_in_a_row, input.value->gone_in_a_row + 1);
  }
  if (value.gone_in_a_row >= kLongestChain && !value.held) value.producer.reset();
}

void Replays::restored(Storage& storage) {
  if (storage.value->held) release(*storage.value);
}

std::vector<std::shared_ptr<Value>> Replays::dropped_dependents(const Storage& storage) {
  std::vector<std::shared_ptr<Value>> found;
  std::vector<const Value*> open;
  if (storage.value) open.push_back(storage.value.get());
  ++mark_;
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    for (Value* dependent : value->dependents) {
      if (std::exchange(dependent->mark, mark_) == mark_) continue;
      if (dependent->storage) {
        found.push_back(dependent->storage->value);
      } else {
        open.push_back(dependent);
      }
    }
  }
  return found;
}

void Replays::ended(Storage& storage, Refusal why) {
  storage.refusal = why;
  if (!storage.value) return;
  const std::shared_ptr<Value> value = std::move(storage.value);
  storage.value.reset();
  value->storage = nullptr;
  gone(*value);
}

bool Replays::died(Storage& storage, bool retained) {
  if (!storage.value) return false;
  if (retained && !storage.replaying) return true;
  const std::shared_ptr<Value> value = storage.value;
  if (!value->dependents.empty()) {
    const bool dropped = storage.residency == Residency::Dropped;
    if (!dropped && (storage.pins > 0 || !value->producer || why_not(*value) != Refusal::None)) return true;
    if (!dropped && !hold(*value)) return true;
  } else if (value->held && !storage.replaying) {
    release(*value);
  }
  storage.value.reset();
  value->storage = nullptr;
  gone(*value);
  return false;
}

void Replays::let_go(Storage& ghost) {
  if (ghost.pins == 0 && ghost.value && !ghost.replaying && !needed(ghost)) end_ghost(ghost);
}

void Replays::gave_up(const std::shared_ptr<Value>& value) {
  if (value->held && value->dependents.empty()) release(*value);
  gone(*value);
}

// A value that goes after what was made from it does not count towards gone_in_a_row, so lines of gone values can grow:
// those that no storage reaches within the longest chain are cut off here, once a step.
void Replays::prune(const StorageTable& table) {
  ++mark_;
  std::vector<Value*> level;
  for (const auto& storage : table.all()) {
    if (storage->value && storage->value->producer) level.push_back(storage->value.get());
  }
  for (int32_t depth = 1; depth <= kLongestChain && !level.empty(); ++depth) {
    std::vector<Value*> next;
    for (const Value* value : level) {
      for (const KeptInput& input : value->producer->inputs) {
        Value* made_from = input.value.get();
        if (!made_from || made_from->storage || !made_from->producer || made_from->mark == mark_) continue;
        made_from->mark = mark_;
        next.push_back(made_from);
      }
    }
    level = std::move(next);
  }
  for (Value* value : level) {
    if (!value->held) value->producer.reset();
  }
}

void Replays::forget(Storage& storage) {
  if (!storage.value) return;
  const std::shared_ptr<Value> value = std::move(storage.value);
  storage.value.reset();
  storage.refusal = Refusal::Unknown;
  value->storage = nullptr;
  if (value->held) release(*value);  // those that it was made from must not know it any more
  value->producer.reset();
}

}  // namespace chameleon
