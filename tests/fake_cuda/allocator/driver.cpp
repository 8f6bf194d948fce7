// Drives the forwarding allocator from Python: tensors of the fake GPUs that no kernel computes with, the memory that
// libraries ask for, and what a session refuses.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c10_cuda.h"
#include "core_mutex.h"
#include "fake.h"
#include "runtime.h"
#include "segments.h"

namespace py = pybind11;

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
namespace gpu = fake::c10_cuda;
using chameleon::Residency;
using chameleon::Runtime;

// Kernels, through the dispatcher: what they use is here, and may leave afterwards.
bool holds(const at::Tensor& x, int64_t value) {
  const auto* bytes = static_cast<const uint8_t*>(x.const_data_ptr());
  return bytes[0] == value && std::memcmp(bytes, bytes + 1, x.nbytes() - 1) == 0;
}
void fill(const at::Tensor& x, int64_t value) {
  std::memset(x.mutable_data_ptr(), static_cast<int>(value), x.nbytes());
}

// Between GPUs, and between one and the host.
void copy(const at::Tensor& to, const at::Tensor& from) {
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), std::min(to.nbytes(), from.nbytes()));
}
// A list op; the tensors may be on several GPUs.
void fill_all(at::TensorList all, int64_t value) {
  for (const at::Tensor& x : all) fill(x, value);
}

// A product of cuBLAS: its work space, of a handle and a stream, is had from the allocator while the op runs, and kept
// to the end of the process.
void product(const at::Tensor&, int64_t bytes) {
  static auto* workspaces = new std::vector<c10::DataPtr>();
  workspaces->push_back(caching::get()->allocate(static_cast<size_t>(bytes)));
}

// CUDA IPC: the memory of shared storages that have died here, until their consumers have let go of it.
std::vector<c10::DataPtr>& limbo() {
  static auto* pointers = new std::vector<c10::DataPtr>();
  return *pointers;
}
void collect() {
  std::vector<c10::DataPtr> over;
  over.swap(limbo());
}
void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// Once, while another thread that makes a tensor waits for the allocator.
std::thread& beside() {
  static auto* thread = new std::thread();
  return *thread;
}
bool was_waited_for = false;
void collect_beside_another() {
  gpu::Segments::on_miss = &collect;
  beside() = std::thread([] {
    at::detail::empty_generic({1 << 20}, c10::GetAllocator(c10::DeviceType::CUDA),
                              c10::DispatchKeySet(c10::DispatchKey::CUDA), at::kByte, std::nullopt);
  });
  for (int attempts = 0; attempts < 20'000 && !gpu::is_waited_for(); ++attempts) pause();
  was_waited_for = gpu::is_waited_for();
  collect();
}

// One that has a result, which it can make again.
at::Tensor plus(const at::Tensor& x, int64_t value) {
  at::Tensor result = at::detail::empty_generic(x.sizes(), c10::GetAllocator(c10::DeviceType::CUDA),
                                                c10::DispatchKeySet(c10::DispatchKey::CUDA), at::kByte, std::nullopt);
  const auto* from = static_cast<const uint8_t*>(x.const_data_ptr());
  std::memset(result.mutable_data_ptr(), static_cast<uint8_t>(from[0] + value), result.nbytes());
  return result;
}

// What torch's Python side hands to its allocator: it asks for Python's lock.
std::atomic<int> wrong_turns{0};

// A thread that is about to ask for Python's lock waits until another one, which has it, is about to read a tensor.
struct Meeting {
  std::atomic<bool> wanted{false}, asked{false}, read{false};
} meeting;

template <class F>
void with_python(F what) {
  if (meeting.wanted && !PyGILState_Check()) {
    meeting.asked = true;
    while (!meeting.read) pause();
    for (int i = 0; i < 50; ++i) pause();  // until it waits
  }
  if (chameleon::CoreMutex::held_here()) ++wrong_turns;
  const py::gil_scoped_acquire lock;
  what();
}

struct Frames : c10::GatheredContext {
  std::string line;  // of the program
};

std::shared_ptr<c10::GatheredContext> gather() {
  auto frames = std::make_shared<Frames>();
  with_python([&] {
    const py::object frame = py::module_::import("sys").attr("_getframe")();
    frames->line = py::str(frame.attr("f_code").attr("co_name"));
  });
  return frames;
}

// Held by what outlives Python.
class Kept {
 public:
  explicit Kept(const py::object& object) : object_(object.ptr()) { object.inc_ref(); }
  py::handle get() const { return object_; }

 private:
  PyObject* object_;
};

TORCH_LIBRARY(fake_gpu, library) {
  library.def("plus(Tensor x, int value) -> Tensor");
  library.def("product(Tensor x, int bytes) -> ()");
  library.def("holds(Tensor x, int value) -> bool");
  library.def("fill(Tensor x, int value) -> ()");
  library.def("copy(Tensor(a!) to, Tensor from) -> ()");
  library.def("fill_all(Tensor(a!)[] all, int value) -> ()");
}
TORCH_LIBRARY_IMPL(fake_gpu, CUDA, library) {
  library.impl("plus", &plus);
  library.impl("holds", &holds);
  library.impl("fill", &fill);
  library.impl("product", &product);
  library.impl("copy", &copy);
  library.impl("fill_all", &fill_all);
}

template <class Result>
Result call(const char* name, const at::Tensor& x, int64_t value) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result(const at::Tensor&, int64_t)>().call(
      x, value);
}

void call_copy(const at::Tensor& to, const at::Tensor& from) {
  using Copy = void(const at::Tensor&, const at::Tensor&);
  c10::Dispatcher::singleton().findSchemaOrThrow("fake_gpu::copy", "").typed<Copy>().call(to, from);
}

// Tensor._cdata of a tensor of the host.
at::Tensor of_host(uintptr_t address) {
  auto* impl = reinterpret_cast<c10::TensorImpl*>(address);
  return at::Tensor::wrap_tensor_impl(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(impl));
}

class Tensor {
 public:
  Tensor(int device, size_t bytes, uint8_t value) : device_(c10::DeviceType::CUDA, static_cast<int8_t>(device)) {
    c10::cuda::set_device(device_.index(), false);
    tensor_ = at::detail::empty_generic({static_cast<int64_t>(bytes)}, c10::GetAllocator(c10::DeviceType::CUDA),
                                        c10::DispatchKeySet(c10::DispatchKey::CUDA), at::kByte, std::nullopt);
    fill(value);
  }

  // A new one, of bytes that are larger by this.
  Tensor plus(uint8_t value) const {
    c10::cuda::set_device(device_.index(), false);
    return Tensor(call<at::Tensor>("fake_gpu::plus", tensor_, value));
  }
  bool holds(uint8_t value) const { return call<bool>("fake_gpu::holds", tensor_, value); }
  void fill(uint8_t value) const { call<void>("fake_gpu::fill", tensor_, value); }
  void copy_from(const Tensor& from) const { call_copy(tensor_, from.tensor_); }
  void copy_from_host(uintptr_t from) const { call_copy(tensor_, of_host(from)); }
  void copy_to_host(uintptr_t to) const { call_copy(of_host(to), tensor_); }
  static void fill_all(const std::vector<const Tensor*>& all, uint8_t value) {
    std::vector<at::Tensor> tensors;
    for (const Tensor* one : all) tensors.push_back(one->tensor_);
    using FillAll = void(at::TensorList, int64_t);
    c10::Dispatcher::singleton().findSchemaOrThrow("fake_gpu::fill_all", "").typed<FillAll>().call(tensors, value);
  }
  void product(int64_t bytes) const { call<void>("fake_gpu::product", tensor_, bytes); }
  // As THPStorage_shareCuda does.
  void share() {
    (void)tensor_.mutable_data_ptr();
    c10::DataPtr seen(data(), impl()->device());
    limbo().push_back(impl()->set_data_ptr(std::move(seen)));
  }
  std::string drop() { return chameleon::refusal_text(Runtime::of(device_).drop(impl())); }
  bool evict() { return Runtime::of(device_).evict(impl()); }
  void adopt() {
    Runtime::of(device_).adopt(impl(), chameleon::Category::Other, -1, 1, /*trusted=*/true, /*evict_last=*/false);
  }
  std::string where() {
    const auto residency = Runtime::of(device_).residency(impl());
    if (!residency) return "not ours";
    switch (*residency) {
      case Residency::Away:
        return "away";
      case Residency::Resident:
        return "resident";
      case Residency::Dropped:
        return "dropped";
      default:
        return "on its way";
    }
  }
  void hold() const { gpu::hold(data(), true); }
  void record_stream() { caching::recordStream(tensor_.storage().data_ptr(), c10::cuda::getCurrentCUDAStream()); }
  // Another thread sends the storage out meanwhile, as soon as it may; has it left before the stream was recorded?
  bool record_stream_beside_eviction() {
    std::atomic<bool> left{false};
    std::thread other;
    gpu::set_while_recording([&] {
      other = std::thread([&] { left = evict(); });
      for (int attempts = 0; attempts < 100 && !left; ++attempts) pause();
    });
    bool left_before = false;
    try {
      record_stream();
    } catch (const c10::Error&) {
      left_before = true;
    }
    other.join();
    gpu::set_while_recording(nullptr);
    return left_before;
  }
  // As Python's data_ptr(), under Python's lock; while another thread, which `start` starts, asks for that one.
  bool read_beside_a_replay(const py::function& start) {
    meeting.wanted = true;
    start();
    {
      const py::gil_scoped_release released;
      while (!meeting.asked) pause();
    }
    meeting.read = true;
    const bool was_dropped = where() == "dropped";
    (void)tensor_.mutable_data_ptr();
    meeting.wanted = false;
    return was_dropped && where() == "resident";
  }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data()); }
  bool has_our_deleter() const {
    return impl()->_mutable_data_ptr_no_checks().get_deleter() == caching::get()->raw_deleter();
  }

 private:
  explicit Tensor(at::Tensor tensor) : device_(tensor.device()), tensor_(std::move(tensor)) {}

  c10::StorageImpl* impl() const { return tensor_.storage().unsafeGetStorageImpl(); }
  void* data() const { return impl()->_mutable_data_ptr_no_checks().get(); }

  c10::Device device_;
  at::Tensor tensor_;
};

// What a library asks for, and gives back.
class Workspace {
 public:
  Workspace(int device, size_t bytes, bool with_stream) {
    c10::cuda::set_device(static_cast<int8_t>(device), false);
    block_ = with_stream ? caching::raw_alloc_with_stream(bytes, fake::current()) : caching::raw_alloc(bytes);
    gpu::hold(block_, true);
  }
  ~Workspace() { caching::raw_delete(block_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

 private:
  void* block_;
};

}  // namespace

PYBIND11_MODULE(_fake_allocator, m) {
  py::class_<Tensor>(m, "Tensor")
      .def(py::init<int, size_t, uint8_t>(), py::arg("device"), py::arg("bytes"), py::arg("value"))
      .def("holds", &Tensor::holds, py::call_guard<py::gil_scoped_release>())  // as torch's own bindings of ops
      .def("fill", &Tensor::fill, py::call_guard<py::gil_scoped_release>())
      .def("read_beside_a_replay", &Tensor::read_beside_a_replay)
      .def("copy_from", &Tensor::copy_from)
      .def("copy_from_host", &Tensor::copy_from_host)
      .def("copy_to_host", &Tensor::copy_to_host)
      .def_static("fill_all", &Tensor::fill_all)
      .def("plus", &Tensor::plus)
      .def("drop", &Tensor::drop, "Why its bytes stay, in words; empty if they are given up.")
      .def("evict", &Tensor::evict)
      .def("adopt", &Tensor::adopt)
      .def("hold", &Tensor::hold)
      .def("product", &Tensor::product)
      .def("share", &Tensor::share)
      .def("record_stream", &Tensor::record_stream)
      .def("record_stream_beside_eviction", &Tensor::record_stream_beside_eviction)
      .def_property_readonly("where", &Tensor::where)
      .def_property_readonly("address", &Tensor::address)
      .def_property_readonly("has_our_deleter", &Tensor::has_our_deleter);
  py::class_<Workspace>(m, "Workspace")
      .def(py::init<int, size_t, bool>(), py::arg("device"), py::arg("bytes"), py::arg("with_stream") = false);
  // A session asks Python's torch to begin with CUDA, which this torch has not.
  m.def("install", [] {
    const py::module_ cuda = py::module_::import("torch.cuda");
    for (const char* name : {"init", "_lazy_init"}) cuda.attr(name) = py::cpp_function([] {});
    cuda.attr("get_device_name") = py::cpp_function([](const py::object&) { return "a fake GPU"; });
  });
  m.def("figures", [](int device) {
    const gpu::Figures f = gpu::figures(device);
    py::dict d;
    d["allocated_bytes"] = f.allocated_bytes;
    d["reserved_bytes"] = f.reserved_bytes;
    d["held_segment_bytes"] = f.held_segment_bytes;
    d["expandable_bytes"] = f.expandable_bytes;
    d["fraction"] = f.fraction;
    d["recorded_streams"] = f.recorded_streams;
    d["out_of_memory"] = f.out_of_memory;
    d["retries"] = f.retries;
    d["device_allocs"] = f.device_allocs;
    d["device_frees"] = f.device_frees;
    d["synchronizations"] = f.synchronizations;
    d["pools"] = f.pools;
    d["requests"] = f.requests;
    d["looked_at"] = f.looked_at;
    d["statistics"] = f.statistics;
    d["memory_questions"] = f.memory_questions;
    return d;
  });
  m.def(
      "stream", [] { return reinterpret_cast<uintptr_t>(fake::make_lane(/*eager=*/true)); },
      "Its work is done at once: the kernels here are.");
  m.def(
      "use", [](uintptr_t stream) { fake::set_current(reinterpret_cast<cudaStream_t>(stream)); },
      "0: the default one.");
  m.def("fail_call", &fake::fail_call, py::arg("number"), py::arg("sticky") = false, py::arg("in_a_row") = 1,
        "Of those of CUDA to come.");
  m.def("failed_calls", &fake::failed_calls);
  m.def("be_lazy", &fake::be_lazy, "Nothing happens before somebody waits for it.");
  m.def("host_waits", &fake::host_waits, "How often CUDA calls have kept the host waiting, by call.");
  m.def("segment_bytes", &gpu::segment_bytes);
  m.def("set_total_bytes", &gpu::set_total_bytes);
  m.def("set_others_bytes", &gpu::set_others_bytes);
  m.def("set_nvml", &gpu::set_nvml);
  m.def("set_rejects", &gpu::set_rejects);
  m.def("set_fraction",
        [](int device, double fraction) { caching::setMemoryFraction(fraction, static_cast<int8_t>(device)); });
  m.def("fraction", [](int device) { return caching::getMemoryFraction(static_cast<int8_t>(device)); });
  m.def("empty_cache", [] { caching::emptyCache(); });
  m.def("set_name", &gpu::set_name);
  m.def("set_initialized", &gpu::set_initialized);
  m.def("set_history", &gpu::set_history);
  m.def("set_capturing", &gpu::set_capturing);
  m.def("trace_calls", [] {  // as torch's CUDA sanitizer does; there is no way back
    static int nobody;
    c10::impl::GPUTrace::set_trace(reinterpret_cast<const c10::impl::PyInterpreter*>(&nobody));
  });
  m.def("begin_pool", [](int device) {
    caching::get()->beginAllocateToPool(static_cast<int8_t>(device), {0, 1}, [](cudaStream_t) { return true; });
  });
  // torch._C._cuda_record_memory_history(); `context` is one of "state", "alloc" and "all", or None.
  m.def(
      "record_history",
      [](bool on, const std::optional<std::string>& context) {
        using caching::RecordContext;
        const RecordContext when = !context              ? RecordContext::NEVER
                                   : *context == "all"   ? RecordContext::ALL
                                   : *context == "alloc" ? RecordContext::ALLOC
                                                         : RecordContext::STATE;
        caching::get()->recordHistory(on, &gather, 10, when, false, {});
      },
      py::arg("on") = true, py::arg("context") = "all");
  m.def("take_events", [] {
    py::list events;
    for (const gpu::Event& event : gpu::take_events()) {
      const auto* frames = dynamic_cast<const Frames*>(event.context.get());
      events.append(py::make_tuple(event.action, event.bytes, frames ? frames->line : "", event.user_metadata));
    }
    return events;
  });
  m.def("set_user_metadata", [](const std::string& metadata) { caching::get()->setUserMetadata(metadata); });
  m.def(
      "collect_shared",
      [](bool beside_another) { gpu::Segments::on_miss = beside_another ? &collect_beside_another : &collect; },
      py::arg("beside_another") = false,
      "Where the allocator has no block, as CUDA IPC does; the first time, while another thread waits for it.");
  m.def(
      "join",
      [] {
        beside().join();
        return was_waited_for;
      },
      "That thread; has it waited for the allocator?");
  m.def("misses", [] { return gpu::Segments::misses; });
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 214
  m.def("annotate", [](const std::string& text) {
    if (caching::supportsUserMetadata()) caching::annotateMemory(nullptr, text);
    return gpu::annotation();
  });
#endif
  // torch._C._cuda_attach_out_of_memory_observer().
  m.def("attach_observer", [](const py::object& observer) {
    caching::attachOutOfMemoryObserver(
        [kept = Kept(observer)](int64_t device, size_t bytes, size_t total, size_t free) {
          with_python([&] { kept.get()(device, bytes, total, free); });
        });
  });
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 212
  m.def("attach_rejection_observer", [](const py::object& observer) {
    caching::attachOomRejectionObserver(
        [kept = Kept(observer)](int64_t device, size_t bytes, size_t allocated, size_t total) {
          with_python([&] { kept.get()(device, bytes, allocated, total); });
        });
  });
#endif
  m.def(
      "locks_asked_for_in_turn", [] { return wrong_turns.load() == 0; },
      "Was Python's lock never asked for by a thread that held the core's?");
  m.def("delete_by_raw_deleter", [](int device, size_t bytes) {
    c10::cuda::set_device(static_cast<int8_t>(device), false);
    caching::get()->raw_deleter()(caching::raw_alloc(bytes));
    caching::get()->raw_deleter()(nullptr);
  });
}
