// CUDA's error codes, made errors that name the call.
#pragma once

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

namespace chameleon::cuda {

inline void check(cudaError_t error, const char* call) {
  if (C10_LIKELY(error == cudaSuccess)) return;
  (void)cudaGetLastError();  // it would be reported again by whoever asks next
  TORCH_CHECK(false, "Chameleon Lab: ", call, " failed: ", cudaGetErrorString(error));
}

}  // namespace chameleon::cuda

#define CHAMELEON_CUDA_CALL(function, ...) ::chameleon::cuda::check(function(__VA_ARGS__), #function)
