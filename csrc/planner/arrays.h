// numpy's arrays as the planner's C++ takes them: checked, with errors that name the argument.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace chameleon::planner {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <class T>
std::span<const T> checked(const Array<T>& array, const char* name, int64_t length) {
  if (array.ndim() != 1 || array.size() != length) {
    throw py::value_error(std::string(name) + " has " + std::to_string(array.size()) + " values in " +
                          std::to_string(array.ndim()) + " dimensions: give " + std::to_string(length) + " in one");
  }
  return {array.data(), static_cast<size_t>(length)};
}

inline void check_index(int64_t index, const char* name, int64_t least, int64_t below) {
  if (index < least || index >= below) {
    throw py::index_error(std::string(name) + " holds " + std::to_string(index) + ": give values from " +
                          std::to_string(least) + " to " + std::to_string(below - 1));
  }
}

inline void check_indices(std::span<const int64_t> indices, const char* name, int64_t least, int64_t below) {
  for (const int64_t index : indices) check_index(index, name, least, below);
}

template <class T>
Array<T> as_array(const std::vector<T>& values) {
  return Array<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

}  // namespace chameleon::planner
