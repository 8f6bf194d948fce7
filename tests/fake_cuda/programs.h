// Random programs of late ops in sessions: see programs.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace chameleon {

void bind_programs(pybind11::module_& m);

}  // namespace chameleon
