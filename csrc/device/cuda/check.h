// CUDA's error codes, made errors that name the call.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace chameleon::cuda {

std::string words(cudaError_t error, const char* call);
void check(cudaError_t error, const char* call);  // throws, unless the call has succeeded

}  // namespace chameleon::cuda

// `check`: the one above, or a Health's where the GPU may be gone.
#define CHAMELEON_CUDA_CALL(check, function, ...) check(function(__VA_ARGS__), #function)
