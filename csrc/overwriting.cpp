#include "overwriting.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/forward_grad.h>

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

// Kernels that are registered from Python can be called boxed alone.
bool runs_own_kernels(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  while (keys.highestPriorityTypeId() != c10::DispatchKey::Undefined) {
    const c10::KernelFunction& kernel = op.lookup(keys);
    if (!kernel.isValidUnboxed() && !kernel.isFallthrough()) return false;
    keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, keys.highestPriorityTypeId());
  }
  return true;
}

bool fits(const at::Scalar& value, at::ScalarType dtype) {
  if (value.isSymbolic() || (value.isComplex() && !at::isComplexType(dtype))) return false;
  return AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kHalf, at::kBFloat16, at::kBool, dtype, "fits", [&] {
    value.to<scalar_t>();
    return true;
  });
}

bool refused(const at::Tensor& self, const c10::IValue& source) {
  if (source.isScalar()) return !fits(source.toScalar(), self.scalar_type());
  if (!source.isTensor() || !plain(source.toTensor())) return true;
  const at::Tensor& tensor = source.toTensor();
  return tensor.is_alias_of(self) || (tensor.is_complex() && !self.is_complex());
}

}  // namespace

c10::StorageImpl* overwritten_by(const OpInfo& info, c10::ArrayRef<const c10::IValue> arguments) {
  if (arguments.empty() || !arguments[0].isTensor() || !plain(arguments[0].toTensor())) return nullptr;
  const at::Tensor& self = arguments[0].toTensor();
  if (!self.is_non_overlapping_and_dense() || self.nbytes() != self.storage().nbytes()) return nullptr;
  const auto& local = c10::impl::tls_local_dispatch_key_set();
  if (!only_torchs(local.included_) || torch::autograd::ForwardADLevel::try_get_by_idx(0)) return nullptr;
  c10::DispatchKeySet keys = self.key_set();
  try {
    if (arguments.size() > 1) {
      if (refused(self, arguments[1])) return nullptr;
      if (arguments[1].isTensor()) {
        const at::Tensor& source = arguments[1].toTensor();
        // fill_ of a tensor reads one number, of which it may be told that the other dtype has none; copy_ converts
        // all.
        const bool same = info.overwrites ? source.dim() == 0 && source.scalar_type() == self.scalar_type()
                                          : source.sizes() == self.sizes();
        if (!same) return nullptr;
        keys = keys | source.key_set();
      }
    }
    if (!runs_own_kernels(*info.handle, (keys | local.included_) - local.excluded_)) return nullptr;
  } catch (const std::exception&) {  // no such kernel, or no such number: the op raises
    return nullptr;
  }
  return self.storage().unsafeGetStorageImpl();
}

}  // namespace chameleon
