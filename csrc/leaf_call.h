// What is kept of an op's call for working out its time later: shapes and dtypes, and the plain arguments beside them.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace chameleon {

struct TensorShape {
  std::vector<int64_t> sizes;
  const char* dtype;  // c10's name, such as "BFloat16"
  int64_t bytes;      // behind the tensor: an expanded one has fewer than elements
  int64_t element_bytes;
};

using LeafValue = std::variant<std::monostate, bool, int64_t, double, std::vector<int64_t>, std::vector<bool>,
                               TensorShape, std::vector<TensorShape>>;

// An op below the composite ones: one that has a kernel of its own.
struct LeafCall {
  int32_t op;        // of the step: the outermost op that called it
  std::string name;  // "aten::mm"
  std::string overload;
  std::vector<LeafValue> arguments;
  std::vector<LeafValue> results;
};

LeafValue leaf_value(const c10::IValue& value);

}  // namespace chameleon
