// The storages behind an op's argument.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <ATen/record_function.h>

#include <vector>

namespace chameleon {

// An op's own arguments. What a boxed call shows as its inputs is all of the stack, on which torch.func leaves those of
// the calls around it.
inline c10::ArrayRef<const c10::IValue> arguments_of(const at::RecordFunction& function) {
  const auto stack = function.inputs();
  const size_t count = function.num_inputs();
  return stack.size() > count ? stack.slice(stack.size() - count) : stack;
}

// Its results, likewise: TorchScript leaves values of its own below them.
inline c10::ArrayRef<c10::IValue> results_of(const at::RecordFunction& function) {
  const c10::ArrayRef<c10::IValue> stack = function.outputs();
  const size_t count = function.num_outputs();
  return stack.size() > count ? stack.slice(stack.size() - count) : stack;
}

template <class F>
void each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {  // collectives take lists of lists
      if (element.isTensor() ? element.toTensor().defined() : element.isList()) each_tensor(element, f);
    }
  }
}

template <class F>
void each_storage_of(const c10::IValue& value, F&& f) {
  each_tensor(value, [&](const at::Tensor& tensor) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (impl->has_storage()) f(tensor, impl->unsafe_storage().unsafeGetStorageImpl());
  });
}

template <class F>
void each_storage(const c10::IValue& value, F&& f) {
  each_storage_of(value, [&](const at::Tensor&, c10::StorageImpl* impl) { f(impl); });
}

// Sparse and quantized tensors keep tensors inside, which kernels read without an op that has them as inputs. The
// references are strong, and taking one may take the GIL: never call this while holding the core's lock.
template <class F>
void each_inner_tensor(const c10::IValue& value, F&& f) {
  constexpr c10::DispatchKeySet kinds(
      {c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr, c10::DispatchKey::Quantized});
  each_tensor(value, [&](const at::Tensor& tensor) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (C10_LIKELY(!impl->key_set().has_any(kinds))) return;
    if (impl->is_sparse()) {
      auto* sparse = static_cast<at::SparseTensorImpl*>(impl);
      f(sparse->indices());
      f(sparse->values());
    } else if (impl->is_sparse_compressed()) {
      auto* compressed = static_cast<at::SparseCsrTensorImpl*>(impl);
      f(compressed->compressed_indices());
      f(compressed->plain_indices());
      f(compressed->values());
    } else if (auto* channels = dynamic_cast<at::PerChannelAffineQuantizer*>(
                   static_cast<at::QTensorImpl*>(impl)->quantizer().get())) {
      f(channels->scales());
      f(channels->zero_points());
    }
  });
}

}  // namespace chameleon
