// The interpreter let go of for a while, by a thread that may not live to get it back.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace chameleon {

// A daemon thread that asks for the interpreter while the process ends is ended by Python (before 3.14) with
// pthread_exit, which unwinds the stack; in a destructor, as in pybind11's gil_scoped_release, that ends the process
// with SIGABRT. Such a thread waits here for the end instead, as Python 3.14's own threads do.
class Released {
 public:
  Released() : thread_(PyEval_SaveThread()) {}
  ~Released() { take(thread_); }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

  static void take(PyThreadState* thread) {
    try {
      PyEval_RestoreThread(thread);
    } catch (abi::__forced_unwind&) {
      while (true) pause();
    }
  }

 private:
  PyThreadState* thread_;
};

}  // namespace chameleon
