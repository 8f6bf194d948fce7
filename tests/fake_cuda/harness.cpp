// Random programs of toy kernels on a fake GPU, with the real device, host pool and swapper under them. Every kernel
// checks the bytes that it reads when it runs, not when it is given to its stream.
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/health.h"
#include "device/cuda/pinned_pool.h"
#include "device/cuda/torch_side.h"
#include "fake.h"
#include "faults.h"
#include "host_target.h"
#include "marks.h"
#include "programs.h"
#include "recorder.h"
#include "runtime.h"
#include "storage.h"
#include "storage_access.h"
#include "swapper.h"

namespace py = pybind11;

namespace chameleon {

namespace {

void keep_block(void*) {}  // the harness frees blocks itself

struct Result {
  std::vector<std::string> errors;
  int kernels = 0, copies_out = 0, copies_in = 0, refused = 0, replays = 0;
  long dropped = 0;
};

class Harness {
 public:
  Harness(uint64_t seed, int lanes, size_t capacity_bytes)
      : random_(seed),
        table_(nullptr, &keep_block),
        host_(device_, device_),
        swapper_(device_, host_, table_, recorder_) {
    Runtime::of(c10::DeviceType::CPU);  // it sets what the access hooks need
    marks::reserve(/*shown=*/true);
    device_.install_allocator();
    device_.set_capacity(capacity_bytes);
    device_.set_host_capacity(kHostBytes);
    for (int i = 0; i < lanes; ++i) lanes_.push_back(fake::make_lane(/*eager=*/false));
    recorded_ = below(3) == 0;
    replays_ = below(2);
    swapper_.min_bytes = 0;
    swapper_.next_use = [this](const Storage&) { return static_cast<int64_t>(below(1000)); };
  }

  static constexpr size_t kHostBytes = 2 << 20;  // there are thousands of programs, and pinned memory is touched

  // Some storages come back ahead of their uses, and one that an op needs: is it there before them?
  bool demand_overtakes() {
    use_lane(0);
    while (tensors_.size() < 5) make();
    for (const auto& tensor : tensors_) {
      swapper_.swap_out(*tensor->storage, Cause::Planned);
      swapper_.finish_swap_out(*tensor->storage);
    }
    fake::run_all();
    for (size_t i = 1; i < tensors_.size(); ++i) swapper_.swap_in(*tensors_[i]->storage, Cause::Planned);
    restore_for_host(*tensors_[0]->storage, Cause::Demand);
    return !tensors_.back()->storage->arriving->done();
  }

  Result run(int steps) {
    for (int step = 0; step < steps; ++step) one_thing();
    finish();
    check_transfers();
    result_.dropped = fake::dropped();
    device_.release_host()();
    return result_;
  }

 private:
  struct Tensor {
    int64_t id;
    uint64_t version;
    Storage* storage;
    c10::intrusive_ptr<c10::StorageImpl> impl;
    fake::MarkPtr written;
    std::vector<fake::MarkPtr> read;
    cudaStream_t made_for;  // as the user sees it
    bool recorded;          // of every stream, when it was made: nothing else orders its death
    fake::MarkPtr remade;   // by a replay, of which the user knows nothing
  };

  void one_thing() {
    use_lane(below(lanes_.size()));
    const size_t choice = below(16);
    if (replays_ && below(8) == 0 && tensors_.size() > 3) return replay(pick());
    if (tensors_.size() < 3 || (choice == 0 && tensors_.size() < 24)) return make();
    if (choice == 1 && tensors_.size() > 6) return destroy(below(tensors_.size()));
    if (choice < 8) return compute();
    if (choice < 11) return swap_out(pick());
    if (choice < 13) return free_point(pick());
    if (choice < 15) return prefetch(pick());
    read_on_host(pick());
  }

  void finish() {
    use_lane(0);
    device_.set_capacity(SIZE_MAX / 2);
    std::vector<Storage*> lost;
    if (!swapper_.restore_all(&lost) || !lost.empty()) result_.errors.push_back("not everything came back");
    for (auto& tensor : tensors_) check_on_host(*tensor, "at the end");  // restore_all() waits for the copies
    while (!tensors_.empty()) destroy(tensors_.size() - 1);
    fake::run_all();
    device_.release_kept_host();
  }

  void check_transfers() {
    StepLog& log = recorder_.log();
    log.settle();
    if (!log.waits.empty()) result_.errors.push_back("waits that never ended");
    for (size_t i = 0; i < log.transfers.size(); ++i) {
      const bool out = log.transfers[i].direction == static_cast<uint8_t>(Direction::Out);
      ++(out ? result_.copies_out : result_.copies_in);
      const Event& event = *log.transfer_events[i];
      if (!event.done() || event.end_ticks() < event.start_ticks()) result_.errors.push_back("a copy without a time");
    }
  }

  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  Tensor& pick() { return *tensors_[below(tensors_.size())]; }
  cudaStream_t stream() const { return fake::current(); }
  void use_lane(size_t lane) { fake::set_current(lanes_[lane]); }

  static uint64_t word(int64_t id, uint64_t version) {
    return (static_cast<uint64_t>(id) << 32 ^ version) * 0x9E3779B97F4A7C15ull | 1;
  }
  static void fill(void* data, size_t bytes, uint64_t value) {
    for (size_t i = 0; i + sizeof(value) <= bytes; i += sizeof(value)) {
      std::memcpy(static_cast<char*>(data) + i, &value, sizeof(value));
    }
  }
  static bool holds(const void* data, size_t bytes, uint64_t value) {
    for (size_t i = 0; i + sizeof(value) <= bytes; i += sizeof(value)) {
      if (std::memcmp(static_cast<const char*>(data) + i, &value, sizeof(value)) != 0) return false;
    }
    return true;
  }

  // On the stream that is current. Or it was there before, on any, and is adopted now.
  void make() {
    const size_t bytes = 512 * (1 + below(8)), block_bytes = device_.block_bytes(bytes);
    const bool adopted = below(4) == 0;
    const cudaStream_t here = stream(), made_for = adopted ? lanes_[below(lanes_.size())] : here;
    fake::set_current(made_for);
    int lane = device_.lane();
    void* block = adopted ? cuda::torch_side::allocate(0, block_bytes, made_for, /*may_fail=*/true)
                          : swapper_.take(block_bytes, lane);
    fake::set_current(here);
    lane = device_.lane();
    if (!block) {
      ++result_.refused;
      return;
    }
    Storage* storage = table_.add(bytes, block_bytes, block);
    storage->lane = static_cast<uint8_t>(lane);
    storage->adopted = storage->first_block = adopted;
    storage->lanes = adopted ? ~Lanes{0} : 0;
    storage->settled = true;
    if (adopted) {
      device_.take_over(block, block_bytes);
      fake::wait(stream(), fake::record(made_for));
    }
    auto impl = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes,
        c10::DataPtr(block, block, &keep_block, c10::Device(c10::DeviceType::CPU)),
        c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
    storage->impl = impl.get();
    storage->weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl.get());
    tensors_.push_back(std::make_unique<Tensor>(
        Tensor{next_id_++, 0, storage, std::move(impl), nullptr, {}, made_for, recorded_ && below(2) == 0, nullptr}));
    Tensor& tensor = *tensors_.back();
    if (tensor.recorded) {
      for (const cudaStream_t one : lanes_) cuda::torch_side::used_on(0, block, one);
    }
    launch({}, &tensor);
    if (!adopted || swapper_.make_room(0)) return;
    result_.errors.push_back("no room for what is adopted");
  }

  void destroy(size_t index) {
    Tensor& tensor = *tensors_[index];
    // The user's part: a tensor dies in the order of the stream that its memory belongs to.
    if (!tensor.recorded) {
      fake::wait(tensor.made_for, tensor.written);
      for (const fake::MarkPtr& mark : tensor.read) fake::wait(tensor.made_for, mark);
    }
    tensor.impl->_mutable_data_ptr_no_checks().release_context();
    access::disarm(*tensor.storage);
    swapper_.release(*tensor.storage);
    table_.remove(tensor.storage);
    tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // Dropped, and made again by the lane that happens to need it: what Runtime::take_over() does.
  void replay(Tensor& tensor) {
    Storage& storage = *tensor.storage;
    if (storage.residency != Residency::Resident || storage.pins || !device_.has_room(storage.block_bytes)) return;
    swapper_.drop(storage);
    const int lane = device_.lane();
    ++storage.pins;
    void* block = swapper_.take(storage.block_bytes, lane);
    --storage.pins;
    if (!block) {
      result_.errors.push_back("no room for a replay");
      return;
    }
    fake::wait(stream(), tensor.written);  // Order::FirstRun
    const uint64_t value = word(tensor.id, tensor.version);
    fake::launch(stream(), [block, bytes = storage.bytes, value] { fill(block, bytes, value); });
    tensor.remade = fake::record(stream());
    storage.lane = static_cast<uint8_t>(lane);
    storage.made_by = lane_bit(lane);
    storage.lanes |= storage.made_by;
    swapper_.remade(storage, block);
    access::release_kept();
    ++result_.replays;
  }

  // One or two inputs, and one that is written or none: what an op's start and end do around it.
  void compute() {
    std::vector<Tensor*> inputs{&pick()};
    if (below(2)) inputs.push_back(&pick());
    launch(inputs, below(2) ? &pick() : nullptr);
  }

  void launch(const std::vector<Tensor*>& inputs, Tensor* output) {
    const int lane = device_.lane();
    std::vector<Tensor*> used = inputs;
    if (output) used.push_back(output);
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    for (Tensor* tensor : used) ++tensor->storage->pins;
    bool here = true;
    for (Tensor* tensor : used) {
      Storage& storage = *tensor->storage;
      if (storage.residency == Residency::Leaving) swapper_.touch(storage, false);
      if (tensor == output && storage.host.data && storage.residency == Residency::Resident) {
        swapper_.drop_host(storage);
      } else if (tensor == output && storage.host.data) {
        storage.host_stale = true;
      }
      if (storage.made_by) device_.join(lane, storage.made_by, Order::Replayed);
      storage.lanes |= lane_bit(lane);
      if (storage.residency != Residency::Resident) here = swapper_.restore(storage, Cause::Demand) && here;
    }
    device_.lane();
    if (here) {
      give_kernel(inputs, output);
    } else {
      ++result_.refused;
    }
    for (Tensor* tensor : used) {
      Storage& storage = *tensor->storage;
      --storage.pins;
      const bool stale = std::exchange(storage.host_stale, false);
      if (stale && storage.residency == Residency::Resident) swapper_.drop_host(storage);
    }
  }

  struct View {
    int64_t id;
    const void* data;
    size_t bytes;
    uint64_t value;
  };

  void give_kernel(const std::vector<Tensor*>& inputs, Tensor* output) {
    std::vector<View> reads;
    for (Tensor* tensor : inputs) {
      fake::wait(stream(), tensor->written);  // the user's order between streams
      reads.push_back({tensor->id, tensor->storage->block, tensor->storage->bytes, word(tensor->id, tensor->version)});
    }
    void* out = nullptr;
    size_t bytes = 0;
    uint64_t value = 0;
    if (output) {
      if (output->written) fake::wait(stream(), output->written);
      for (const fake::MarkPtr& mark : output->read) fake::wait(stream(), mark);
      out = output->storage->block;
      bytes = output->storage->bytes;
      value = word(output->id, ++output->version);
    }
    const int number = result_.kernels++;
    fake::launch(stream(), [this, reads, out, bytes, value, number] {
      for (const View& view : reads) {
        if (!holds(view.data, view.bytes, view.value)) {
          result_.errors.push_back("kernel " + std::to_string(number) + " read wrong bytes of tensor " +
                                   std::to_string(view.id));
        }
      }
      if (out) fill(out, bytes, value);
    });
    const fake::MarkPtr mark = fake::record(stream());
    for (Tensor* tensor : inputs) tensor->read.push_back(mark);
    if (output) {
      output->written = mark;
      output->read.clear();
    }
  }

  void swap_out(Tensor& tensor) {
    if (tensor.storage->residency == Residency::Resident) swapper_.swap_out(*tensor.storage, Cause::Planned);
  }
  void free_point(Tensor& tensor) {
    if (tensor.storage->residency == Residency::Leaving) swapper_.finish_swap_out(*tensor.storage);
    access::release_kept();
  }
  void prefetch(Tensor& tensor) {
    if (tensor.storage->residency == Residency::Away) swapper_.swap_in(*tensor.storage, Cause::Planned);
  }

  bool restore_for_host(Storage& storage, Cause cause) {
    EventPtr arrived;
    if (!swapper_.restore(storage, cause, &arrived)) return false;
    if (arrived) device_.host_wait(arrived, Order::HostRead);
    return true;
  }

  void read_on_host(Tensor& tensor) {
    if (tensor.storage->residency == Residency::Leaving) swapper_.touch(*tensor.storage, false);
    const bool away = tensor.storage->residency != Residency::Resident;
    if (away && !restore_for_host(*tensor.storage, Cause::Access)) {
      ++result_.refused;
      return;
    }
    if (away) check_on_host(tensor, "on the host");
  }

  void check_on_host(Tensor& tensor, const std::string& when) {
    fake::synchronize(tensor.written);
    if (tensor.remade) fake::synchronize(tensor.remade);
    if (!holds(tensor.storage->block, tensor.storage->bytes, word(tensor.id, tensor.version))) {
      result_.errors.push_back("wrong bytes of tensor " + std::to_string(tensor.id) + " " + when);
    }
  }

  std::mt19937_64 random_;
  cuda::CudaDevice device_{0};
  StorageTable table_;
  HostTarget host_;
  Recorder recorder_;
  Swapper swapper_;
  std::vector<cudaStream_t> lanes_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  int64_t next_id_ = 1;
  bool recorded_ = false, replays_ = false;
  Result result_;
};

// Is a moment's time ever asked for before the anchor is over that it is counted from? That lies on the stream of the
// copies out, behind a copy that waits for another lane.
std::string read_a_moment_early(uint64_t seed) {
  fake::start(seed);
  auto* device = new cuda::CudaDevice(0);
  device->install_allocator();
  const cudaStream_t a = fake::make_lane(/*eager=*/false), b = fake::make_lane(/*eager=*/false);
  fake::set_current(b);
  const int lane_b = device->lane();
  fake::set_current(a);
  const int lane_a = device->lane();
  void* block = device->allocate(4096, lane_b, Effort::Last);
  void* host = device->allocate_host(4096);
  const EventPtr copy = device->copy_out(host, block, 4096, device->record(lane_bit(lane_b)));
  const EventPtr moment = device->moment(lane_a);
  std::string said = "never done";
  for (int i = 0; i < 200 && said == "never done"; ++i) {
    if (!moment->done()) continue;
    const bool first = !copy->done();  // all that is before the anchor has happened by then
    said = moment->start_ticks() == kNoTime ? "no time" : first ? "before its anchor" : "right";
  }
  fake::run_all();
  if (said == "never done" && moment->done() && moment->start_ticks() != kNoTime) said = "right";
  fake::set_current(nullptr);
  return said;
}

}  // namespace

}  // namespace chameleon

PYBIND11_MODULE(_fake_cuda, m) {
  m.def(
      "run",
      [](uint64_t seed, int lanes, size_t capacity_bytes, int steps,
         const std::vector<std::pair<std::string, std::string>>& drop, bool pinned) {
        fake::start(seed);
        if (!pinned) fake::limit_pinned(0);
        for (const auto& [waiter, source] : drop) fake::drop(waiter, source);
        // Marks hold on to their event pool: it stays.
        auto* harness = new chameleon::Harness(seed, lanes, capacity_bytes);
        const chameleon::Result result = harness->run(steps);
        fake::forget_streams();
        fake::set_current(nullptr);
        py::dict d;
        d["errors"] = result.errors;
        d["kernels"] = result.kernels;
        d["copies_out"] = result.copies_out;
        d["copies_in"] = result.copies_in;
        d["refused"] = result.refused;
        d["replays"] = result.replays;
        d["dropped"] = result.dropped;
        return d;
      },
      py::arg("seed"), py::arg("lanes"), py::arg("capacity_bytes"), py::arg("steps"),
      py::arg("drop") = std::vector<std::pair<std::string, std::string>>(), py::arg("pinned") = true,
      "A random program of toy kernels; what went wrong, and how much of everything there was.");
  m.def("demand_overtakes", [](uint64_t seed) {
    fake::start(seed);
    const bool overtakes = (new chameleon::Harness(seed, 1, size_t{1} << 20))->demand_overtakes();
    fake::forget_streams();
    fake::set_current(nullptr);
    return overtakes;
  });
  m.def(
      "install", [] { chameleon::cuda::torch_side::install(0); },
      "From here on torch's CPU tensors live on the fake GPU, in a session or not.");
  m.def(
      "be_late",
      [] {
        // Added after the session's, and called after it: what the op needs has been asked for.
        static at::CallbackHandle callback = 0;
        if (callback) at::removeCallback(callback);
        callback = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
          fake::catch_up();
          return std::unique_ptr<at::ObserverContext>();
        }));
        fake::set_default_lane_late(true);
      },
      "From here on the lane of a session does what it is given no sooner than an op begins. Call in every session.");
  chameleon::bind_programs(m);
  m.def("host_waits", &fake::host_waits, "How often CUDA calls have kept the host waiting since start(), by call.");
  m.def("record_streams", &fake::record_streams, "How often the device has asked for what record_stream does.");
  using Pool = chameleon::cuda::PinnedPool;
  const auto address = [](void* data) { return reinterpret_cast<uintptr_t>(data); };
  py::class_<Pool>(m, "PinnedPool")
      .def(py::init([](const std::string& way) {
             auto pool = std::make_unique<Pool>();
             pool->set_way(chameleon::cuda::way_of(way));
             return pool;
           }),
           py::arg("way") = "register")
      .def("allocate", [address](Pool& pool, size_t bytes) { return address(pool.allocate(bytes)); })
      .def("allocate_at",
           [address](Pool& pool, size_t place, size_t bytes) { return address(pool.allocate_at(place, bytes)); })
      .def("free", [](Pool& pool, uintptr_t data, size_t bytes) { pool.free(reinterpret_cast<void*>(data), bytes); })
      .def("reserve",
           [](Pool& pool, size_t planned_bytes, size_t bytes) {
             for (;;) {
               const Pool::Wanted wanted = pool.begin_growing(std::max(planned_bytes, bytes));
               if (wanted.asked_bytes == 0) break;
               std::vector<chameleon::cuda::Slab> slabs;
               const auto slab = pool.pinning().pin(wanted.asked_bytes, pool.way());
               if (slab.data) slabs.push_back(slab);
               pool.end_growing(wanted, slabs);
             }
             pool.place_plans(planned_bytes);
           })
      .def("set_limit", &Pool::set_limit)
      .def("trim",
           [](Pool& pool) {
             for (const auto& slab : pool.take_idle(/*all=*/false)) pool.pinning().unpin(slab);
           })
      .def("release",
           [](Pool& pool) {
             for (const auto& slab : pool.take_unused()) pool.pinning().unpin(slab);
           })
      .def_property_readonly("planned_bytes", &Pool::planned_bytes)
      .def_property_readonly("pageable_bytes", &Pool::pageable_bytes)
      .def_property_readonly("reserved_bytes", &Pool::reserved_bytes);
  m.def("read_a_moment_early", &chameleon::read_a_moment_early, "What comes of asking for a moment's time.");
  m.def(
      "anchor_every", [](double seconds) { chameleon::cuda::Timeline::anchor_every_s = seconds; },
      "How often times get a new anchor; 5 s else.");
  m.def("start", &fake::start);
  m.def("drop", &fake::drop);
  m.def("dropped", &fake::dropped);
  m.def("limit_pinned", &fake::limit_pinned);
  m.def("hold_pinning", &fake::hold_pinning);
  m.def("held_pinning", &fake::held_pinning, "How many threads that keeps.");
  m.def("hold_waits", &fake::hold_waits);
  m.def("held_waits", &fake::held_waits, "How many threads that keeps.");
  m.def("fail_pinning", &fake::fail_pinning, "Of the next attempts, the one of this number throws std::bad_alloc.");
  m.def("be_lazy", &fake::be_lazy, "Nothing happens before somebody waits for it, until start().");
  m.def(
      "fork", [] { return syscall(SYS_fork); },
      "A child that nobody has told that it is one, where the GPU goes on. Call it where there is one thread.");
  m.def(
      "ends_the_gpu",
      [](int error) { return chameleon::cuda::Health().lost(static_cast<cudaError_t>(error), "a call"); },
      "Is the GPU taken for gone where a call returns that error?");
  m.attr("cuda_include_dir") = CUDA_INCLUDE_DIR;
  m.def("die", &fake::die, py::arg("error") = static_cast<int>(cudaErrorIllegalAddress),
        "All calls of CUDA fail with that error meanwhile; 0: none does any more.");
  m.def("dead", &fake::dead);
  m.def("fail_call", &fake::fail_call, py::arg("number"), py::arg("sticky") = false, py::arg("in_a_row") = 1,
        "Of those to come.");
  m.def("fail_copies", &fake::fail_copies, py::arg("fail"), "Those that are asked for meanwhile.");
  m.def("failed_calls", &fake::failed_calls);
  m.def("pinned_near", &fake::pinned_near, "Pinned bytes by the NUMA node that they were wished near; -1: none.");
  m.def("policy_of_thread", &fake::policy_of_thread);
  m.def("refuse_policies", &fake::refuse_policies, "As containers do.");
  m.def("set_pci_devices", [](const std::string& folder) { chameleon::cuda::pci_devices_folder = folder; });
  m.def("pinned_bytes", &fake::pinned_bytes);
  m.def("peak_pinned_bytes", &fake::peak_pinned_bytes);
  m.def("read_pinned", &fake::read_pinned, "Reads all of it, as a GPU may: so many bytes.");
  m.def("set_total_bytes", &fake::set_total_bytes);
}
