#include "module_hooks.h"

#include <c10/util/flat_hash_map.h>

#include "runtime.h"

namespace py = pybind11;

namespace chameleon {

namespace {

// Guarded by the GIL. Modules are borrowed: the resolver's finalizer calls forget_module before one dies.
ska::flat_hash_map<PyObject*, int32_t>& module_ids() {
  static auto* ids = new ska::flat_hash_map<PyObject*, int32_t>();
  return *ids;
}
PyObject* resolver = nullptr;  // Python: resolver(module) -> id

// Forward pre-hook: enter_module(module, args). Plain CPython calls: pybind11's argument handling would cost as much
// as all the rest of a small module's call.
PyObject* enter_module(PyObject*, PyObject* const* args, Py_ssize_t) {
  PyObject* module = args[0];
  auto found = module_ids().find(module);
  int32_t id;
  if (found != module_ids().end()) {
    id = found->second;
  } else {
    PyObject* result = resolver ? PyObject_CallOneArg(resolver, module) : PyLong_FromLong(-1);
    if (!result) return nullptr;
    id = static_cast<int32_t>(PyLong_AsLong(result));
    Py_DECREF(result);
    if (PyErr_Occurred()) return nullptr;
    module_ids()[module] = id;
  }
  Runtime::instance().enter_module(id);
  Py_RETURN_NONE;
}

// Forward hook: leave_module(module, args, output).
PyObject* leave_module(PyObject*, PyObject* const*, Py_ssize_t) {
  Runtime::instance().leave_module();
  Py_RETURN_NONE;
}

PyMethodDef hooks[] = {{"enter_module", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(enter_module)),
                        METH_FASTCALL, "Global forward pre-hook: this thread is inside the module."},
                       {"leave_module", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(leave_module)),
                        METH_FASTCALL, "Global forward hook: this thread has left the module."},
                       {nullptr, nullptr, 0, nullptr}};

}  // namespace

void bind_module_hooks(py::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), hooks) != 0) throw py::error_already_set();
  m.def(
      "set_module_resolver",
      [](py::object function) {
        module_ids().clear();
        Py_XDECREF(resolver);
        resolver = function.is_none() ? nullptr : function.release().ptr();
      },
      "Set the function that names a module when it is first entered: resolver(module) -> id. None: no names.");
  m.def(
      "forget_module", [](uintptr_t module) { module_ids().erase(reinterpret_cast<PyObject*>(module)); },
      "The module with this id() is about to die.");
}

}  // namespace chameleon
