// Global module hooks for Python: they keep each thread's module stack, for about the cost of a dict lookup.
#pragma once

#include <pybind11/pybind11.h>

namespace chameleon {

// Adds enter_module, leave_module, forget_module and what gives a session its names to the extension.
void bind_module_hooks(pybind11::module_& m);

}  // namespace chameleon
