// Global module hooks for Python: they keep each thread's module stack, for about the cost of a dict lookup.
#pragma once

#include <pybind11/pybind11.h>

namespace chameleon {

// Adds enter_module, leave_module, set_module_resolver and forget_module to the extension.
void bind_module_hooks(pybind11::module_& m);

}  // namespace chameleon
