// A policy made ready to run: the op sequence it was made for, how to recognize its storages, and what to do when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "owned_elsewhere.h"
#include "sequence.h"

namespace chameleon {

enum class ActionKind : uint8_t {
  Free,     // before the op starts: wait for the copy out, then give the block back
  SwapIn,   // before the op starts: take a block and begin the copy in
  SwapOut,  // after the op ends: begin the copy out
  Drop,     // after the op ends: give the block back; the bytes can be made again
  Replay,   // before the op starts, after Free and SwapIn: make them again
  Release,  // after the op ends: a storage that has died is retained no longer
};

struct Action {
  int32_t op;
  ActionKind kind;
  int32_t storage;  // row of Program::storages
};

struct PlanStorage {
  int64_t uid;  // of a storage that lives across steps; -1 for one that is made in the step
  int32_t birth_op;
  int32_t birth_ordinal;
  int64_t bytes;
  uint32_t uses_begin;  // into Program::uses
  uint32_t uses_end;
  uint8_t category;  // what the storage turned out to be in the step the program was made from
  int32_t label;
  bool evict_last;     // the user wants it left alone: eviction takes it where nothing else is left
  int64_t host_place;  // of its copy in the host pool; -1: anywhere
  bool host_kept;      // does the copy stay when the storage comes back, for the next time that it leaves?
};

class Program : public OwnedElsewhere {
 public:
  Program() = default;
  Program(std::vector<uint32_t> tokens, std::vector<PlanStorage> storages, std::vector<int32_t> uses,
          std::vector<Action> actions);

  int32_t ops() const { return sequence.size(); }
  bool drops() const { return drops_; }  // is a drop among its actions?

  int32_t born_at(int32_t op, int32_t ordinal) const;  // row of storages, or -1
  int32_t with_uid(int64_t uid) const;                 // row of storages, or -1
  int32_t retained_until(int32_t storage) const;       // op of its Release, or -1: its bytes end with its tensors

  // Ops from `op` to the next use after it, over the step's end too; a large number if there is none.
  int64_t next_use_distance(int32_t storage, int32_t op) const;

  const Action* actions_begin(int32_t op) const { return actions.data() + offsets_[op]; }
  const Action* actions_end(int32_t op) const { return actions.data() + offsets_[op + 1]; }

  Sequence sequence;
  std::vector<PlanStorage> storages;
  std::vector<int32_t> uses;    // ops, ascending within a storage
  std::vector<Action> actions;  // ascending by op, then in the order in which they fire

 private:
  std::vector<uint32_t> offsets_;
  std::unordered_map<uint64_t, int32_t> by_birth_;
  std::unordered_map<int64_t, int32_t> by_uid_;
  std::unordered_map<int32_t, int32_t> retained_until_;
  bool drops_ = false;
};

}  // namespace chameleon
