// chameleon_lab._planner: the planner's inner loops, on arrays. It needs no torch, and runs without the interpreter's
// lock.
#include <pybind11/typing.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../released.h"
#include "arrays.h"
#include "range_max.h"
#include "replay_bindings.h"
#include "stall_clock.h"
#include "swap_passes.h"

namespace chameleon::planner {

namespace {

using ScheduleArrays = py::typing::Tuple<py::array_t<int64_t>, py::array_t<int64_t>>;
// Op, swap, outward and seconds of each wait; the cycle; out_end_s, in_end_s and step_s.
using SteadyArrays =
    py::typing::Tuple<py::array_t<int64_t>, py::array_t<int64_t>, py::array_t<bool>, py::array_t<double>, py::int_,
                      py::array_t<double>, py::array_t<double>, py::float_>;

// What both passes are given; the arrays outlive it.
struct Step {
  Gaps gaps;
  std::span<const int64_t> op_bytes;
};

Step checked_step(const Array<int64_t>& bytes, const Array<int64_t>& out_op, const Array<int64_t>& use_op,
                  const Array<int64_t>& latest_in, const Array<double>& least_s, const Array<bool>& returns,
                  const Array<int64_t>& op_bytes) {
  const int64_t count = bytes.size(), n = op_bytes.size();
  const Step step{
      {checked(bytes, "bytes", count), checked(out_op, "out_op", count), checked(use_op, "use_op", count),
       checked(latest_in, "latest_in", count), checked(least_s, "least_s", count), checked(returns, "returns", count)},
      checked(op_bytes, "op_bytes", n)};
  check_indices(step.gaps.out_op, "out_op", 0, n);
  // Ops reach into the step after this one.
  check_indices(step.gaps.use_op, "use_op", 0, 2 * n + 1);
  check_indices(step.gaps.latest_in, "latest_in", 0, 2 * n + 1);
  return step;
}

ScheduleArrays bound_choose_swaps(const Array<int64_t>& bytes, const Array<int64_t>& out_op,
                                  const Array<int64_t>& use_op, const Array<int64_t>& latest_in,
                                  const Array<double>& least_s, const Array<bool>& returns,
                                  const Array<int64_t>& op_bytes, const Array<double>& start_s, int64_t capacity_bytes,
                                  bool longest_first) {
  const Step step = checked_step(bytes, out_op, use_op, latest_in, least_s, returns, op_bytes);
  const auto start_of = checked(start_s, "start_s", (kPeriods + 1) * op_bytes.size());
  Schedule schedule;
  {
    const Released released;
    schedule = choose_swaps(step.gaps, step.op_bytes, start_of, capacity_bytes,
                            longest_first ? Order::Longest : Order::Furthest);
  }
  return py::make_tuple(as_array(schedule.free), as_array(schedule.back));
}

ScheduleArrays bound_prefetch(const Array<int64_t>& bytes, const Array<int64_t>& out_op, const Array<int64_t>& use_op,
                              const Array<int64_t>& latest_in, const Array<double>& least_s, const Array<bool>& returns,
                              const Array<int64_t>& op_bytes, const Array<int64_t>& free, const Array<int64_t>& back,
                              int64_t capacity_bytes) {
  const Step step = checked_step(bytes, out_op, use_op, latest_in, least_s, returns, op_bytes);
  const auto free_of = checked(free, "free", bytes.size()), back_of = checked(back, "back", bytes.size());
  check_indices(free_of, "free", -1, 2 * op_bytes.size() + 1);
  check_indices(back_of, "back", -1, 2 * op_bytes.size() + 1);
  Schedule schedule{{free_of.begin(), free_of.end()}, {back_of.begin(), back_of.end()}};
  {
    const Released released;
    prefetch(step.gaps, step.op_bytes, capacity_bytes, schedule);
  }
  return py::make_tuple(as_array(schedule.free), as_array(schedule.back));
}

SteadyArrays bound_run_until_steady(const Array<int64_t>& op, const Array<int64_t>& kind, const Array<int64_t>& swap,
                                    const Array<double>& start_s, const Array<double>& op_start_s,
                                    const Array<double>& out_s, const Array<double>& in_s, const Array<bool>& copies) {
  const int64_t count = op.size(), n = op_start_s.size(), swaps = out_s.size();
  const Events events{checked(op, "op", count), checked(kind, "kind", count), checked(swap, "swap", count)};
  check_indices(events.op, "op", 0, n);
  check_indices(events.kind, "kind", 0, static_cast<int64_t>(EventKind::SwapOut) + 1);
  check_indices(events.swap, "swap", 0, swaps);
  const StepTimes times{checked(start_s, "start_s", n + 1), checked(op_start_s, "op_start_s", n),
                        checked(out_s, "out_s", swaps), checked(in_s, "in_s", swaps), checked(copies, "copies", swaps)};
  SteadyState found;
  {
    const Released released;
    found = run_until_steady(events, times);
  }
  const auto waits = static_cast<py::ssize_t>(found.waits.size());
  Array<int64_t> wait_op(waits), wait_swap(waits);
  Array<bool> outward(waits);
  Array<double> seconds(waits);
  for (py::ssize_t k = 0; k < waits; ++k) {
    const Wait& wait = found.waits[static_cast<size_t>(k)];
    wait_op.mutable_at(k) = wait.op;
    wait_swap.mutable_at(k) = wait.swap;
    outward.mutable_at(k) = wait.awaited == Awaited::Out;
    seconds.mutable_at(k) = wait.seconds;
  }
  return py::make_tuple(wait_op, wait_swap, outward, seconds, found.cycle, as_array(found.out_end_s),
                        as_array(found.in_end_s), found.step_s);
}

}  // namespace

PYBIND11_MODULE(_planner, module) {
  module.doc() = "The planner's inner loops, on arrays.";
  // The first array lets pybind11 look up numpy, which lets go of the interpreter: better here than in a daemon thread.
  const Array<double> first;
  module.attr("PERIODS") = kPeriods;
  module.attr("FREE") = static_cast<int>(EventKind::Free);
  module.attr("SWAP_IN") = static_cast<int>(EventKind::SwapIn);
  module.attr("REPLAY_READ") = static_cast<int>(EventKind::ReplayRead);
  module.attr("USE") = static_cast<int>(EventKind::Use);
  module.attr("SWAP_OUT") = static_cast<int>(EventKind::SwapOut);

  module.def("choose_swaps", &bound_choose_swaps, py::arg("bytes"), py::arg("out_op"), py::arg("use_op"),
             py::arg("latest_in"), py::arg("least_s"), py::arg("returns"), py::arg("op_bytes"), py::arg("start_s"),
             py::arg("capacity_bytes"), py::arg("longest_first") = false);
  module.def("prefetch", &bound_prefetch, py::arg("bytes"), py::arg("out_op"), py::arg("use_op"), py::arg("latest_in"),
             py::arg("least_s"), py::arg("returns"), py::arg("op_bytes"), py::arg("free"), py::arg("back"),
             py::arg("capacity_bytes"));
  module.def("run_until_steady", &bound_run_until_steady, py::arg("op"), py::arg("kind"), py::arg("swap"),
             py::arg("start_s"), py::arg("op_start_s"), py::arg("out_s"), py::arg("in_s"), py::arg("copies"));

  bind_replay_chains(module);

  const auto in_range = [](const RangeMax& self, int64_t begin, int64_t end) {
    if (begin < end && (begin < 0 || end > static_cast<int64_t>(self.length()))) {
      throw py::index_error("positions " + std::to_string(begin) + " to " + std::to_string(end) + ": there are " +
                            std::to_string(self.length()));
    }
  };
  py::class_<RangeMax>(module, "RangeMax")
      .def(py::init([](const Array<int64_t>& values) {
             const auto all = checked(values, "values", values.size());
             return RangeMax(std::vector<int64_t>(all.begin(), all.end()));
           }),
           py::arg("values"))
      .def(
          "add",
          [in_range](RangeMax& self, int64_t begin, int64_t end, int64_t amount) {
            in_range(self, begin, end);
            self.add(begin, end, amount);
          },
          py::arg("begin"), py::arg("end"), py::arg("amount"))
      .def(
          "last_above",
          [in_range](const RangeMax& self, int64_t begin, int64_t end, int64_t bound) {
            in_range(self, begin, end);
            return self.last_above(begin, end, bound);
          },
          py::arg("begin"), py::arg("end"), py::arg("bound"));
}

}  // namespace chameleon::planner
