// A compiled region is one op: its kernels take pointers, and no op inside tells which.
//
// Its inputs come in before it begins and stay until it ends, and so does what ops inside it use. A pointer that it
// takes of a storage is its own until then, and no escape. What makes its results is unknown to replays, as with custom
// ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace chameleon::compiled_regions {

// On this thread, until leave(). They nest. No reference is kept: a region may free its inputs early.
void enter(const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written);
void leave(const std::vector<at::Tensor>& results);

bool inside();  // is this thread in one?

}  // namespace chameleon::compiled_regions
