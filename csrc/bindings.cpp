// chameleon_lab._C: a thin face of the runtime. chameleon_lab/runtime/core.py gives it types and words.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives.h"
#include "crc32c.h"
#include "device/cpu/copy_engine.h"
#include "device/registry.h"
#include "dlpack_loans.h"
#include "faults.h"
#include "module_hooks.h"
#include "op_info.h"
#include "overlap.h"
#include "regions.h"
#include "released.h"
#include "runtime.h"
#include "storage_access.h"
#include "surroundings.h"

namespace py = pybind11;
using chameleon::Runtime;

namespace {

using nogil = py::call_guard<chameleon::Released>;

template <class Row>
py::array_t<Row> as_array(const std::vector<Row>& rows) {
  return py::array_t<Row>(static_cast<py::ssize_t>(rows.size()), rows.data());
}

// What the numbers in rows mean: Python's enums are compared with these in a test.
py::dict enums() {
  using namespace chameleon;
  py::dict all;
  const auto add = [&](const char* name, std::initializer_list<std::pair<const char*, int>> values) {
    py::dict of_one;
    for (const auto& [value, number] : values) of_one[value] = number;
    all[name] = of_one;
  };
#define OF(type, value) {#value, static_cast<int>(type::value)}
  add("Stage", {OF(Stage, Forward), OF(Stage, Backward), OF(Stage, Optimizer), OF(Stage, NoGrad)});
  add("Category", {OF(Category, Parameter), OF(Category, Gradient), OF(Category, OptimizerState),
                   OF(Category, Activation), OF(Category, Input), OF(Category, Other)});
  add("Direction", {OF(Direction, Out), OF(Direction, In)});
  add("Cause", {OF(Cause, Planned), OF(Cause, Evict), OF(Cause, Demand), OF(Cause, Access)});
  add("PauseKind", {OF(PauseKind, Idle), OF(PauseKind, Loading), OF(PauseKind, Cells)});
  add("ActionKind", {OF(ActionKind, Free), OF(ActionKind, SwapIn), OF(ActionKind, SwapOut), OF(ActionKind, Drop),
                     OF(ActionKind, Replay), OF(ActionKind, Release)});
  add("Refusal", {OF(Refusal, None), OF(Refusal, Op)});
#undef OF
  return all;
}

// Tensor._cdata is the address of its TensorImpl: no need for torch's own (slow to compile) bindings.
c10::StorageImpl* storage_of(uintptr_t tensor_impl) {
  auto* impl = reinterpret_cast<c10::TensorImpl*>(tensor_impl);
  return impl->has_storage() ? impl->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

// Not wrap_tensor_impl(): it asks for the address, which a fake tensor has not, and which raises for what is away where
// torch has no hook (2.12).
at::Tensor tensor_of(c10::TensorImpl* impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::unsafe_reclaim_from_nonowning(impl));
}

// DLPack exports hold the tensor itself. Python holds it once, however many names it has there; autograd once as a
// gradient, and once more while a graph that ends in it is alive.
bool held_elsewhere(uintptr_t tensor_impl, chameleon::Category category) {
  auto* impl = reinterpret_cast<c10::TensorImpl*>(tensor_impl);
  size_t known = category == chameleon::Category::Gradient ? 2 : 1;
  if (impl->requires_grad() && torch::autograd::impl::try_get_grad_accumulator(tensor_of(impl))) ++known;
  return c10::raw::intrusive_ptr::use_count(impl) > known;
}

std::vector<at::Tensor> tensors_at(const std::vector<uintptr_t>& addresses) {
  std::vector<at::Tensor> tensors;
  for (const uintptr_t address : addresses) {
    tensors.push_back(tensor_of(reinterpret_cast<c10::TensorImpl*>(address)));
  }
  return tensors;
}

std::vector<std::string> symbolized(const chameleon::StepLog& log) {
  std::vector<torch::CapturedTraceback*> captured;
  for (const auto& stack : log.stacks) captured.push_back(stack.get());
  if (captured.empty()) return {};
  const torch::SymbolizedTracebacks symbols = torch::symbolize(captured);
  std::vector<std::string> texts;
  for (const auto& frames : symbols.tracebacks) {
    std::string text;
    for (const uint64_t index : frames) {
      const auto& frame = symbols.all_frames[index];
      if (!text.empty()) text += '\n';
      text += frame.filename + ":" + std::to_string(frame.lineno) + " " + frame.funcname;
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

py::array_t<chameleon::TransferRow> transfers(const chameleon::StepLog& log) {
  std::vector<chameleon::TransferRow> rows = log.transfers;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::tie(rows[i].start_ticks, rows[i].end_ticks) =
        log.copy_times(i).value_or(std::pair<chameleon::Ticks, chameleon::Ticks>{0, 0});
    rows[i].bytes = log.copied_bytes(i);
  }
  return as_array(rows);
}

// A step's counters by name. Only one thread at a time may settle a log: the one that has the GIL.
std::map<std::string, int64_t> counts(chameleon::StepLog& log) {
  log.settle();
  std::map<std::string, int64_t> found;
#define CHAMELEON_COUNTER(name) found[#name] = log.name;
  CHAMELEON_STEP_COUNTERS(CHAMELEON_COUNTER)
#undef CHAMELEON_COUNTER
#define CHAMELEON_COUNTER(name) found[#name] = log.allocator.name;
  CHAMELEON_ALLOCATOR_EVENTS(CHAMELEON_COUNTER)
#undef CHAMELEON_COUNTER
  return found;
}

void wait_until_settled(chameleon::StepLog& log) {
  for (log.settle(); !log.settled(); log.settle()) {
    const chameleon::Released release;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

template <class T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <class T>
std::vector<T> values(const Column<T>& column) {
  return {column.data(), column.data() + column.size()};
}

std::shared_ptr<chameleon::Program> make_program(const Column<uint32_t>& tokens, const Column<int64_t>& uid,
                                                 const Column<int32_t>& birth_op, const Column<int32_t>& birth_ordinal,
                                                 const Column<int64_t>& bytes, const Column<uint8_t>& category,
                                                 const Column<int32_t>& label, const Column<uint32_t>& uses_offset,
                                                 const Column<int32_t>& uses, const Column<uint8_t>& evict_last,
                                                 const Column<int64_t>& host_place, const Column<uint8_t>& host_kept,
                                                 const Column<int32_t>& action_op, const Column<uint8_t>& action_kind,
                                                 const Column<int32_t>& action_storage) {
  const py::ssize_t count = uid.size();
  if (birth_op.size() != count || birth_ordinal.size() != count || bytes.size() != count || category.size() != count ||
      label.size() != count || uses_offset.size() != count + 1 || evict_last.size() != count ||
      host_place.size() != count || host_kept.size() != count || action_kind.size() != action_op.size() ||
      action_storage.size() != action_op.size()) {
    throw std::invalid_argument("program: columns of one table differ in length");
  }
  std::vector<chameleon::PlanStorage> storages;
  for (py::ssize_t i = 0; i < count; ++i) {
    storages.push_back({uid.at(i), birth_op.at(i), birth_ordinal.at(i), bytes.at(i), uses_offset.at(i),
                        uses_offset.at(i + 1), category.at(i), label.at(i), evict_last.at(i) != 0, host_place.at(i),
                        host_kept.at(i) != 0});
  }
  std::vector<chameleon::Action> actions;
  for (py::ssize_t i = 0; i < action_op.size(); ++i) {
    if (action_kind.at(i) > static_cast<int>(chameleon::ActionKind::Release))
      throw std::invalid_argument("program: unknown kind of action");
    actions.push_back({action_op.at(i), static_cast<chameleon::ActionKind>(action_kind.at(i)), action_storage.at(i)});
  }
  std::vector<uint32_t> sequence = values(tokens);
  std::vector<int32_t> use_ops = values(uses);
  const chameleon::Released release;  // indexing a long sequence takes milliseconds
  return std::make_shared<chameleon::Program>(std::move(sequence), std::move(storages), std::move(use_ops),
                                              std::move(actions));
}

// For tests and benchmarks: the matcher alone.
struct SequenceMatcher {
  explicit SequenceMatcher(const Column<uint32_t>& tokens) : sequence(values(tokens)) { matcher.reset(&sequence); }
  SequenceMatcher(const SequenceMatcher&) = delete;
  SequenceMatcher& operator=(const SequenceMatcher&) = delete;

  chameleon::Sequence sequence;
  chameleon::Matcher matcher;
};

// Every token's op, or -1; and the nanoseconds that all of them took.
std::pair<py::array_t<int32_t>, int64_t> match_all(SequenceMatcher& self, const Column<uint32_t>& tokens) {
  py::array_t<int32_t> ops(tokens.size());
  int32_t* out = ops.mutable_data();
  const auto start = std::chrono::steady_clock::now();
  for (py::ssize_t i = 0; i < tokens.size(); ++i) out[i] = self.matcher.match(tokens.data()[i]).op;
  const auto took = std::chrono::steady_clock::now() - start;
  return {ops, std::chrono::duration_cast<std::chrono::nanoseconds>(took).count()};
}

// For tests: the copy engine alone. Copies with one ahead of them that has begun and can't go on; the order in which
// they begin when it can.
std::vector<size_t> copy_order(const std::vector<bool>& urgent) {
  chameleon::cpu::CopyEngine gate, engine;
  std::vector<char> from(1 << 20), to(1 << 20);
  gate.set_bandwidth(1);
  const auto held = gate.submit(to.data(), from.data(), from.size(), nullptr);
  engine.submit(to.data(), from.data(), 1, held);
  std::vector<std::pair<chameleon::Ticks, size_t>> begun;
  std::vector<std::shared_ptr<chameleon::cpu::CopyEvent>> copies;
  for (const bool one : urgent) copies.push_back(engine.submit(to.data(), from.data(), 1, nullptr, one));
  held->cancel();
  engine.drain();
  for (size_t i = 0; i < copies.size(); ++i) begun.emplace_back(copies[i]->start_ticks(), i);
  std::sort(begun.begin(), begun.end());
  std::vector<size_t> order;
  for (const auto& one : begun) order.push_back(one.second);
  return order;
}

using Sizes = py::typing::Tuple<py::int_, py::ellipsis>;

Sizes sizes_tuple(const std::vector<int64_t>& sizes) { return Sizes(py::tuple(py::cast(sizes))); }

const char* residency_name(chameleon::Residency residency) {
  switch (residency) {
    case chameleon::Residency::Resident:
      return "resident";
    case chameleon::Residency::Leaving:
      return "leaving";
    case chameleon::Residency::Away:
      return "away";
    case chameleon::Residency::Returning:
      return "returning";
    case chameleon::Residency::Dropped:
      return "dropped";
  }
  return "unknown";
}

// No dtypes: whatever it is called with.
uint64_t dtype_bits(const std::vector<std::string>& names) {
  if (names.empty()) return ~uint64_t{0};
  static const std::unordered_map<std::string, c10::ScalarType> types = {
      {"float16", c10::ScalarType::Half},           {"bfloat16", c10::ScalarType::BFloat16},
      {"float32", c10::ScalarType::Float},          {"float64", c10::ScalarType::Double},
      {"complex64", c10::ScalarType::ComplexFloat}, {"complex128", c10::ScalarType::ComplexDouble}};
  uint64_t bits = 0;
  for (const std::string& name : names) bits |= uint64_t{1} << static_cast<int>(types.at(name));
  return bits;
}

const char* adopted_name(Runtime::Adopted adopted) {
  switch (adopted) {
    case Runtime::Adopted::New:
      return "new";
    case Runtime::Adopted::Known:
      return "known";
    case Runtime::Adopted::TooSmall:
      return "too small";
    case Runtime::Adopted::Foreign:
      return "foreign";
    case Runtime::Adopted::Shared:
      return "shared";
    case Runtime::Adopted::NoRoom:
      return "no room";
  }
  return "unknown";
}

py::typing::Dict<py::str, py::typing::Union<py::int_, py::float_>> counter_values(const chameleon::Counters& c) {
  py::typing::Dict<py::str, py::typing::Union<py::int_, py::float_>> d;
  d["capacity_bytes"] = c.memory.capacity_bytes;
  d["resident_bytes"] = c.memory.resident_bytes;
  d["cached_bytes"] = c.memory.cached_bytes;
  d["peak_resident_bytes"] = c.memory.peak_resident_bytes;
  d["peak_reserved_bytes"] = c.memory.peak_reserved_bytes;
  d["other_bytes"] = c.memory.other_bytes;
  d["split_bytes"] = c.memory.split_bytes;
  d["live_bytes"] = c.live_bytes;
  d["storages"] = c.storages;
  d["escaped"] = c.escaped;
  d["escaped_bytes"] = c.escaped_bytes;
  d["dropped"] = c.dropped;
  d["ghosts"] = c.ghosts;
  d["producers"] = c.producers;
  d["forward_nodes"] = c.forward_nodes;
  d["host_used_bytes"] = c.host_used_bytes;
  d["host_reserved_bytes"] = c.host_reserved_bytes;
  d["host_peak_bytes"] = c.host_peak_bytes;
  d["host_pinned_bytes"] = c.host_pinned.bytes;
  d["host_pins"] = c.host_pinned.pins;
  d["host_pinning_s"] = c.host_pinned.pinning_s;
  d["host_placed"] = c.host_placed;
  d["host_misplaced"] = c.host_misplaced;
  d["step"] = c.step;
  d["ops_in_step"] = c.ops_in_step;
  d["recent_ops"] = c.recent.ops;
  d["recent_matched_ops"] = c.recent.matched_ops;
  d["recent_due_bytes"] = c.recent.due_bytes;
  d["recent_fired_bytes"] = c.recent.fired_bytes;
  return d;
}

using DiskValues = py::typing::Dict<py::str, py::object>;

std::optional<DiskValues> disk_values(const std::optional<chameleon::DiskCounters>& counters) {
  if (!counters) return std::nullopt;
  DiskValues d;
#define CHAMELEON_COUNTER(name) d[#name] = counters->name;
  CHAMELEON_DISK_COUNTERS(CHAMELEON_COUNTER)
#undef CHAMELEON_COUNTER
  d["file_bytes"] = counters->file_bytes;
  d["direct"] = counters->direct;
  d["refusal"] = counters->refusal;
  return d;
}

using FailureValues = py::typing::Dict<py::str, py::object>;

std::optional<FailureValues> failure_values(const std::optional<chameleon::Failure>& failure) {
  if (!failure) return std::nullopt;
  FailureValues d;
  d["op"] = failure->op;
  d["request_bytes"] = failure->request_bytes;
  d["pinned_bytes"] = failure->pinned_bytes;
  d["unmovable_bytes"] = failure->unmovable_bytes;
  d["other_bytes"] = failure->other_bytes;
  d["useless_bytes"] = failure->useless_bytes;
  d["needed_bytes"] = failure->needed_bytes();
  d["capacity_bytes"] = failure->capacity_bytes;
  d["below_floor"] = failure->below_floor;
  d["needs"] = failure->needs;
  d["advice"] = failure->advice;
  d["step"] = failure->step;
  d["ops"] = failure->ops;
  d["since"] = failure->since;
  return d;
}

// The rate of ticks is the better known the longer it runs.
const chameleon::Clock& process_clock() {
  static const chameleon::Clock clock;
  return clock;
}

const char* adopt_at(Runtime& runtime, uintptr_t tensor, int category, int32_t label, size_t owners, bool trusted,
                     bool evict_last) {
  c10::StorageImpl* storage = storage_of(tensor);
  if (!storage) return "foreign";
  // What is the device's already does not move now, and its pointers are seen.
  const bool known = runtime.residency(storage).has_value();
  // Small ones are never ours, whoever holds them.
  const bool small = runtime.is_small(storage->nbytes());
  if (!known && !trusted && !small && held_elsewhere(tensor, static_cast<chameleon::Category>(category)))
    return "shared";
  const chameleon::Released release;
  return adopted_name(
      runtime.adopt(storage, static_cast<chameleon::Category>(category), label, owners, trusted, evict_last));
}

chameleon::Fault& disk_fault(const std::string& name) {
  chameleon::Faults& all = chameleon::faults();
  if (name == "writes") return all.disk_writes;
  if (name == "reads") return all.disk_reads;
  if (name == "short_moves") return all.disk_short_moves;
  if (name == "flips") return all.disk_flips;
  if (name == "full") return all.disk_full;
  if (name == "flushes") return all.disk_flushes;
  throw std::invalid_argument("no fault of the disk: " + name);
}

// What is one session's own; runtime/core.py makes the handle of it.
void bind_runtime(py::module_& m) {
  py::class_<Runtime, std::unique_ptr<Runtime, py::nodelete>>(m, "Runtime", "That of one device.")
      .def(py::init([](const std::string& device) {
             const chameleon::Released release;
             return &Runtime::of(c10::Device(device));
           }),
           py::arg("device"))
      .def("open", &Runtime::open, nogil())
      .def("close", &Runtime::close, nogil())
      .def("is_open", &Runtime::is_open)
      .def("set_capacity", &Runtime::set_capacity, nogil())
      .def("set_link", &Runtime::set_link, nogil())
      .def("measure_link", &Runtime::measure_link, nogil(), "Bytes per second (out, in) that copies reach now.")
      .def("pageable_host_bytes", &Runtime::pageable_host_bytes, nogil())
      .def("reserve_host", &Runtime::reserve_host, nogil())
      .def("end_step", &Runtime::end_step, nogil())
      .def("step_so_far", &Runtime::step_so_far, nogil())
      .def("logs", &Runtime::logs, nogil())
      .def("time_ops", &Runtime::time_ops)
      .def("own_work", &Runtime::own_work, nogil(), "The session itself works between ops: no pause of the loop.")
      .def("record_stacks", &Runtime::record_stacks)
      .def("mark_names", &Runtime::mark_names, nogil())
      .def("shapes",
           [](Runtime& runtime) {
             py::typing::List<Sizes> all;
             std::vector<std::vector<int64_t>> shapes;
             {
               const chameleon::Released release;
               shapes = runtime.shapes();
             }
             for (const auto& sizes : shapes) all.append(sizes_tuple(sizes));
             return all;
           })
      .def("set_optimizer_stage", &Runtime::set_optimizer_stage)
      .def(
          "add_program",
          [](Runtime& runtime, int64_t id, std::shared_ptr<chameleon::Program> program) {
            runtime.add_program(id, std::move(program));
          },
          "Let the executor know a program. It follows one where the ops are its own.")
      .def("drop_program", &Runtime::drop_program)
      .def("use_program", &Runtime::use_program)
      .def("name_module", &Runtime::name_module)
      .def("name_label", &Runtime::name_label)
      .def("adopt_at", &adopt_at)
      .def("set_evict_last",
           [](Runtime& runtime, const Column<int64_t>& uids) {
             runtime.set_evict_last({uids.data(), uids.data() + uids.size()});
           })
      .def(
          "allow",
          [](Runtime& runtime, const std::unordered_map<std::string, std::vector<std::string>>& dtypes) {
            std::unordered_map<std::string, uint64_t> bits;
            for (const auto& [name, allowed] : dtypes) bits[name] = dtype_bits(allowed);
            runtime.allow_replays(bits);
          },
          nogil())
      .def("keep_producers", &Runtime::keep_producers, nogil(),
           "Whether it is known of values how they were made, even where no program drops anything.")
      .def("evict_always", &Runtime::evict_always, nogil())
      .def(
          "take_transitions",
          [](Runtime& runtime) {
            py::typing::List<py::typing::Tuple<py::int_, py::str, py::str>> moves;
            for (const auto& [uid, from, to] : runtime.take_transitions()) {
              moves.append(py::make_tuple(uid, residency_name(from), residency_name(to)));
            }
            return moves;
          },
          "(uid, from, to) of storages since the last call; the first one begins to keep them.")
      .def("count", [](Runtime& runtime) { return counter_values(runtime.counters()); })
      .def("backwards", &Runtime::backwards, nogil(), "How many backwards have been seen to begin.")
      .def("disk_count", [](Runtime& runtime) { return disk_values(runtime.disk_counters()); })
      .def("allocator_setting", &Runtime::allocator_setting)
      .def("taken_failure",
           [](Runtime& runtime, std::optional<std::string_view> told) {
             return failure_values(runtime.take_failure(told));
           })
      .def("known_failure",
           [](Runtime& runtime, std::string_view told) { return failure_values(runtime.failure_of(told)); });
}

}  // namespace

namespace {
// See PythonLock.
void* release_python() { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
void take_python(void* released) { chameleon::Released::take(static_cast<PyThreadState*>(released)); }
}  // namespace

PYBIND11_MODULE(_C, m) {
  chameleon::set_python_lock({&release_python, &take_python});
  m.doc() = "The C++ core of chameleon_lab: recorder, swapper, executor and the embedded CPU device.";
  m.attr("built_for_torch") = TORCH_VERSION;
  m.attr("sees_raw_access") = chameleon::access::has_hook();

  PYBIND11_NUMPY_DTYPE(chameleon::OpRow, start_ticks, end_ticks, stall_ticks, device_ticks, sequence_nr,
                       live_peak_bytes, resident_peak_bytes, name, module, thread, stack, plan_op, stage, token);
  PYBIND11_NUMPY_DTYPE(chameleon::StorageRow, uid, bytes, block_bytes, module, label, birth_op, birth_ordinal, death_op,
                       shape, dtype, category, movable);
  PYBIND11_NUMPY_DTYPE(chameleon::MarkRow, start_ticks, end_ticks, name, thread, from_op, to_op);
  PYBIND11_NUMPY_DTYPE(chameleon::UseRow, op, storage, part, reads, writes);
  PYBIND11_NUMPY_DTYPE(chameleon::PauseRow, start_ticks, end_ticks, op, kind);
  PYBIND11_NUMPY_DTYPE(chameleon::TransferRow, bytes, due_ticks, issue_ticks, start_ticks, end_ticks, storage, issue_op,
                       direction, cause);
  PYBIND11_NUMPY_DTYPE(chameleon::ResidencyRow, from_ticks, to_ticks, storage, from_op, to_op);
  PYBIND11_NUMPY_DTYPE(chameleon::DepartureRow, from_op, to_op, plan_op, plan_to_op);
  PYBIND11_NUMPY_DTYPE(chameleon::ReplayRow, start_ticks, end_ticks, bytes, op, storage, name, cause);
  PYBIND11_NUMPY_DTYPE(chameleon::DeclinedRow, op, storage, name, refusal);
  PYBIND11_NUMPY_DTYPE(chameleon::MakingRow, making, op, storage, name, input, refusal);
  PYBIND11_NUMPY_DTYPE(chameleon::StallRow, start_ticks, end_ticks, due_ticks, issue_ticks, copy_start_ticks,
                       copy_end_ticks, room_bytes, room_storage, op, storage, direction, cause);

  py::class_<chameleon::Options>(m, "Options")
      .def(py::init<>())
      .def_readwrite("capacity_bytes", &chameleon::Options::capacity_bytes)
      .def_readwrite("host_capacity_bytes", &chameleon::Options::host_capacity_bytes)
      .def_property(
          "disk_folder", [](const chameleon::Options& options) { return options.disk.folder; },
          [](chameleon::Options& options, std::string folder) { options.disk.folder = std::move(folder); })
      .def_property(
          "disk_capacity_bytes", [](const chameleon::Options& options) { return options.disk.capacity_bytes; },
          [](chameleon::Options& options, size_t bytes) { options.disk.capacity_bytes = bytes; })
      .def_property(
          "disk_verify", [](const chameleon::Options& options) { return options.disk.verify; },
          [](chameleon::Options& options, bool on) { options.disk.verify = on; })
      .def_readwrite("link_out_bytes_per_s", &chameleon::Options::link_out_bytes_per_s)
      .def_readwrite("link_in_bytes_per_s", &chameleon::Options::link_in_bytes_per_s)
      .def_readwrite("min_swap_bytes", &chameleon::Options::min_swap_bytes)
      .def_readwrite("min_tracked_bytes", &chameleon::Options::min_tracked_bytes)
      .def_readwrite("splits_lists", &chameleon::Options::splits_lists)
      .def_readwrite("max_ops", &chameleon::Options::max_ops)
      .def_readwrite("stacks", &chameleon::Options::stacks)
      .def_readwrite("trusting", &chameleon::Options::trusting)
      .def_readwrite("unbacked", &chameleon::Options::unbacked)
      .def_readwrite("unbacked_block_bytes", &chameleon::Options::unbacked_block_bytes);

  py::class_<chameleon::StepLog, std::shared_ptr<chameleon::StepLog>>(m, "StepLog")
      .def_readonly("index", &chameleon::StepLog::index)
      .def_readonly("start_ticks", &chameleon::StepLog::start_ticks)
      .def_readonly("end_ticks", &chameleon::StepLog::end_ticks)
      .def_readonly("truncated_ops", &chameleon::StepLog::truncated_ops)
      .def_property_readonly(
          "lost_to",
          [](const chameleon::StepLog& log) {
            const char* text = log.lost_to.data();  // it may have been cut inside of a character
            return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(text, std::strlen(text), "ignore"));
          })
      .def_property_readonly("failed", [](const chameleon::StepLog& log) { return log.failed_op >= 0; })
      .def_readonly("live_peak_bytes", &chameleon::StepLog::live_peak_bytes)
      .def_readonly("peak_resident_bytes", &chameleon::StepLog::peak_resident_bytes)
      .def_property_readonly("swapped_out_bytes",
                             [](const chameleon::StepLog& log) { return log.moved_bytes(chameleon::Direction::Out); })
      .def_property_readonly("swapped_in_bytes",
                             [](const chameleon::StepLog& log) { return log.moved_bytes(chameleon::Direction::In); })
      .def_readonly("replay_count", &chameleon::StepLog::replay_count)
      .def_readonly("replay_ticks", &chameleon::StepLog::replay_ticks)
      .def_readonly("departure_count", &chameleon::StepLog::departure_count)
      .def_readonly("program", &chameleon::StepLog::program)
      .def_readonly("fingerprint", &chameleon::StepLog::fingerprint)
      .def("counts", &counts)
      .def("departures", [](const chameleon::StepLog& log) { return as_array(log.departures); })
      .def_property_readonly("stall_ticks", [](chameleon::StepLog& log) { return log.settle(), log.stall_ticks; })
      .def_property_readonly("settled", [](chameleon::StepLog& log) { return log.settle(), log.settled(); })
      .def("wait", &wait_until_settled)
      .def_property_readonly("op_count", [](const chameleon::StepLog& log) { return log.ops.size(); })
      .def("ops", [](chameleon::StepLog& log) { return log.settle(), as_array(log.ops); })
      .def("storages", [](const chameleon::StepLog& log) { return as_array(log.storages); })
      .def("uses", [](const chameleon::StepLog& log) { return as_array(log.uses); })
      .def("transfers", &transfers)
      .def("overlap", [](chameleon::StepLog& log) { return log.settle(), chameleon::overlap(log); })
      .def("stalls", [](chameleon::StepLog& log) { return log.settle(), as_array(log.stalls); })
      .def("residencies", [](const chameleon::StepLog& log) { return as_array(log.residencies); })
      .def("replays", [](const chameleon::StepLog& log) { return as_array(log.replays); })
      .def("declined", [](const chameleon::StepLog& log) { return as_array(log.declined); })
      .def("pauses", [](const chameleon::StepLog& log) { return as_array(log.pauses); })
      .def("makings", [](const chameleon::StepLog& log) { return as_array(log.makings); })
      .def("marks", [](const chameleon::StepLog& log) { return as_array(log.marks); })
      .def("stacks", &symbolized)
      .def_property_readonly("has_stacks", [](const chameleon::StepLog& log) { return !log.stacks.empty(); })
      .def_readonly("leaf_calls", &chameleon::StepLog::leaf_calls);

  py::class_<chameleon::TensorShape>(m, "TensorShape")
      .def_property_readonly("sizes", [](const chameleon::TensorShape& t) { return sizes_tuple(t.sizes); })
      .def_readonly("dtype", &chameleon::TensorShape::dtype)
      .def_readonly("bytes", &chameleon::TensorShape::bytes)
      .def_readonly("element_bytes", &chameleon::TensorShape::element_bytes);

  py::class_<chameleon::LeafCall>(m, "LeafCall")
      .def_readonly("op", &chameleon::LeafCall::op)
      .def_readonly("name", &chameleon::LeafCall::name)
      .def_readonly("overload", &chameleon::LeafCall::overload)
      .def_readonly("arguments", &chameleon::LeafCall::arguments)
      .def_readonly("results", &chameleon::LeafCall::results);

  m.def(
      "missing_device", [](const std::string& device) { return chameleon::missing_device(c10::Device(device)); },
      nogil(), "Why there is no such device here; empty if there is one.");
  m.def(
      "stand_in_front", [](const std::string& device) { chameleon::stand_in_front(c10::Device(device).type()); },
      nogil(), "Put the session's allocator in front of torch's, before others have that call them.");
  m.def("device_traits", [](const std::string& device) {
    const chameleon::DeviceTraits& traits = chameleon::device_traits(c10::Device(device).type());
    py::typing::Dict<py::str, py::bool_> d;
    d["emulated"] = traits.emulated;
    d["runs_behind"] = traits.runs_behind;
    d["pinned_host"] = traits.pinned_host;
    d["captures_graphs"] = traits.captures_graphs;
    return d;
  });
  m.def(
      "tensor_device", [](const std::string& device) { return Runtime::of(c10::Device(device)).torch_device().str(); },
      nogil(), "The torch device of the tensors that a session on the device owns.");
  m.def(
      "total_bytes", [](const std::string& device) { return Runtime::of(c10::Device(device)).total_bytes(); }, nogil());
  m.def(
      "pooled_host_bytes",
      [](const std::string& device) { return Runtime::of(c10::Device(device)).pooled_host_bytes(); }, nogil());
  m.def("release_host", &Runtime::release_host, nogil());
  m.def(
      "measure_pinning",
      [](const std::string& device, const std::string& way, size_t bytes) {
        return Runtime::of(c10::Device(device)).measure_pinning(way, bytes);
      },
      nogil(), "Seconds to touch, pin and unpin so many bytes; empty where the device pins none.");
  m.def("stand_aside", &Runtime::stand_aside,
        "The calling thread's ops and memory are none of any session's from here on, or are again.");
  m.def(
      "begin_pause", [](int kind) { Runtime::begin_pauses(static_cast<chameleon::PauseKind>(kind)); }, nogil(),
      "In every open session.");
  m.def("end_pause", &Runtime::end_pauses, nogil());
  m.def(
      "begin_mark", [](const std::string& name) { return Runtime::begin_marks(name.c_str()); }, nogil(),
      "In every open session. Returns what end_mark() takes.");
  m.def("end_mark", &Runtime::end_marks, nogil());
  m.def("scalar_types", [] {
    std::vector<std::string> names;
    for (int type = 0; type < static_cast<int>(c10::ScalarType::NumOptions); ++type) {
      names.emplace_back(c10::toString(static_cast<c10::ScalarType>(type)));
    }
    return names;
  });
  m.def("op_names", &chameleon::op_names);

  py::class_<chameleon::Program, std::shared_ptr<chameleon::Program>>(m, "Program")
      .def_property_readonly("ops", &chameleon::Program::ops)
      .def_property_readonly(
          "fingerprint", [](const chameleon::Program& program) { return program.sequence.prefix(program.ops()); },
          "Of its tokens; that of a step log with the same ones.");
  m.def("make_program", &make_program);
  bind_runtime(m);

  m.def("copy_order", &copy_order, nogil(), "The copy engine of the cpu device alone, for tests.");
  py::class_<SequenceMatcher>(m, "Matcher", "The matcher alone, for tests and benchmarks.")
      .def(py::init<const Column<uint32_t>&>())
      .def("match",
           [](SequenceMatcher& self, uint32_t token) {
             const auto match = self.matcher.match(token);
             return std::pair(match.op, match.settled);
           })
      .def("match_all", &match_all)
      .def_property_readonly("cursor", [](const SequenceMatcher& self) { return self.matcher.cursor(); });

  m.def("block_bytes", [](uintptr_t tensor) -> size_t {
    const c10::StorageImpl* storage = storage_of(tensor);
    const Runtime* owner = storage ? Runtime::owning(storage) : nullptr;
    return owner ? owner->block_bytes(storage->nbytes()) : 0;
  });
  m.def("restore", [](uintptr_t tensor) {
    c10::StorageImpl* storage = storage_of(tensor);
    Runtime* owner = storage ? Runtime::owning(storage) : nullptr;
    const chameleon::Released release;
    return !owner || owner->restore(storage);
  });
  m.def("evict", [](uintptr_t tensor) {
    c10::StorageImpl* storage = storage_of(tensor);
    Runtime* owner = storage ? Runtime::owning(storage) : nullptr;
    const chameleon::Released release;
    return owner && owner->evict(storage);
  });
  m.def("see_through", [](std::optional<std::unordered_set<std::string>> names) {
    TORCH_CHECK(!Runtime::any_open(), "Chameleon Lab: a session is open: its ops would change their kind");
    chameleon::see_through(std::move(names));
  });
  m.def("names_seen_through", &chameleon::names_seen_through);
  m.def("numerics_key", [](const std::string& device) {
    return py::bytes(chameleon::Surroundings::now(c10::Device(device).type())->key());
  });
  m.def("drop", [](uintptr_t tensor) {
    c10::StorageImpl* storage = storage_of(tensor);
    Runtime* owner = storage ? Runtime::owning(storage) : nullptr;
    const chameleon::Released release;
    const auto refusal = owner ? owner->drop(storage) : chameleon::Refusal::Unmovable;
    return static_cast<int>(refusal);
  });
  m.attr("refusals") = [] {
    py::tuple texts(chameleon::kRefusals);
    for (int i = 0; i < chameleon::kRefusals; ++i) {
      texts[i] = chameleon::refusal_text(static_cast<chameleon::Refusal>(i));
    }
    return texts;
  }();
  m.attr("ENUMS") = enums();
  m.attr("longest_chain") = chameleon::Replays::kLongestChain;
  m.def(
      "torch_is_watched", [] { return at::hasCallbacks(); }, "Does any RecordFunction callback see this thread's ops?");
  m.def(
      "set_faults",
      [](uint32_t refused_blocks, uint32_t refused_buffers, uint32_t refused_copies, int64_t copies) {
        chameleon::faults().refused_blocks = refused_blocks;
        chameleon::faults().refused_buffers = refused_buffers;
        chameleon::faults().refused_copies = refused_copies;
        chameleon::faults().copies = copies;
      },
      py::arg("refused_blocks") = 0, py::arg("refused_buffers") = 0, py::arg("refused_copies") = 0,
      py::arg("copies") = -1, "Faults on purpose, for tests; see faults.h. Without arguments: none.");
  m.def(
      "set_disk_fault",
      [](const std::string& name, uint32_t of_1024, int64_t most) {
        chameleon::Fault& fault = disk_fault(name);
        fault.left = most;
        fault.of_1024 = of_1024;
      },
      py::arg("name"), py::arg("of_1024") = 0, py::arg("most") = INT64_MAX,
      "A fault of the disk on purpose, for tests: of 1024 chances, so many, until `most` have been made.");
  m.def("disk_faults_made", [](const std::string& name) { return disk_fault(name).made.load(); });
  m.def(
      "refuse_direct_moves", [](bool on) { chameleon::faults().disk_refuses_direct = on; }, py::arg("on"),
      "For tests: disks that are opened from here on go through the page cache, as where a file system asks for it.");
  m.def(
      "crc32c",
      [](const py::bytes& data) {
        const std::string_view bytes = data;
        return std::pair(chameleon::crc32c(bytes.data(), bytes.size()),
                         chameleon::crc32c_by_table(bytes.data(), bytes.size()));
      },
      "For tests: by the processor's instruction, and by the table.");
  m.def(
      "hand_over_copies", [](bool on) { chameleon::faults().handed_over = on; }, py::arg("on"),
      "For tests: the CPU device's engines make small copies too, as a GPU's do; otherwise who asks makes them.");
  m.def(
      "begin_modeled_time",
      [](double op_s, double op_bytes_per_s, double link_bytes_per_s) {
        chameleon::modeled_time.begin({op_s, op_bytes_per_s, link_bytes_per_s});
      },
      py::arg("op_s"), py::arg("op_bytes_per_s"), py::arg("link_bytes_per_s"),
      "For tests: from now on ops and the CPU device's copies take what a model says. Call it while no session is "
      "open.");
  m.def("end_modeled_time", [] { chameleon::modeled_time.end(); }, "The clock is the machine's again.");
  m.def("time_is_modeled", [] { return chameleon::modeled_time.on(); });
  m.def("pretend_no_hook", &chameleon::access::pretend_no_hook, py::arg("on"),
        "For tests: raw accesses are not seen, as before torch 2.13. Call it while no session is open.");
  // These take UntypedStorage._cdata, the address of the StorageImpl.
  m.def(
      "hold",
      [](uintptr_t s) {
        auto* storage = reinterpret_cast<c10::StorageImpl*>(s);
        Runtime* owner = Runtime::owning(storage);
        if (!owner || owner->hold(storage)) return true;
        owner->take_failure();  // who asks says it
        return false;
      },
      nogil(), "False: there is no room.");
  m.def(
      "let_go",
      [](uintptr_t s) {
        auto* storage = reinterpret_cast<c10::StorageImpl*>(s);
        if (Runtime* owner = Runtime::owning(storage)) owner->let_go(storage);
      },
      nogil());
  m.def(
      "expose",
      [](uintptr_t s) {
        const bool by_hook = false;
        auto* storage = reinterpret_cast<c10::StorageImpl*>(s);
        if (Runtime* owner = Runtime::owning(storage)) owner->accessed(storage, by_hook);
      },
      nogil());
  py::class_<chameleon::Loan>(m, "Loan", "A raw pointer that is outside until end() is called, once.")
      .def("end", &chameleon::Loan::end, nogil());
  m.def(
      "lend",
      [](uintptr_t s) {
        auto* storage = reinterpret_cast<c10::StorageImpl*>(s);
        Runtime* owner = Runtime::owning(storage);
        return owner ? owner->lend(storage) : std::nullopt;
      },
      nogil());
  m.def("end_loan_with_capsule", [](const chameleon::Loan& loan, const py::object& capsule) {
    return chameleon::end_with_capsule(capsule.ptr(), loan);
  });
  m.def(
      "identity",
      [](uintptr_t s) {
        auto* storage = reinterpret_cast<c10::StorageImpl*>(s);
        Runtime* owner = Runtime::owning(storage);
        return reinterpret_cast<uintptr_t>(owner ? owner->identity(storage) : nullptr);
      },
      nogil());
  m.def(
      "enter_region",
      [](const std::string& name, const std::vector<uintptr_t>& read, const std::vector<uintptr_t>& written) {
        chameleon::regions::enter(name, tensors_at(read), tensors_at(written));
      },
      nogil());
  m.def(
      "leave_region", [](const std::vector<uintptr_t>& results) { chameleon::regions::leave(tensors_at(results)); },
      nogil());
  m.def("regions_depth", &chameleon::regions::depth);
  // A Work of torch's, by its address: pybind11 has torch's own there, whichever class it is of.
  m.def("enter_wait", [](const py::object& work) {
    auto* instance = reinterpret_cast<py::detail::instance*>(work.ptr());
    const void* address = instance->get_value_and_holder().value_ptr();
    const chameleon::Released release;
    chameleon::collectives::enter_wait(address);
  });
  m.def("leave_wait", &chameleon::collectives::leave_wait, nogil());
  m.def("begin_buckets", &Runtime::begin_buckets, nogil());
  m.def("settle_buckets", &Runtime::settle_buckets, nogil());
  m.def("held_elsewhere", [](uintptr_t tensor, int category) {
    return held_elsewhere(tensor, static_cast<chameleon::Category>(category));
  });
  m.def("storage_address", [](uintptr_t tensor) { return reinterpret_cast<uintptr_t>(storage_of(tensor)); });
  m.def("residency", [](uintptr_t address) -> std::optional<std::string_view> {
    auto* storage = reinterpret_cast<c10::StorageImpl*>(address);
    Runtime* owner = storage ? Runtime::owning(storage) : nullptr;
    const auto residency = owner ? owner->residency(storage) : std::nullopt;
    if (!residency) return std::nullopt;
    return residency_name(*residency);
  });

  process_clock();
  m.def("seconds", [](chameleon::Ticks ticks) { return process_clock().seconds(ticks); });
  m.def("seconds_per_tick", [] { return process_clock().duration(1'000'000'000) * 1e-9; });

  chameleon::bind_module_hooks(m);
}
