#include "tensor_forms.h"

namespace chameleon {

TensorForm TensorForms::of(const at::Tensor& tensor, size_t storage_bytes) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  TensorForm form;
  form.dtype = static_cast<int8_t>(c10::typeMetaToScalarType(impl->dtype()));
  // Sizes that are worked out by Python, or nested ones, are not for asking under the core's lock.
  constexpr c10::DispatchKeySet own_sizes({c10::DispatchKey::Python, c10::DispatchKey::NestedTensor});
  if (impl->key_set().has_any(own_sizes) || impl->has_symbolic_sizes_strides() || impl->layout() != c10::kStrided) {
    return form;
  }
  const c10::IntArrayRef sizes = impl->sizes();
  size_t bytes = impl->itemsize();
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  if (bytes != storage_bytes) return form;
  scratch_.assign(sizes.begin(), sizes.end());
  constexpr size_t kMostShapes = size_t{1} << 16;  // of a loop whose every step has other lengths
  if (numbers_.size() >= kMostShapes && !numbers_.contains(scratch_)) return form;
  form.shape = numbers_.try_emplace(scratch_, static_cast<int32_t>(numbers_.size())).first->second;
  return form;
}

std::vector<std::vector<int64_t>> TensorForms::shapes() const {
  std::vector<std::vector<int64_t>> all(numbers_.size());
  for (const auto& [sizes, number] : numbers_) all[number] = sizes;
  return all;
}

}  // namespace chameleon
