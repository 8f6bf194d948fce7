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

// torch 2.11 has no such setting.
template <class Context>
int32_t depthwise_kernel(const Context& context) {
  if constexpr (requires { context.cudnnDepthwiseKernel(); }) {
    return static_cast<int32_t>(context.cudnnDepthwiseKernel());
  }
  return 0;
}

template <class Context>
void set_depthwise_kernel(Context& context, int32_t kernel) {
  if constexpr (requires { context.cudnnDepthwiseKernel(); }) {
    context.setCuDNNDepthwiseKernel(static_cast<decltype(context.cudnnDepthwiseKernel())>(kernel));
  }
}

// Of the backends, those that may run an op of the device: this is read for every op that may be replayed.
Surroundings read(c10::DeviceType device) {
  const at::Context& context = at::globalContext();
  Surroundings s;
  s.threads = at::get_num_threads();
  s.default_dtype = c10::get_default_dtype_as_scalartype();
  s.float_control = float_control();
  s.autocast = Surroundings::active_autocast().raw_repr();
  s.autocast_device = device;
  if (s.autocast != 0) s.autocast_dtype = at::autocast::get_autocast_dtype(device);
  s.deterministic = context.deterministicAlgorithms();
  s.deterministic_warn_only = context.deterministicAlgorithmsWarnOnly();
  if (device == c10::DeviceType::CUDA) {
    s.cudnn = context.userEnabledCuDNN();
    s.cudnn_benchmark = context.benchmarkCuDNN();
    s.cudnn_deterministic = context.deterministicCuDNN();
    s.cudnn_depthwise = depthwise_kernel(context);
    s.reduction[0] = context.allowFP16ReductionCuBLAS();
    s.reduction[1] = context.allowBF16ReductionCuBLAS();
    s.half_accumulation = context.allowFP16AccumulationCuBLAS();
    s.multiprocessors_left = context._SMCarveout_EXPERIMENTAL();
    s.blas = at::globalContext().blasPreferredBackend();
  } else {
    s.mkldnn = context.userEnabledMkldnn();
    s.mkldnn_deterministic = context.deterministicMkldnn();
    s.nnpack = context.userEnabledNNPACK();
    s.half_reduction_on_host = context.allowFP16ReductionCPU();
  }
  const int first = device == c10::DeviceType::CUDA ? 0 : 2;
  for (int i = first; i < first + 2; ++i) s.precision[i] = context.float32Precision(kBackends[i / 2], kOps[i % 2]);
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

void set_reduction(at::CuBLASReductionOption option, void (at::Context::*set)(bool, bool)) {
  (at::globalContext().*set)(option == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
                             option != at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK);
}

// The autocast keys themselves are set by whoever forces the thread's key set, precisions by Reenacted.
void change(const Surroundings& from, const Surroundings& to) {
  at::Context& context = at::globalContext();
  if (from.threads != to.threads) at::set_num_threads(to.threads);
  if (from.default_dtype != to.default_dtype) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(to.default_dtype));
  }
  if (from.float_control != to.float_control) set_float_control(to.float_control);
  if (from.autocast_dtype != to.autocast_dtype && to.autocast_dtype != c10::ScalarType::Undefined) {
    at::autocast::set_autocast_dtype(to.autocast_device, to.autocast_dtype);
  }
  if (from.deterministic != to.deterministic || from.deterministic_warn_only != to.deterministic_warn_only) {
    context.setDeterministicAlgorithms(to.deterministic, to.deterministic_warn_only);
  }
  if (from.mkldnn != to.mkldnn) context.setUserEnabledMkldnn(to.mkldnn);
  if (from.mkldnn_deterministic != to.mkldnn_deterministic) context.setDeterministicMkldnn(to.mkldnn_deterministic);
  if (from.nnpack != to.nnpack) context.setUserEnabledNNPACK(to.nnpack);
  if (from.cudnn != to.cudnn) context.setUserEnabledCuDNN(to.cudnn);
  if (from.cudnn_benchmark != to.cudnn_benchmark) context.setBenchmarkCuDNN(to.cudnn_benchmark);
  if (from.cudnn_deterministic != to.cudnn_deterministic) context.setDeterministicCuDNN(to.cudnn_deterministic);
  if (from.cudnn_depthwise != to.cudnn_depthwise) set_depthwise_kernel(context, to.cudnn_depthwise);
  if (from.reduction[0] != to.reduction[0]) {
    set_reduction(to.reduction[0], &at::Context::setAllowFP16ReductionCuBLAS);
  }
  if (from.reduction[1] != to.reduction[1]) {
    set_reduction(to.reduction[1], &at::Context::setAllowBF16ReductionCuBLAS);
  }
  if (from.half_accumulation != to.half_accumulation) {
    context.setAllowFP16AccumulationCuBLAS(to.half_accumulation);
  }
  if (from.half_reduction_on_host != to.half_reduction_on_host) {
    context.setAllowFP16ReductionCPU(to.half_reduction_on_host);
  }
  if (from.multiprocessors_left != to.multiprocessors_left) {
    context._setSMCarveout_EXPERIMENTAL(to.multiprocessors_left);
  }
  if (from.blas != to.blas) context.setBlasPreferredBackend(to.blas);
}

}  // namespace

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
