#pragma once

#include <pybind11/pybind11.h>

namespace chameleon::planner {

// Adds ReplayChains to the module.
void bind_replay_chains(pybind11::module_& module);

}  // namespace chameleon::planner
