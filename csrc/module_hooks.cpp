#include "module_hooks.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <vector>

#include "runtime.h"

namespace py = pybind11;

namespace chameleon {

namespace {

// A session's names of modules. Modules are borrowed: the resolver's finalizer calls forget_module before one dies.
struct Names {
  Runtime* runtime;
  PyObject* resolver;  // Python: resolver(module) -> id
  ska::flat_hash_map<PyObject*, int32_t> ids;
};

// Of the sessions that have some, guarded by the GIL. A resolver runs Python, in which others come and go.
std::vector<std::shared_ptr<Names>>& all_names() {
  static auto* all = new std::vector<std::shared_ptr<Names>>();
  return *all;
}

// False: Python has raised.
bool resolve(const std::shared_ptr<Names> names, PyObject* module, int32_t* id) {
  PyObject* resolver = names->resolver;
  Py_INCREF(resolver);
  PyObject* result = PyObject_CallOneArg(resolver, module);
  Py_DECREF(resolver);
  if (!result) return false;
  *id = static_cast<int32_t>(PyLong_AsLong(result));
  Py_DECREF(result);
  if (PyErr_Occurred()) return false;
  names->ids[module] = *id;
  return true;
}

// Forward pre-hook: enter_module(module, args). Plain CPython calls: pybind11's argument handling would cost as much
// as all the rest of a small module's call.
PyObject* enter_module(PyObject* const* args) {
  PyObject* module = args[0];
  for (size_t i = 0; i < all_names().size(); ++i) {
    Names& names = *all_names()[i];
    Runtime& runtime = *names.runtime;
    auto found = names.ids.find(module);
    int32_t id;
    if (found != names.ids.end()) {
      id = found->second;
    } else if (!resolve(all_names()[i], module, &id)) {
      return nullptr;
    }
    runtime.enter_module(id);
  }
  Py_RETURN_NONE;
}

// Forward hook: leave_module(module, args, output).
PyObject* leave_module(PyObject* const*) {
  for (const auto& names : all_names()) names->runtime->leave_module();
  Py_RETURN_NONE;
}

template <PyObject* (*hook)(PyObject* const*)>
PyObject* called_by_python(PyObject*, PyObject* const* args, Py_ssize_t) {
  try {
    return hook(args);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

template <PyObject* (*hook)(PyObject* const*)>
PyCFunction method() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&called_by_python<hook>));
}

void forget_names(const Runtime& runtime) {
  auto found = std::find_if(all_names().begin(), all_names().end(),
                            [&](const auto& names) { return names->runtime == &runtime; });
  if (found == all_names().end()) return;
  const std::shared_ptr<Names> gone = *found;
  all_names().erase(found);
  Py_DECREF(gone->resolver);
}

void set_module_resolver(Runtime& runtime, const py::object& resolver) {
  forget_names(runtime);
  if (resolver.is_none()) return;
  all_names().push_back(std::make_shared<Names>(Names{&runtime, resolver.inc_ref().ptr(), {}}));
}

void forget_strangers(const Runtime& runtime) {
  for (const auto& names : all_names()) {
    if (names->runtime != &runtime) continue;
    for (auto one = names->ids.begin(); one != names->ids.end();) {
      one = one->second < 0 ? names->ids.erase(one) : std::next(one);
    }
  }
}

PyMethodDef hooks[] = {
    {"enter_module", method<enter_module>(), METH_FASTCALL,
     "Global forward pre-hook: this thread is inside the module."},
    {"leave_module", method<leave_module>(), METH_FASTCALL, "Global forward hook: this thread has left the module."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void bind_module_hooks(py::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), hooks) != 0) throw py::error_already_set();
  static_cast<py::class_<Runtime, std::unique_ptr<Runtime, py::nodelete>>>(m.attr("Runtime"))
      .def(
          "set_module_resolver", &set_module_resolver,
          "Set the function that names a module when it is first entered: resolver(module) -> id, below 0 for one that "
          "is none of the session's. None: no names.")
      .def("forget_strangers", &forget_strangers, "Ask again about modules that were none of the session's.");
  m.def(
      "forget_module",
      [](uintptr_t module) {
        for (const auto& names : all_names()) names->ids.erase(reinterpret_cast<PyObject*>(module));
      },
      "The module with this id() is about to die.");
}

}  // namespace chameleon
