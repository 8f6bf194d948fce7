// Where the pointers of away storages point to: inaccessible addresses, as many as each storage has bytes.
//
// Note [Reads through a const pointer]
// Nothing tells of a read through a const pointer outside of any op: torch's own tolist() does that, and extensions
// may. Where it meets a mark it faults, and the handler puts the bytes there: a copy for reading, beside the capacity,
// which stays until the storage leaves again or dies. What it cannot help: a system call that is handed the address,
// which fails with EFAULT.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstddef>

namespace chameleon::marks {

// Before the first; throws where there is no address space left. `shown`: for storages of the host's memory, too, whose
// bytes a handler can put there.
void reserve(bool shown);

// A stretch of its own for `bytes` bytes, until it is given back.
void* take(size_t bytes);
void give_back(void* mark);
void hide(void* mark, size_t bytes);  // inaccessible again

// Puts the bytes behind an address where they can be read: asks for the mark's storage with the core's lock held.
using Provider = bool (*)(const void* address);
void set_provider(Provider provider);
// `fill` puts them where it is told; false: it cannot. In a signal's handler, which allocates nothing.
bool show(void* mark, size_t bytes, c10::function_ref<bool(void*)> fill);

}  // namespace chameleon::marks
