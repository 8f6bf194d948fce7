// A region is one op made of Python code: its kernels take pointers, and no op inside tells which. What Inductor has
// compiled is one, and so is a kernel that is launched by hand (Triton, ctypes).
//
// Its inputs come in before it begins and stay until it ends, and so does what ops inside it use. A pointer that it
// takes of a storage is its own until then, and no escape. What makes its results is unknown to replays, as with custom
// ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace chameleon::regions {

// On this thread, until leave(); the op's name. They nest. No reference is kept: a region may free its inputs early.
void enter(const std::string& name, const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written);
void leave(const std::vector<at::Tensor>& results);

size_t depth();  // how many regions this thread is in

}  // namespace chameleon::regions
