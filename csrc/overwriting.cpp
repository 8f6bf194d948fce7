#include "overwriting.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <array>
#include <exception>

namespace chameleon {

namespace {

constexpr c10::DispatchKeySet kOwn =
    c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::ADInplaceOrView,
                         c10::DispatchKey::BackendSelect, c10::DispatchKey::AutocastCPU,
                         c10::DispatchKey::AutocastCUDA}) |
    c10::autograd_dispatch_keyset;

bool only_torchs(c10::DispatchKeySet keys) { return kOwn.has_all(keys); }

bool plain(const at::Tensor& tensor) {
  return tensor.defined() && only_torchs(tensor.key_set()) && tensor.layout() == at::kStrided &&
         !(c10::GradMode::is_enabled() && tensor.requires_grad()) &&
         !(tensor.is_inference() && !c10::InferenceMode::is_enabled());
}

using Handles = std::array<c10::OperatorHandle, 4>;

// zero_ calls fill_, and fill_ of a tensor calls copy_.
const Handles& ops() {
  static const auto* handles = [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    return new Handles{
        dispatcher.findSchemaOrThrow("aten::zero_", ""), dispatcher.findSchemaOrThrow("aten::fill_", "Scalar"),
        dispatcher.findSchemaOrThrow("aten::fill_", "Tensor"), dispatcher.findSchemaOrThrow("aten::copy_", "")};
  }();
  return *handles;
}

// A kernel that is registered from Python has no unboxed form.
bool runs_own_kernels(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  while (keys.highestPriorityTypeId() != c10::DispatchKey::Undefined) {
    const c10::KernelFunction& kernel = op.lookup(keys);
    if (!kernel.isValidUnboxed() && !kernel.isFallthrough()) return false;
    keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, keys.highestPriorityTypeId());
  }
  return true;
}

// Throws where torch's kernel would: the number does not fit, or there is no kernel for the dtype.
bool fits(const at::Scalar& value, at::ScalarType dtype) {
  if (value.isSymbolic() || (value.isComplex() && !at::isComplexType(dtype))) return false;
  return AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kHalf, at::kBFloat16, at::kBool, dtype, "fits", [&] {
    value.to<scalar_t>();
    return true;
  });
}

bool fits(const at::Tensor& source, const at::Tensor& self, bool fills) {
  if (!plain(source) || source.is_alias_of(self) || (source.is_complex() && !self.is_complex())) return false;
  // fill_ reads one number, and refuses it if the dtype cannot hold it. copy_ converts all numbers.
  const bool accepted =
      fills ? source.dim() == 0 && source.scalar_type() == self.scalar_type() : source.sizes() == self.sizes();
  return accepted && fits(at::Scalar(0), source.scalar_type());
}

}  // namespace

c10::StorageImpl* overwritten_by(const OpInfo& info, c10::ArrayRef<const c10::IValue> arguments,
                                 std::shared_ptr<void>* level) {
  if (arguments.empty() || !arguments[0].isTensor() || !plain(arguments[0].toTensor())) return nullptr;
  const at::Tensor& self = arguments[0].toTensor();
  if (!self.is_non_overlapping_and_dense() || self.nbytes() != self.storage().nbytes()) return nullptr;
  const auto& local = c10::impl::tls_local_dispatch_key_set();
  if (!only_torchs(local.included_)) return nullptr;
  *level = torch::autograd::ForwardADLevel::try_get_by_idx(0);
  if (*level) return nullptr;
  c10::DispatchKeySet keys = self.key_set() | local.included_;
  try {
    if (!fits(at::Scalar(0), self.scalar_type())) return nullptr;
    if (arguments.size() > 1 && arguments[1].isTensor()) {
      const at::Tensor& source = arguments[1].toTensor();
      if (!fits(source, self, /*fills=*/info.overwrites)) return nullptr;
      keys = keys | source.key_set();
    } else if (arguments.size() > 1 &&
               !(arguments[1].isScalar() && fits(arguments[1].toScalar(), self.scalar_type()))) {
      return nullptr;
    }
    keys = keys - local.excluded_;
    for (const c10::OperatorHandle& op : ops()) {
      if (!runs_own_kernels(op, keys)) return nullptr;
    }
  } catch (const std::exception&) {  // no such kernel, or no such number: the op raises
    return nullptr;
  }
  return self.storage().unsafeGetStorageImpl();
}

}  // namespace chameleon
