// What tensors of storages look like: dtypes by number, shapes by number. Shapes are few: layers are alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

namespace chameleon {

struct TensorForm {
  int8_t dtype = -1;   // a c10::ScalarType; -1: nobody knows
  int32_t shape = -1;  // its number in TensorForms
};

class TensorForms {
 public:
  // The dtype of a tensor, and its shape where it spans all bytes of its storage.
  TensorForm of(const at::Tensor& tensor, size_t storage_bytes);
  std::vector<std::vector<int64_t>> shapes() const;  // by number

 private:
  std::map<std::vector<int64_t>, int32_t> numbers_;
  std::vector<int64_t> scratch_;
};

}  // namespace chameleon
