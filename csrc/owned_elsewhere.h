// What a shared_ptr owns on both sides of the bindings.
#pragma once

namespace chameleon {

// Where pybind11 gets no memory to note an object that it was given, it deletes it, whoever owns it: it has made no
// holder yet (class_::dealloc_impl; https://github.com/pybind/pybind11/issues/471). So `delete` does nothing:
// make_shared, where objects come from, asks no class for memory.
struct OwnedElsewhere {
  static void operator delete(void*) noexcept {}
};

}  // namespace chameleon
