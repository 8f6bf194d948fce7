#include "regions.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <functional>
#include <memory>
#include <utility>

#include "op_info.h"

namespace chameleon::regions {

namespace {

std::vector<std::unique_ptr<at::RecordFunction>>& entered() {
  static thread_local std::vector<std::unique_ptr<at::RecordFunction>> regions;
  return regions;
}

}  // namespace

void enter(const std::string& name, const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written) {
  auto region = std::make_unique<at::RecordFunction>(at::RecordScope::FUNCTION);
  const c10::IValue arguments[] = {read, written};
  region->before(std::cref(schema_of_region(name)), c10::ArrayRef<const c10::IValue>(arguments, 2));
  entered().push_back(std::move(region));
}

void leave(const std::vector<at::Tensor>& results) {
  TORCH_CHECK(!entered().empty(), "Chameleon Lab: this thread is in no region");
  const std::unique_ptr<at::RecordFunction> region = std::move(entered().back());
  entered().pop_back();
  if (region->needsOutputs()) region->setOutputs(std::vector<c10::IValue>{c10::IValue(results)});
  region->end();
}

size_t depth() { return entered().size(); }

}  // namespace chameleon::regions
