// What is known about an operator from its name and schema, looked up once and then by pointer.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace c10 {
class OperatorHandle;
struct FunctionSchema;
}  // namespace c10

namespace chameleon {

enum class OpKind : uint8_t {
  Op,            // touches data
  View,          // touches metadata only: no use, not recorded
  BackwardNode,  // the engine evaluates an autograd node: ops inside belong to backward
  SeenThrough,   // made of other ops: those are the step's
  Ignored,       // custom autograd Functions and other frames that only enclose ops
};

struct OpInfo {
  std::string name;
  OpKind kind = OpKind::Ignored;
  bool reads_inputs = true;         // false for zeros_like and the like
  bool raw_written_output = false;  // empty and the like: Python bindings write the result after the op has ended
  bool writes_all = false;          // inputs may be written without the schema saying so
  bool leaf = false;                // has kernels of its own: it is not made of other ops above autograd
  bool opaque = false;              // a kernel may touch memory behind the dispatcher: leaf ops and custom ones
  bool functional = false;          // by its schema: writes nothing, and its results are no views
  bool in_place = false;            // by its schema: writes its first argument, and nothing else, and returns it
  bool overwrites = false;          // in place, and does not read what it writes
  bool replaces = false;            // zero_, fill_ or copy_: see Note [Overwriting]
  bool seeded = false;              // draws random numbers
  bool list_op = false;             // the same for each element of its lists: may run in parts
  bool sets = false;                // gives its first argument another storage
  bool sets_hook = false;           // on its inputs' storages, where there must be none of ours then: lazy clones
  bool launches = false;            // a collective, which goes on with its tensors when the op has ended: c10d ops
  bool waits = false;               // for one
  bool shows_no_end = false;        // of a collective, whichever of its tensors it has: those ops, and a few more
  uint64_t written_arguments = 0;   // bit per argument, from the schema's alias annotations
  uint64_t out_arguments = 0;       // the same, of those that are written without being read
  uint64_t received_arguments = 0;  // the same, of those that a collective writes on every rank
  int32_t generator_argument = -1;
  int32_t held_argument = -1;                   // of an op that is seen through: it keeps a pointer to it all along
  int32_t dropout_argument = -1;                // the probability; at 0 nothing random is left
  const c10::OperatorHandle* handle = nullptr;  // null where the dispatcher does not know it
  bool repeatable = false;                      // by its schema: it can run again with the same arguments
  int32_t name_number = -1;                     // name_number(name): the same for all overloads
  int32_t id = -1;                              // index into op_names()
  uint32_t hash = 0;                            // of the name

  static const OpInfo& ignored();
  static const OpInfo& add_in_place();  // aten::add_

  bool reads(size_t argument) const { return argument >= 64 || (out_arguments >> argument & 1) == 0; }
  bool receives(size_t argument) const { return argument < 64 && (received_arguments >> argument & 1) != 0; }
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

// A small number that stands for the name of an op, whether or not it has run yet.
int32_t name_number(const std::string& name);

// Of a region, see regions.h: any name will do, and it lives on. Ops of one name are one op.
const c10::FunctionSchema& schema_of_region(const std::string& name);

// Of ops that are made of others alone: those whose insides are the step's, by name; nullopt: the list of op_info.cpp.
// Not while ops run in a session.
void see_through(std::optional<std::unordered_set<std::string>> names);
std::vector<std::string> names_seen_through();

// Around a fork, so that the child does not inherit a lock that another thread held.
void lock_op_registry();
void unlock_op_registry();

// The names of all ops seen by the process; OpInfo::id is an index into it.
std::vector<std::string> op_names();

}  // namespace chameleon
