#include "replay_bindings.h"

#include <pybind11/typing.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../released.h"
#include "arrays.h"
#include "replay_chains.h"

namespace chameleon::planner {

namespace {

using Indices = Array<int64_t>;

// Values and rows of inputs; what the ops take; bytes. Without a value: there is no such chain.
using ChainArrays = py::typing::Tuple<py::array_t<int64_t>, py::array_t<int64_t>, py::float_, py::int_>;
// As in Resolved, in its order.
using ResolvedArrays =
    py::typing::Tuple<py::array_t<int64_t>, py::array_t<int64_t>, py::array_t<double>, py::array_t<int64_t>,
                      py::array_t<int64_t>, py::array_t<int64_t>, py::array_t<int64_t>, py::array_t<int64_t>>;

template <class T>
std::vector<T> copied(const Array<T>& array, const char* name, int64_t length) {
  const auto values = checked(array, name, length);
  return {values.begin(), values.end()};
}

std::unique_ptr<ReplayChains> made(const Indices& value_row, const Indices& value_op, const Indices& inputs_begin,
                                   const Indices& inputs_end, const Indices& input_row, const Indices& input_value,
                                   const Array<bool>& possible, const Array<double>& seconds,
                                   const Indices& beside_bytes, const Indices& death_op, const Indices& block_bytes,
                                   const Indices& gap_row, const Indices& out_op, const Indices& use_op,
                                   const Array<bool>& returns, int64_t ops, int64_t longest) {
  const int64_t count = value_row.size(), rows = death_op.size(), gaps = gap_row.size(), inputs = input_row.size();
  Values values{copied(value_row, "value_row", count),       copied(value_op, "value_op", count),
                copied(inputs_begin, "inputs_begin", count), copied(inputs_end, "inputs_end", count),
                copied(input_row, "input_row", inputs),      copied(input_value, "input_value", inputs),
                copied(possible, "possible", count),         copied(seconds, "seconds", count),
                copied(beside_bytes, "beside_bytes", count)};
  Storages storages{copied(death_op, "death_op", rows), copied(block_bytes, "block_bytes", rows)};
  StorageGaps storage_gaps{copied(gap_row, "gap_row", gaps), copied(out_op, "out_op", gaps),
                           copied(use_op, "use_op", gaps), copied(returns, "returns", gaps)};
  check_indices(values.row, "value_row", 0, rows);
  check_indices(values.op, "value_op", 0, ops);
  check_indices(values.input_row, "input_row", 0, rows);
  check_indices(values.inputs_begin, "inputs_begin", 0, inputs + 1);
  for (int64_t value = 0; value < count; ++value) {
    const auto k = static_cast<size_t>(value);
    check_index(values.inputs_end[k], "inputs_end", values.inputs_begin[k], inputs + 1);
    for (auto input = values.inputs_begin[k]; input < values.inputs_end[k]; ++input) {
      check_index(values.input_value[static_cast<size_t>(input)], "input_value", kAtFirst, value);
    }
  }
  check_indices(storage_gaps.row, "gap_row", 0, rows);
  check_indices(storage_gaps.out_op, "out_op", 0, ops);
  check_indices(storage_gaps.use_op, "use_op", 0, 2 * ops + 1);  // in the step after this one, too
  check_index(longest, "longest", 0, 1001);                      // calls go as deep
  return std::make_unique<ReplayChains>(std::move(values), std::move(storages), std::move(storage_gaps), ops, longest);
}

void check_row(const ReplayChains& self, int64_t row, int64_t op) {
  check_index(row, "row", 0, static_cast<int64_t>(self.storages()));
  check_index(op, "op", 0, 2 * self.ops() + 1);
}

int64_t value_at(const ReplayChains& self, int64_t row, int64_t op) {
  check_row(self, row, op);
  return self.value_at(row, op);
}

py::typing::Tuple<py::int_, py::int_> gap_around(const ReplayChains& self, int64_t row, int64_t op) {
  check_row(self, row, op);
  const auto around = self.gap_around(row, op);
  return py::make_tuple(around ? around->gap : -1, around ? around->op : op);
}

ChainArrays chain(ReplayChains& self, int64_t row, int64_t op) {
  check_row(self, row, op);
  const Chain* found = nullptr;
  {
    const Released released;
    found = self.chain(row, op);
  }
  static const Chain none;
  const Chain& it = found == nullptr ? none : *found;
  return py::make_tuple(as_array(it.made), as_array(it.inputs), it.seconds, it.transient_bytes);
}

py::array_t<int64_t> needs(ReplayChains& self, int64_t gap, int64_t op) {
  check_index(gap, "gap", 0, static_cast<int64_t>(self.gaps().size()));
  check_index(op, "op", 0, 2 * self.ops() + 1);
  std::vector<int64_t> found;
  {
    const Released released;
    found = self.needs(gap, op);
  }
  return as_array(found);
}

std::vector<bool> marked(const Indices& gaps, const char* name, int64_t count) {
  std::vector<bool> marks(static_cast<size_t>(count), false);
  for (const int64_t gap : checked(gaps, name, gaps.size())) {
    check_index(gap, name, 0, count);
    marks[static_cast<size_t>(gap)] = true;
  }
  return marks;
}

ResolvedArrays resolve(ReplayChains& self, const Indices& gaps, const Indices& fixed, const Indices& useful,
                       const Indices& must) {
  const auto count = static_cast<int64_t>(self.gaps().size());
  const auto asked = checked(gaps, "gaps", gaps.size());
  for (const int64_t gap : asked) {
    check_index(gap, "gaps", 0, count);
    check_index(self.gaps().use_op[static_cast<size_t>(gap)], "use_op of gaps", 0, self.ops());
  }
  const auto fixed_gaps = marked(fixed, "fixed", count), must_gaps = marked(must, "must", count);
  const auto useful_ops = checked(useful, "useful", useful.size() == 0 ? 0 : self.ops() + 1);
  Resolved found;
  {
    const Released released;
    found = self.resolve(asked, fixed_gaps, useful_ops, must_gaps);
  }
  return py::make_tuple(as_array(found.gap), as_array(found.in_op), as_array(found.seconds),
                        as_array(found.transient_bytes), as_array(found.needed_gap), as_array(found.needed_op),
                        as_array(found.stays), as_array(found.declined));
}

}  // namespace

void bind_replay_chains(py::module_& module) {
  py::class_<ReplayChains>(module, "ReplayChains")
      .def(py::init(&made), py::arg("value_row"), py::arg("value_op"), py::arg("inputs_begin"), py::arg("inputs_end"),
           py::arg("input_row"), py::arg("input_value"), py::arg("possible"), py::arg("seconds"),
           py::arg("beside_bytes"), py::arg("death_op"), py::arg("block_bytes"), py::arg("gap_row"), py::arg("out_op"),
           py::arg("use_op"), py::arg("returns"), py::arg("ops"), py::arg("longest"))
      .def("value_at", &value_at, py::arg("row"), py::arg("op"))
      .def("gap_around", &gap_around, py::arg("row"), py::arg("op"))
      .def("chain", &chain, py::arg("row"), py::arg("op"))
      .def("needs", &needs, py::arg("gap"), py::arg("op"))
      .def("resolve", &resolve, py::arg("gaps"), py::arg("fixed"), py::arg("useful"), py::arg("must"));
}

}  // namespace chameleon::planner
