#include "dlpack_loans.h"

#include <ATen/dlpack.h>

#include <memory>

#include "late_deaths.h"

namespace chameleon {

namespace {

// Stands before the exporter's own deleter, which finds its context again.
template <class Managed>
struct Ending {
  Loan loan;
  void* context;
  void (*deleter)(Managed*);

  static void run(Managed* managed) {
    if (late_deaths::put_off(&run_late, managed)) return;
    const std::unique_ptr<Ending> ending(static_cast<Ending*>(managed->manager_ctx));
    managed->manager_ctx = ending->context;
    managed->deleter = ending->deleter;
    ending->loan.end();  // first: the storage may go with the rest
    if (managed->deleter) managed->deleter(managed);
  }

  static void run_late(void* managed) { run(static_cast<Managed*>(managed)); }
};

template <class Managed>
bool end_with(PyObject* capsule, const char* name, const Loan& loan) {
  if (!PyCapsule_IsValid(capsule, name)) return false;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->manager_ctx = new Ending<Managed>{loan, managed->manager_ctx, managed->deleter};
  managed->deleter = &Ending<Managed>::run;
  return true;
}

}  // namespace

bool end_with_capsule(PyObject* capsule, const Loan& loan) {
  return end_with<DLManagedTensor>(capsule, "dltensor", loan) ||
         end_with<DLManagedTensorVersioned>(capsule, "dltensor_versioned", loan);
}

}  // namespace chameleon
