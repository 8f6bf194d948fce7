// Random programs in sessions on the fake GPU: ops of torch's dispatcher whose kernels run late, on several streams, in
// any order that the program and the device under test allow. Every kernel checks the bytes that it reads when it runs.
//
// The user's part is what keeps the same program right without a session: a stream waits for what it reads or
// overwrites, or the host does; a tensor dies in the order of the stream that it was made on, or was told to
// record_stream what else uses it. Where two host threads run ops, each along streams of its own, neither writes a
// tensor, or lets it die, while an op of the other one is at it.
#include "programs.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/fill_native.h>
#include <c10/core/GradMode.h>
#include <c10/util/ParallelGuard.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake.h"
#include "faults.h"
#include "runtime.h"
#include "storage_access.h"
#include "turns.h"

namespace py = pybind11;

namespace chameleon {

namespace {

constexpr const char* kOrderNames[] = {
    "CopyOut",           "CopyIn",
    "FreePoint",         "Arrival",
    "ArrivalElsewhere",  "BufferReused",
    "BlockBack",         "Death",
    "UserRecorded",      "AdoptedBack",
    "FirstRun",          "Replayed",
    "ReplayedMeanwhile", "ReplayedBefore",
    "ReplayRead",        "HandedBack",
    "HostRead",          "HostReadReplayed",
    "PointerTaken",      "PointerReplayed",
    "SessionEnds",       "SessionEndsReplayed",
    "SessionBegins",
};
static_assert(std::size(kOrderNames) == kOrders);

std::mutex errors_mutex;
std::vector<std::string> errors;
std::atomic<int> kernels = 0;

uint64_t word(int64_t value) { return static_cast<uint64_t>(value) * 0x9E3779B97F4A7C15ull | 1; }

void fill(void* data, size_t bytes, int64_t value) {
  const uint64_t filled = word(value);
  for (size_t i = 0; i + sizeof(filled) <= bytes; i += sizeof(filled)) {
    std::memcpy(static_cast<char*>(data) + i, &filled, sizeof(filled));
  }
}

void check(const void* data, size_t bytes, int64_t value, const std::string& who) {
  const uint64_t expected = word(value);
  for (size_t i = 0; i + sizeof(expected) <= bytes; i += sizeof(expected)) {
    if (std::memcmp(static_cast<const char*>(data) + i, &expected, sizeof(expected)) == 0) continue;
    const std::lock_guard<std::mutex> lock(errors_mutex);
    errors.push_back(who + " read wrong bytes instead of value " + std::to_string(value));
    return;
  }
}

struct View {
  const void* data;
  size_t bytes;
  int64_t value;
};

// Every address is asked for before anything is given to the stream: a tensor that could not be brought in raises. From
// then on none of them may move, whatever another thread's ops do meanwhile.
void give_kernel(std::vector<View> reads, void* out, size_t bytes, int64_t value, const char* kind) {
  Turns::pass();
  const std::string who = kind + std::string(" ") + std::to_string(kernels++);
  // As torch does behind each kernel of its own, which then raises.
  if (!fake::dead() && cudaPeekAtLastError() != cudaSuccess) {
    const std::lock_guard<std::mutex> lock(errors_mutex);
    errors.push_back(who + " finds an error that a call before it has left: " + cudaGetErrorString(cudaGetLastError()));
  }
  fake::launch(fake::current(), [reads = std::move(reads), out, bytes, value, who] {
    for (const View& view : reads) check(view.data, view.bytes, view.value, who);
    if (out) fill(out, bytes, value);
  });
}

std::vector<View> views(at::TensorList inputs, at::IntArrayRef values) {
  std::vector<View> reads;
  for (size_t i = 0; i < inputs.size(); ++i) {
    reads.push_back({inputs[i].const_data_ptr(), inputs[i].storage().nbytes(), values[i]});
  }
  return reads;
}

// The values are what the inputs hold; in a replay, too.
at::Tensor toy_make(at::TensorList inputs, at::IntArrayRef values, int64_t bytes, int64_t value) {
  at::Tensor made = at::empty({bytes}, at::TensorOptions(at::kByte));
  void* out = made.mutable_data_ptr();
  give_kernel(views(inputs, values), out, static_cast<size_t>(bytes), value, "make");
  return made;
}

at::Tensor& toy_write_(at::Tensor& self, at::TensorList inputs, at::IntArrayRef values, int64_t before, int64_t value) {
  void* out = self.mutable_data_ptr();
  std::vector<View> reads = views(inputs, values);
  reads.push_back({out, self.storage().nbytes(), before});
  give_kernel(std::move(reads), out, self.storage().nbytes(), value, "write");
  return self;
}

void toy_read(at::TensorList inputs, at::IntArrayRef values) {
  give_kernel(views(inputs, values), nullptr, 0, 0, "read");
}

// As the body of one of torch's parallel loops that asks for its addresses itself; or a thread of the kernel's own.
at::Tensor& toy_write_by_worker_(at::Tensor& self, int64_t value, bool in_loop) {
  std::thread([&] {
    const c10::ParallelGuard guard(in_loop);
    fill(self.mutable_data_ptr(), self.storage().nbytes(), value);
  }).join();
  return self;
}

// Torch has it for tensors of a GPU alone.
void record_stream(at::Tensor& self, c10::Stream stream) {
  fake::record_stream(self.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks(),
                      reinterpret_cast<cudaStream_t>(stream.id()));
}

std::atomic<bool> fills_late = false;

constexpr const char* kRefused = "the kernel refuses this value";
bool refused(int64_t value) { return value % 16 == 7; }

// Torch's op, in place of its kernel while a program runs.
at::Tensor& fill_late(at::Tensor& self, const at::Scalar& value) {
  if (!fills_late) return at::native::fill_(self, value);
  void* out = self.mutable_data_ptr();
  TORCH_CHECK(!refused(value.toLong()), kRefused);
  give_kernel({}, out, self.storage().nbytes(), value.toLong(), "fill");
  return self;
}

// In torch's own namespace, since of other ops the core believes no schema.
TORCH_LIBRARY_FRAGMENT(aten, m) {
  m.def("_toy_make(Tensor[] inputs, int[] values, int bytes, int value) -> Tensor");
  m.def("_toy_write_(Tensor(a!) self, Tensor[] inputs, int[] values, int before, int value) -> Tensor(a!)");
  m.def("_toy_read(Tensor[] inputs, int[] values) -> ()");
  m.def("_toy_write_by_worker_(Tensor(a!) self, int value, bool in_loop) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(aten, CompositeExplicitAutograd, m) {
  m.impl("_toy_make", &toy_make);
  m.impl("_toy_write_", &toy_write_);
  m.impl("_toy_read", &toy_read);
  m.impl("_toy_write_by_worker_", &toy_write_by_worker_);
}
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("record_stream", &record_stream);
  m.impl("fill_.Scalar", &fill_late);
}

template <class F>
c10::TypedOperatorHandle<F> op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<F>();
}

class RandomProgram {
 public:
  RandomProgram(uint64_t seed, int lanes, size_t capacity_bytes, int threads, bool fails, bool overwrites)
      : threads_(threads),
        fails_(fails),
        overwrites_(overwrites),
        random_{std::mt19937_64(seed), std::mt19937_64(~seed)},
        runtime_(Runtime::of(c10::Device(c10::DeviceType::CUDA, 0))),
        capacity_bytes_(capacity_bytes) {
    static std::vector<cudaStream_t> made;  // the device knows them from program to program
    while (made.size() < static_cast<size_t>(lanes)) made.push_back(fake::make_lane(/*eager=*/false));
    lanes_.assign(made.begin(), made.begin() + lanes);
    use_any_lane();
    recorded_ = below(2);
    swaps_ = below(3) > 0;  // copies order much: without them, replays show what they rest on
  }

  void run(int steps, bool session) {
    const at::NoGradGuard no_grad;
    session_ = session;
    for (int i = 0; i < 3; ++i) {  // which the session adopts, wherever they are written: maybe where no op will run
      use_any_lane();
      if (i == 0) fake::set_current(fake::make_lane(/*eager=*/false));
      make();
    }
    if (session) open_if_it_can();
    const int first = steps / 3 + 1;
    act_for(first);
    if (session && below(2)) {  // a session ends, and another one begins
      close();
      for (int more = below(20); more > 0; --more) {
        use_any_lane();
        act_if_it_can(false);
      }
      open_if_it_can();
    }
    act_for(steps - first);
    use_any_lane();
    if (session) close();
    for (int more = 20; more > 0; --more) {
      use_any_lane();
      act_if_it_can(false);
    }
    while (!tensors_.empty()) destroy(below(tensors_.size()));
    fake::run_all();
  }

  std::map<std::string, int> counts_;

 private:
  struct Tensor {
    at::Tensor tensor;
    int64_t value;
    cudaStream_t made_on;
    fake::MarkPtr written;
    std::vector<fake::MarkPtr> read;
    bool recorded;  // at birth, of every stream: nothing else orders its death
    bool known;     // of that, to the session if there is one
    void* raw = nullptr;
    int users = 0;       // acts that are at it
    bool taken = false;  // by the one that writes it
  };

  // While it lives, the other host thread does not write these, and does not use the one that is written.
  class Using {
   public:
    explicit Using(std::vector<Tensor*> tensors, Tensor* written = nullptr)
        : tensors_(std::move(tensors)), written_(written) {
      if (written_) tensors_.push_back(written_);
      for (Tensor* tensor : tensors_) ++tensor->users;
      if (written_) written_->taken = true;
    }
    ~Using() {
      for (Tensor* tensor : tensors_) --tensor->users;
      if (written_) written_->taken = false;
    }
    Using(const Using&) = delete;
    Using& operator=(const Using&) = delete;

   private:
    std::vector<Tensor*> tensors_;
    Tensor* const written_;
  };

  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_[Turns::me()]); }
  // Null: the other host thread is at it.
  Tensor* pick() {
    Tensor& one = *tensors_[below(tensors_.size())];
    return one.taken ? nullptr : &one;
  }
  Tensor* pick_alone() {
    Tensor* one = pick();
    return one && one->users == 0 ? one : nullptr;
  }
  void use_any_lane() {
    const size_t first = Turns::me(), step = Turns::many() ? 2 : 1;
    fake::set_current(lanes_[first + step * below((lanes_.size() - first + step - 1) / step)]);
  }

  void act_for(int steps) {
    if (threads_ == 1) {
      act_alone_for(steps);
      return;
    }
    Turns turns(random_[0]());
    std::exception_ptr error;
    std::thread other([&] {
      const at::NoGradGuard no_grad;
      fake::set_device(1);
      const Turns::Thread taking_part(turns, 1);
      try {
        act_alone_for(steps / 2);
      } catch (...) {
        error = std::current_exception();
      }
    });
    try {
      const Turns::Thread taking_part(turns, 0);
      act_alone_for(steps / 2);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    other.join();
    counts_["changes"] += turns.changes();
    counts_["taken turns"] += turns.taken();
    if (error) std::rethrow_exception(error);
  }

  void act_alone_for(int steps) {
    for (int step = 0; step < steps; ++step) {
      Turns::pass();
      use_any_lane();
      act_if_it_can(session_);
    }
  }

  void act_if_it_can(bool session) {
    try {
      act(session);
    } catch (const c10::OutOfMemoryError&) {
      ++counts_["refused"];
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();  // a backtrace takes milliseconds
      if (text.find("below the floor") != std::string::npos) {
        ++counts_["refused"];
      } else if (fails_ && (text.find("Chameleon Lab") != std::string::npos ||
                            text.find("CUDA error") != std::string::npos || fake::dead())) {
        ++counts_["told"];
      } else {
        throw;
      }
    }
  }
  static c10::StorageImpl* impl(Tensor& tensor) { return tensor.tensor.storage().unsafeGetStorageImpl(); }

  // A failing call may keep it from opening; by and by an attempt finds nothing amiss, where the GPU lives.
  void open_if_it_can() {
    for (int attempts = fails_ ? 8 : 1; attempts > 0; --attempts) {
      try {
        open();
        return;
      } catch (const c10::Error&) {
        if (!fails_) throw;
        ++counts_["told"];
        if (runtime_.is_open()) return;
      }
    }
    TORCH_CHECK(fake::dead(), "a session does not open although no call fails any more");
  }

  void open() {
    Options options;
    options.capacity_bytes = swaps_ ? capacity_bytes_ : size_t{1} << 30;
    options.min_swap_bytes = 1;
    runtime_.open(options);
    runtime_.allow_replays({{"aten::_toy_make", ~uint64_t{0}}, {"aten::_toy_write_", ~uint64_t{0}}});
    runtime_.keep_producers(true);
    for (auto& tensor : tensors_) {
      use_any_lane();
      if (!tensor->raw) runtime_.adopt(impl(*tensor), Category::Other, -1, 1, /*trusted=*/true, /*evict_last=*/false);
    }
    if (swaps_ && below(2)) runtime_.evict_always(below(1 << 30));
    if (threads_ > 1 && below(8) == 0) Runtime::release_host();  // what leaves has to have it pinned, then
  }

  void close() {
    runtime_.close();
    for (auto& tensor : tensors_) tensor->known = false;
  }

  void act(bool session) {
    const size_t choice = below(session ? 20 : 9);
    if (tensors_.size() < 4 || (choice < 2 && tensors_.size() < 20)) {
      make();
    } else if (choice == 2 && tensors_.size() > 6) {
      const size_t index = below(tensors_.size());
      if (tensors_[index]->users == 0) destroy(index);
    } else if (choice < 6) {
      read();
    } else if (choice < 9) {
      write();
    } else if (Tensor* one = pick()) {
      const Using in_use({one});
      if (choice < 13 && swaps_) {
        counts_["evictions"] += Turns::call([&] { return runtime_.evict(impl(*one)); });
      } else if (choice < 17) {
        drop(*one);
      } else if (choice < 19) {
        Turns::call([&] { return runtime_.restore(impl(*one)); });
      } else if (below(3) == 0) {
        take_pointer(*one);
      }
    }
  }

  // Asked for again at once, along a stream that may know nothing of what its inputs still wait for.
  void drop(Tensor& tensor) {
    if (Turns::call([&] { return runtime_.drop(impl(tensor)); }) != Refusal::None) return;
    ++counts_["drops"];
    if (below(2)) return;
    use_any_lane();
    Turns::call([&] { return runtime_.restore(impl(tensor)); });
  }

  // The user's order: on the GPU, or by the host.
  void come_after(const fake::MarkPtr& mark) {
    if (!mark || fake::reached(mark)) return;
    if (below(8) == 0) {
      fake::synchronize(mark);
    } else {
      fake::wait(fake::current(), mark);
    }
  }

  std::vector<Tensor*> inputs() {
    std::vector<Tensor*> chosen;
    for (size_t count = 1 + below(2); count > 0; --count) {
      Tensor* one = pick();
      if (one && std::find(chosen.begin(), chosen.end(), one) == chosen.end()) chosen.push_back(one);
    }
    for (const Tensor* one : chosen) come_after(one->written);
    return chosen;
  }
  static std::vector<at::Tensor> tensors_of(const std::vector<Tensor*>& chosen) {
    std::vector<at::Tensor> found;
    for (const Tensor* one : chosen) found.push_back(one->tensor);
    return found;
  }
  static std::vector<int64_t> values_of(const std::vector<Tensor*>& chosen) {
    std::vector<int64_t> found;
    for (const Tensor* one : chosen) found.push_back(one->value);
    return found;
  }
  static void note_reads(const std::vector<Tensor*>& chosen) {
    const fake::MarkPtr mark = fake::record(fake::current());
    for (Tensor* one : chosen) one->read.push_back(mark);
  }

  void make() {
    const auto from = tensors_.empty() ? std::vector<Tensor*>() : inputs();
    const int64_t bytes = 512 * static_cast<int64_t>(1 + below(8)), value = next_value_++;
    static const auto make_op = op<at::Tensor(at::TensorList, at::IntArrayRef, int64_t, int64_t)>("aten::_toy_make");
    const Using in_use(from);
    at::Tensor made = Turns::call([&] { return make_op.call(tensors_of(from), values_of(from), bytes, value); });
    note_reads(from);
    auto tensor = std::make_unique<Tensor>();
    tensor->tensor = std::move(made);
    tensor->value = value;
    tensor->made_on = fake::current();
    tensor->written = fake::record(fake::current());
    tensor->recorded = recorded_ && below(2);
    tensor->known = !session_ || runtime_.is_open();
    Tensor& added = *tensor;
    tensors_.push_back(std::move(tensor));
    const Using new_in_use({}, &added);
    if (added.recorded) {
      for (const cudaStream_t lane : lanes_) {
        if (lane != added.made_on) record_stream(added, lane);
      }
    }
    ++counts_["made"];
  }

  // As Tensor.record_stream does, which is an op; or the autograd engine, which calls the allocator.
  void record_stream(Tensor& tensor, cudaStream_t stream) {
    if (below(2)) {
      Turns::call([&] { fake::record_stream(impl(tensor)->_mutable_data_ptr_no_checks(), stream); });
      return;
    }
    const c10::Stream named(c10::Stream::UNSAFE, tensor.tensor.device(), reinterpret_cast<int64_t>(stream));
    Turns::call([&] { tensor.tensor.record_stream(named); });
  }

  // A kernel that is no op, of C++ that has the address through a const pointer, which nothing shows: along a stream
  // that has been recorded, and that an op has used the tensor on since it came, or that waits for such a one. Where
  // another thread's ops may come between, nothing keeps the storage where its address says.
  bool read_unseen(Tensor& tensor) {
    if (!tensor.recorded || tensor.raw || Turns::many()) return false;
    read_by_op({&tensor});
    if (runtime_.residency(impl(tensor)).value_or(Residency::Resident) != Residency::Resident) return false;
    const void* data = tensor.tensor.const_data_ptr();
    if (tensor.known && below(2)) {
      const fake::MarkPtr used = fake::record(fake::current());
      use_any_lane();
      if (below(2)) fake::set_current(tensor.made_on);
      fake::wait(fake::current(), used);
    }
    give_kernel({{data, tensor.tensor.storage().nbytes(), tensor.value}}, nullptr, 0, 0, "unseen read");
    note_reads({&tensor});
    ++counts_["unseen"];
    return true;
  }

  void read() {
    const auto from = inputs();
    if (from.empty()) return;
    const Using in_use(from);
    if (below(4) == 0 && read_unseen(*from.front())) return;
    if (from.front()->raw && below(2)) {
      Tensor& tensor = *from.front();
      give_kernel({{tensor.raw, tensor.tensor.storage().nbytes(), tensor.value}}, nullptr, 0, 0, "raw read");
      note_reads({&tensor});
      return;
    }
    read_by_op(from);
  }

  void read_by_op(const std::vector<Tensor*>& from) {
    static const auto read_op = op<void(at::TensorList, at::IntArrayRef)>("aten::_toy_read");
    Turns::call([&] { read_op.call(tensors_of(from), values_of(from)); });
    note_reads(from);
  }

  void write() {
    Tensor* const alone = pick_alone();
    if (!alone) return;
    Tensor& tensor = *alone;
    auto from = inputs();
    from.erase(std::remove(from.begin(), from.end(), &tensor), from.end());
    const Using in_use(from, &tensor);
    come_after(tensor.written);
    for (const fake::MarkPtr& mark : tensor.read) come_after(mark);
    int64_t value = next_value_++;
    if (overwrites_ && below(2)) {
      value %= 256;  // of one byte
      counts_["overwritten away"] += runtime_.residency(impl(tensor)) == Residency::Away;
      if (!overwrite(tensor, value)) return;
    } else if (tensor.raw && below(2)) {
      const size_t bytes = tensor.tensor.storage().nbytes();
      give_kernel({{tensor.raw, bytes, tensor.value}}, tensor.raw, bytes, value, "raw write");
    } else {
      static const auto write_op =
          op<at::Tensor&(at::Tensor&, at::TensorList, at::IntArrayRef, int64_t, int64_t)>("aten::_toy_write_");
      Turns::call([&] { write_op.call(tensor.tensor, tensors_of(from), values_of(from), tensor.value, value); });
      note_reads(from);
    }
    tensor.value = value;
    tensor.written = fake::record(fake::current());
    tensor.read.clear();
    ++counts_["written"];
  }

  // False: the kernel has written nothing.
  bool overwrite(Tensor& tensor, int64_t value) {
    try {
      Turns::call([&] { tensor.tensor.fill_(value); });
    } catch (const c10::Error& error) {
      if (error.what_without_backtrace() != std::string(kRefused)) throw;
      ++counts_["overwriting refused"];
      return false;
    }
    return true;
  }

  // For kernels that are no ops, and for the host, whose own wait is for the op that wrote it. Maybe while another
  // thread's op, or a replay for it, reads the storage.
  void take_pointer(Tensor& tensor) {
    if (raw_count_ >= 3 || tensor.raw || !access::has_hook()) return;  // without it, it raises for what is away
    counts_["pointers beside a call"] += Turns::other_is_inside();
    tensor.raw = Turns::call([&] { return tensor.tensor.mutable_data_ptr(); });
    if (below(2) && !fake::dead()) {
      fake::synchronize(tensor.written);
      check(tensor.raw, tensor.tensor.storage().nbytes(), tensor.value, "the host");
    }
    ++raw_count_;
    ++counts_["pointers"];
  }

  void destroy(size_t index) {
    Tensor& tensor = *tensors_[index];
    if (!tensor.recorded) {
      fake::wait(tensor.made_on, tensor.written);
      for (const fake::MarkPtr& mark : tensor.read) fake::wait(tensor.made_on, mark);
    }
    raw_count_ -= tensor.raw != nullptr;
    std::unique_ptr<Tensor> dying = std::move(tensors_[index]);
    tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(index));
    Turns::call([&] { dying.reset(); });
    ++counts_["died"];
  }

  const int threads_;
  const bool fails_;                       // a call of CUDA, somewhere
  const bool overwrites_;                  // some writes read nothing
  std::array<std::mt19937_64, 2> random_;  // of each host thread
  Runtime& runtime_;
  const size_t capacity_bytes_;
  std::vector<cudaStream_t> lanes_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  bool recorded_ = false, swaps_ = true, session_ = false;
  int raw_count_ = 0;
  int64_t next_value_ = 1;
};

}  // namespace

// What programs that are written down do, op by op: the ops are torch's (aten::_toy_*).
void bind_steps(py::module_& m) {
  struct Moment {
    fake::MarkPtr mark;
  };
  const auto stream_of = [](uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); };
  py::class_<Moment>(m, "Moment");
  m.def("stream", [] { return reinterpret_cast<uintptr_t>(fake::make_lane(/*eager=*/false)); });
  m.def("use", [stream_of](uintptr_t stream) { fake::set_current(stream_of(stream)); }, "0: the default one.");
  m.def(
      "destroy", [stream_of](uintptr_t stream) { fake::set_destroyed(stream_of(stream), true); },
      "What it was given is done all the same.");
  m.def(
      "make_again", [stream_of](uintptr_t stream) { fake::set_destroyed(stream_of(stream), false); },
      "A new stream that has the handle of a destroyed one.");
  m.def("moment", [] { return Moment{fake::record(fake::current())}; }, "Of the stream that is in use.");
  m.def("come_after", [](const Moment& moment) { fake::wait(fake::current(), moment.mark); }, "That stream does.");
  m.def("finish", [](const Moment& moment) { fake::synchronize(moment.mark); }, "The host waits.");
  // These take Tensor._cdata.
  const auto storage_of = [](uintptr_t tensor) {
    return reinterpret_cast<c10::TensorImpl*>(tensor)->unsafe_storage().unsafeGetStorageImpl();
  };
  m.def(
      "record_stream",
      [storage_of, stream_of](uintptr_t tensor, uintptr_t stream) {
        const c10::StorageImpl* storage = storage_of(tensor);
        fake::record_stream(storage->data_ptr(), stream_of(stream));
      },
      "Between ops, as autograd does with gradients.");
  m.def(
      "read_unseen",
      [storage_of](uintptr_t tensor, int64_t value) {
        const c10::StorageImpl* storage = storage_of(tensor);
        give_kernel({{storage->data(), storage->nbytes(), value}}, nullptr, 0, 0, "unseen read");
      },
      "A kernel that is no op, of C++ that has the address through a const pointer.");
  m.def("write_now",
        [](uintptr_t address, size_t bytes, int64_t value) { fill(reinterpret_cast<void*>(address), bytes, value); });
  m.def(
      "leave_out",
      [](const std::optional<std::string>& name) {
        const auto order = std::find(std::begin(kOrderNames), std::end(kOrderNames), name.value_or(""));
        TORCH_CHECK(!name || order != std::end(kOrderNames), "there is no order ", name.value_or(""));
        faults().left_out = 0;
        faults().orders = name ? 1u << (order - std::begin(kOrderNames)) : 0;
        errors.clear();
      },
      "None: nothing. Forgets what was read wrong.");
  m.def("left_out", [] { return faults().left_out.load(); });
  fake::set_meanwhile(&Turns::pass);
  m.def("errors", [] { return errors; }, "What kernels have read wrong.");
  m.def("run_all", &fake::run_all);
}

void bind_programs(py::module_& m) {
  bind_steps(m);
  m.def(
      "run_in_session",
      [](uint64_t seed, int lanes, size_t capacity_bytes, int steps, const std::optional<std::string>& left_out,
         bool session, int threads, long failing_call, long in_a_row, bool sticky, bool overwrites) {
        fake::release_spare();  // the allocator begins as in any other run of this program
        fake::start(seed);
        const auto order = std::find(std::begin(kOrderNames), std::end(kOrderNames), left_out.value_or(""));
        TORCH_CHECK(!left_out || order != std::end(kOrderNames), "there is no order ", left_out.value_or(""));
        faults().left_out = 0;
        faults().orders = left_out ? 1u << (order - std::begin(kOrderNames)) : 0;
        fake::set_device(1);
        errors.clear();
        kernels = 0;
        auto program =
            std::make_unique<RandomProgram>(seed, lanes, capacity_bytes, threads, failing_call > 0, overwrites);
        fake::fail_call(failing_call, sticky, in_a_row);
        {
          py::gil_scoped_release release;
          fills_late = overwrites;
          program->run(steps, session);
          fills_late = false;
        }
        faults().orders = 0;
        fake::set_device(0);
        fake::set_current(nullptr);
        py::dict d;
        d["errors"] = errors;
        d["kernels"] = kernels.load();
        d["left_out"] = faults().left_out.load();
        d["astray"] = fake::astray();
        d["failed_calls"] = fake::failed_calls();
        for (const auto& [name, count] : program->counts_) d[name.c_str()] = count;
        return d;
      },
      py::arg("seed"), py::arg("lanes"), py::arg("capacity_bytes"), py::arg("steps"),
      py::arg("left_out") = std::nullopt, py::arg("session") = true, py::arg("threads") = 1,
      py::arg("failing_call") = 0, py::arg("in_a_row") = 1, py::arg("sticky") = false, py::arg("overwrites") = false,
      "A random program of ops on several streams in a session; what its kernels read wrong, and counts. Two threads "
      "take streams of their own, and turns that the seed says. Of its calls of CUDA, the one of that number fails, "
      "and "
      "so many in a row; if that is sticky, all that come after it.");
}

}  // namespace chameleon
