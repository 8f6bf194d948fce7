#include "leaf_call.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

namespace chameleon {

namespace {

TensorShape shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {{}, "", 0, 0};
  const auto element_bytes = static_cast<int64_t>(tensor.element_size());
  int64_t bytes = tensor.numel() * element_bytes;
  if (tensor.has_storage()) bytes = std::min(bytes, static_cast<int64_t>(tensor.storage().nbytes()));
  return {tensor.sizes().vec(), c10::toString(tensor.scalar_type()), bytes, element_bytes};
}

}  // namespace

LeafValue leaf_value(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? LeafValue(shape_of(value.toTensor())) : LeafValue();
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isIntList()) return value.toIntVector();
  if (value.isBoolList()) {
    const auto list = value.toBoolList();
    return std::vector<bool>(list.begin(), list.end());
  }
  if (value.isList()) {
    std::vector<TensorShape> shapes;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) shapes.push_back(shape_of(element.toTensor()));
    }
    return shapes;
  }
  return {};
}

}  // namespace chameleon
