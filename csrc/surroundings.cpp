#include "surroundings.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <exception>
#include <sstream>
#include <tuple>
#include <unordered_map>
#include <utility>

// What each entry has been set to itself, while torch tells what it gets: most have none, and get what is set for the
// entry above. The member is private; explicit instantiation may name it.
namespace {
using PrecisionKey = std::pair<at::Float32Backend, at::Float32Op>;
using Precisions = std::unordered_map<PrecisionKey, at::Float32Precision, c10::hash<PrecisionKey>>;
template <auto Member>
struct ExposePrecisions {
  friend Precisions& own_precisions(at::Context& context) { return context.*Member; }
};
Precisions& own_precisions(at::Context& context);
template struct ExposePrecisions<&at::Context::fp32_precision>;
}  // namespace

namespace chameleon {

namespace {

constexpr at::Float32Backend kBackends[] = {at::Float32Backend::CUDA, at::Float32Backend::MKLDNN};
constexpr at::Float32Op kOps[] = {at::Float32Op::MATMUL, at::Float32Op::CONV};

#if defined(__SSE2__)
constexpr uint32_t kFlushDenormals = 0x8040;
uint32_t float_control() { return _mm_getcsr() & kFlushDenormals; }
void set_float_control(uint32_t bits) { _mm_setcsr((_mm_getcsr() & ~kFlushDenormals) | bits); }
#else
uint32_t float_control() { return 0; }
void set_float_control(uint32_t) {}
#endif

std::atomic<bool> may_flush{false};

// As many threads as there are words, this one first, each with its own word. Those of torch: a loop in here would be
// shared by workers of another pool, or by none.
template <class F>
void on_each_worker(std::vector<uint32_t>* words, const F& f) {
  const at::Tensor slots = at::from_blob(words->data(), {static_cast<int64_t>(words->size())}, at::kInt);
  const auto loop = [&f](char** data, const int64_t* strides, int64_t count) {
    for (int64_t i = 0; i < count; ++i) f(reinterpret_cast<uint32_t*>(data[0] + i * strides[0]));
  };
  at::TensorIterator::borrowing_nullary_op(slots).for_each(loop, 1);
}

void set_reduction(at::CuBLASReductionOption option, void (at::Context::*set)(bool, bool)) {
  (at::globalContext().*set)(option == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
                             option != at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK);
}

enum class Ops { kAll, kOfHost, kOfGpu };

// One row a setting: where it is kept, whose numbers it may change, and how torch tells and takes it.
template <class T, class Get, class Set>
struct Setting {
  T Surroundings::* value;
  Ops ops;
  Get get;
  Set set;
};

// One of the GPU's that not every torch has.
#define SETTING_OF_SOME_TORCH(value, getter, setter)                                                     \
  Setting {                                                                                              \
    &Surroundings::value, Ops::kOfGpu,                                                                   \
        [] {                                                                                             \
          return [](const auto& context) {                                                               \
            if constexpr (requires { context.getter(); }) return static_cast<int32_t>(context.getter()); \
            return int32_t{0};                                                                           \
          }(at::globalContext());                                                                        \
        },                                                                                               \
        [](int32_t wanted) {                                                                             \
          [wanted](auto& context) {                                                                      \
            if constexpr (requires { context.getter(); }) {                                              \
              context.setter(static_cast<decltype(context.getter())>(wanted));                           \
            }                                                                                            \
          }(at::globalContext());                                                                        \
        }                                                                                                \
  }

constexpr auto kSettings = std::make_tuple(
    Setting{&Surroundings::threads, Ops::kOfHost, [] { return static_cast<int32_t>(at::get_num_threads()); },
            [](int32_t count) { at::set_num_threads(count); }},
    Setting{&Surroundings::default_dtype, Ops::kAll, [] { return c10::get_default_dtype_as_scalartype(); },
            [](c10::ScalarType dtype) { c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype)); }},
    Setting{&Surroundings::float_control, Ops::kOfHost, [] { return float_control(); }, set_float_control},
    Setting{
        &Surroundings::deterministic, Ops::kAll,
        [] {
          const at::Context& context = at::globalContext();
          return Determinism{context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly()};
        },
        [](Determinism wanted) { at::globalContext().setDeterministicAlgorithms(wanted.demanded, wanted.warns_only); }},
    Setting{&Surroundings::mkldnn, Ops::kOfHost, [] { return at::globalContext().userEnabledMkldnn(); },
            [](bool on) { at::globalContext().setUserEnabledMkldnn(on); }},
    Setting{&Surroundings::mkldnn_deterministic, Ops::kOfHost, [] { return at::globalContext().deterministicMkldnn(); },
            [](bool on) { at::globalContext().setDeterministicMkldnn(on); }},
    Setting{&Surroundings::nnpack, Ops::kOfHost, [] { return at::globalContext().userEnabledNNPACK(); },
            [](bool on) { at::globalContext().setUserEnabledNNPACK(on); }},
    Setting{&Surroundings::half_reduction_on_host, Ops::kOfHost,
            [] { return at::globalContext().allowFP16ReductionCPU(); },
            [](bool on) { at::globalContext().setAllowFP16ReductionCPU(on); }},
    Setting{&Surroundings::cudnn, Ops::kOfGpu, [] { return at::globalContext().userEnabledCuDNN(); },
            [](bool on) { at::globalContext().setUserEnabledCuDNN(on); }},
    Setting{&Surroundings::cudnn_benchmark, Ops::kOfGpu, [] { return at::globalContext().benchmarkCuDNN(); },
            [](bool on) { at::globalContext().setBenchmarkCuDNN(on); }},
    Setting{&Surroundings::cudnn_deterministic, Ops::kOfGpu, [] { return at::globalContext().deterministicCuDNN(); },
            [](bool on) { at::globalContext().setDeterministicCuDNN(on); }},
    Setting{&Surroundings::half_reduction, Ops::kOfGpu, [] { return at::globalContext().allowFP16ReductionCuBLAS(); },
            [](at::CuBLASReductionOption option) { set_reduction(option, &at::Context::setAllowFP16ReductionCuBLAS); }},
    Setting{&Surroundings::bfloat16_reduction, Ops::kOfGpu,
            [] { return at::globalContext().allowBF16ReductionCuBLAS(); },
            [](at::CuBLASReductionOption option) { set_reduction(option, &at::Context::setAllowBF16ReductionCuBLAS); }},
    Setting{&Surroundings::half_accumulation, Ops::kOfGpu,
            [] { return at::globalContext().allowFP16AccumulationCuBLAS(); },
            [](bool on) { at::globalContext().setAllowFP16AccumulationCuBLAS(on); }},
    Setting{&Surroundings::flash_3, Ops::kOfGpu, [] { return at::globalContext().userEnabledFA3SDP(); },
            [](bool on) { at::globalContext().setSDPUseFA3(on); }},
    SETTING_OF_SOME_TORCH(cudnn_depthwise, cudnnDepthwiseKernel, setCuDNNDepthwiseKernel),                // since 2.13
    SETTING_OF_SOME_TORCH(cublaslt_groups, preferCublasltGroupedGemm, setPreferCublasltGroupedGemm),      // since 2.14
    SETTING_OF_SOME_TORCH(flash_4, userEnabledFA4SDP, setSDPUseFA4),                                      // since 2.15
    SETTING_OF_SOME_TORCH(native_aot, allowNativeAot, setAllowNativeAot),                                 // since 2.15
    SETTING_OF_SOME_TORCH(native_aot_masked, maskUnconditionalNativeAot, setMaskUnconditionalNativeAot),  // since 2.15
    Setting{&Surroundings::multiprocessors_left, Ops::kOfGpu,
            [] { return at::globalContext()._SMCarveout_EXPERIMENTAL(); },
            [](std::optional<int32_t> count) { at::globalContext()._setSMCarveout_EXPERIMENTAL(count); }},
    Setting{&Surroundings::blas, Ops::kOfGpu, [] { return at::globalContext().blasPreferredBackend(); },
            [](at::BlasBackend backend) { at::globalContext().setBlasPreferredBackend(backend); }});

#undef SETTING_OF_SOME_TORCH

void write(std::ostream& out, const Determinism& value) { out << value.demanded << value.warns_only << ','; }

void write(std::ostream& out, const std::optional<int32_t>& value) { out << value.value_or(-1) << ','; }

template <class T>
void write(std::ostream& out, T value) {
  out << static_cast<int64_t>(value) << ',';
}

template <class F>
void for_each_setting(const F& f) {
  std::apply([&f](const auto&... setting) { (f(setting), ...); }, kSettings);
}

// Of the backends, those that may run an op of the device: this is read for every op that may be replayed.
Surroundings read(c10::DeviceType device) {
  Surroundings s;
  const bool gpu = device == c10::DeviceType::CUDA;
  for_each_setting([&](const auto& setting) {
    if (setting.ops != (gpu ? Ops::kOfHost : Ops::kOfGpu)) s.*setting.value = setting.get();
  });
  s.autocast = Surroundings::active_autocast().raw_repr();
  s.autocast_device = device;
  if (s.autocast != 0) s.autocast_dtype = at::autocast::get_autocast_dtype(device);
  const int first = gpu ? 0 : 2;
  for (int i = first; i < first + 2; ++i) {
    s.precision[i] = at::globalContext().float32Precision(kBackends[i / 2], kOps[i % 2]);
  }
  return s;
}

at::Float32Precision& own_precision(int i) {
  return own_precisions(at::globalContext()).at({kBackends[i / 2], kOps[i % 2]});
}

void get_precision(int i, at::Float32Precision wanted) {
  own_precision(i) = wanted;
  if (at::globalContext().float32Precision(kBackends[i / 2], kOps[i % 2]) == wanted) return;
  // Nothing was set anywhere, and now something is above it. Kernels ask whether it is TF32, or BF16.
  own_precision(i) = at::Float32Precision::IEEE;
}

// The autocast keys themselves are set by whoever forces the thread's key set, precisions by Reenacted.
void change(const Surroundings& from, const Surroundings& to) {
  for_each_setting([&](const auto& setting) {
    if (from.*setting.value != to.*setting.value) setting.set(to.*setting.value);
  });
  if (from.autocast_dtype != to.autocast_dtype && to.autocast_dtype != c10::ScalarType::Undefined) {
    at::autocast::set_autocast_dtype(to.autocast_device, to.autocast_dtype);
  }
}

}  // namespace

std::string Surroundings::key() const {
  std::ostringstream text;
  for_each_setting([&](const auto& setting) { write(text, this->*setting.value); });
  for (const at::Float32Precision each : precision) write(text, each);
  return text.str();
}

bool Surroundings::same_kernels(const Surroundings& other) const {
  bool same = std::equal(precision, precision + 4, other.precision);
  for_each_setting([&](const auto& setting) { same = same && this->*setting.value == other.*setting.value; });
  return same;
}

CheckedSettings::CheckedSettings(c10::DeviceType device) : settings_(read(device)) {
  static std::atomic<uint64_t> made{0};
  number_ = ++made;
}

bool CheckedSettings::hold_for(const Surroundings& settings) const {
  if (const auto found = settings.checked.of(number_)) return *found;
  const bool same = settings.same_kernels(settings_);
  settings.checked.note(number_, same);
  return same;
}

c10::DispatchKeySet Surroundings::active_autocast() {
  return c10::autocast_dispatch_keyset - c10::impl::tls_local_dispatch_key_set().excluded_;
}

std::shared_ptr<const Surroundings> Surroundings::now(c10::DeviceType device) {
  static thread_local std::shared_ptr<const Surroundings> last;
  const Surroundings current = read(device);
  if (!last || !(*last == current)) last = std::make_shared<const Surroundings>(current);
  return last;
}

void Surroundings::watch_denormals() {
  if (C10_UNLIKELY(chameleon::float_control() != 0) && !may_flush && at::get_num_threads() > 1) may_flush = true;
}

bool Surroundings::workers_may_flush() { return may_flush; }

// The dtype of autocast is put back even where autocast was off before: it is what the next `with` starts from.
Reenacted::Reenacted(const Surroundings& then) : before_(Surroundings::now(then.autocast_device)), then_(then) {
  Surroundings before = *before_;
  before.autocast_dtype = at::autocast::get_autocast_dtype(then_.autocast_device);
  before_ = std::make_shared<const Surroundings>(before);
  const bool differs = may_flush || before.float_control != then_.float_control;
  if (differs && then_.threads > 1 && then_.autocast_device == c10::DeviceType::CPU) {
    // All that there are: torch ends those that a smaller number does not need, and makes new ones later.
    workers_.resize(std::max(before.threads, then_.threads));
    at::set_num_threads(static_cast<int>(workers_.size()));
    on_each_worker(&workers_, [](uint32_t* word) { *word = float_control(); });
    at::set_num_threads(then_.threads);
    std::vector<uint32_t> wanted(then_.threads, then_.float_control);
    on_each_worker(&wanted, [](const uint32_t* word) { set_float_control(*word); });
  }
  change(*before_, then_);
  for (int i = 0; i < 4; ++i) {
    own_precision_[i] = own_precision(i);
    if (before_->precision[i] != then_.precision[i]) get_precision(i, then_.precision[i]);
  }
}

Reenacted::~Reenacted() {
  for (int i = 0; i < 4; ++i) {
    if (before_->precision[i] != then_.precision[i]) own_precision(i) = own_precision_[i];
  }
  Surroundings changed = then_;
  if (changed.autocast_dtype == c10::ScalarType::Undefined) changed.autocast_dtype = before_->autocast_dtype;
  try {
    if (!workers_.empty()) {
      at::set_num_threads(static_cast<int>(workers_.size()));
      on_each_worker(&workers_, [](const uint32_t* word) { set_float_control(*word); });
      changed.threads = static_cast<int32_t>(workers_.size());
    }
    change(changed, *before_);
  } catch (const std::exception& error) {
    TORCH_WARN("Chameleon Lab: a setting could not be put back after replaying an op: ", error.what());
  }
}

}  // namespace chameleon
