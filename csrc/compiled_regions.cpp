#include "compiled_regions.h"

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <functional>
#include <memory>
#include <utility>

namespace chameleon::compiled_regions {

namespace {

const c10::FunctionSchema& schema() {
  static const auto* made = new c10::FunctionSchema(
      torch::jit::parseSchema("chameleon::compiled_region(Tensor[] read, Tensor(a!)[] written) -> ()"));
  return *made;
}

std::vector<std::unique_ptr<at::RecordFunction>>& regions() {
  static thread_local std::vector<std::unique_ptr<at::RecordFunction>> entered;
  return entered;
}

}  // namespace

void enter(const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written) {
  auto region = std::make_unique<at::RecordFunction>(at::RecordScope::FUNCTION);
  const c10::IValue arguments[] = {read, written};
  region->before(std::cref(schema()), c10::ArrayRef<const c10::IValue>(arguments, 2));
  regions().push_back(std::move(region));
}

void leave(const std::vector<at::Tensor>& results) {
  TORCH_CHECK(!regions().empty(), "Chameleon Lab: this thread is in no compiled region");
  const std::unique_ptr<at::RecordFunction> region = std::move(regions().back());
  regions().pop_back();
  if (region->needsOutputs()) region->setOutputs(std::vector<c10::IValue>{c10::IValue(results)});
  region->end();
}

bool inside() { return !regions().empty(); }

}  // namespace chameleon::compiled_regions
