// What is known about an operator from its name and schema, looked up once and then by pointer.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <string>
#include <vector>

namespace chameleon {

enum class OpKind : uint8_t {
  Op,            // touches data
  View,          // touches metadata only: no use, not recorded
  BackwardNode,  // the engine evaluates an autograd node: ops inside belong to backward
  Ignored,       // custom autograd Functions and other frames that only enclose ops
};

struct OpInfo {
  std::string name;
  OpKind kind = OpKind::Ignored;
  bool reads_inputs = true;         // false for zeros_like and the like
  bool raw_written_output = false;  // empty and the like: Python bindings write the result after the op has ended
  bool writes_all = false;          // inputs may be written without the schema saying so
  bool leaf = false;                // has kernels of its own: it is not made of other ops above autograd
  uint64_t written_arguments = 0;   // bit per argument, from the schema's alias annotations
  uint64_t out_arguments = 0;       // the same, of those that are written without being read
  int32_t id = -1;                  // index into op_names()
  uint32_t hash = 0;                // of the name

  static const OpInfo& ignored();
  static const OpInfo& add_in_place();  // aten::add_

  bool reads(size_t argument) const { return argument >= 64 || (out_arguments >> argument & 1) == 0; }
  bool writes(size_t argument) const {
    return writes_all || (argument < 64 ? (written_arguments >> argument & 1) != 0 : true);
  }
};

// Not thread safe: the caller holds the core's lock, or uses its own table (one per thread).
class OpTable {
 public:
  const OpInfo& of(const at::RecordFunction& function);

 private:
  ska::flat_hash_map<const void*, OpInfo*> by_pointer_;
};

// Around a fork, so that the child does not inherit a lock that another thread held.
void lock_op_registry();
void unlock_op_registry();

// The names of all ops seen by the process; OpInfo::id is an index into it.
std::vector<std::string> op_names();

}  // namespace chameleon
