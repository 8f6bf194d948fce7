// What it takes to make storages again, and what dropping some of them together asks for: see
// chameleon_lab/planner/replay.py, whose words are used here.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace chameleon::planner {

// In the place of a value: what a storage held before the first that is known.
inline constexpr int64_t kAtFirst = -1;

// The V values of a step, in the order in which they are made.
struct Values {
  std::vector<int64_t> row;           // (V,) of the storage that holds each
  std::vector<int64_t> op;            // (V,) that makes it, ascending for each row
  std::vector<int64_t> inputs_begin;  // (V,) where its inputs begin in the next but one
  std::vector<int64_t> inputs_end;    // (V,) where they end; values may share a range, which is empty where no op fits
  std::vector<int64_t> input_row;     // of the storage that is read
  std::vector<int64_t> input_value;   // that it holds: kAtFirst, or less than the value that is made
  std::vector<bool> possible;         // (V,) may its op be replayed, and its storage dropped?
  std::vector<double> seconds;        // (V,) of its op
  std::vector<int64_t> beside_bytes;  // (V,) what its op makes beside it

  size_t size() const { return row.size(); }
};

// The S storages of a step.
struct Storages {
  std::vector<int64_t> death_op;     // (S,)
  std::vector<int64_t> block_bytes;  // (S,)

  size_t size() const { return death_op.size(); }
};

// The G gaps of a step, those of a storage next to each other and in program order.
struct StorageGaps {
  std::vector<int64_t> row;     // (G,) of the storage
  std::vector<int64_t> out_op;  // (G,) op that the gap begins with
  std::vector<int64_t> use_op;  // (G,) op that ends it, up to 2n
  std::vector<bool> returns;    // (G,)

  size_t size() const { return row.size(); }
};

struct Chain {
  std::vector<int64_t> made;    // values, in the order in which they are made; the storage's own is the last
  std::vector<int64_t> inputs;  // rows of the living storages that the ops read, beside what they make
  double seconds = 0;
  int64_t transient_bytes = 0;  // device memory that the ops take beside the storage itself, at most
};

// What dropping some gaps together asks for.
struct Resolved {
  std::vector<int64_t> gap;              // that are dropped, a storage before those that are made of it
  std::vector<int64_t> in_op;            // op before which each is replayed
  std::vector<double> seconds;           // (n,) of the replays before each op
  std::vector<int64_t> transient_bytes;  // (n,) that those take
  std::vector<int64_t> needed_gap;       // other gaps, ascending, and the op before which a replay reads their storage
  std::vector<int64_t> needed_op;
  std::vector<int64_t> stays;     // gaps of dead time, ascending, whose storage a replay still reads
  std::vector<int64_t> declined;  // asked for and not dropped, ascending
};

// Safe to use from several threads: what was found once is kept, behind a mutex.
class ReplayChains {
 public:
  // `longest`: ops in a row that one chain may take.
  ReplayChains(Values values, Storages storages, StorageGaps gaps, int64_t ops, int64_t longest);

  int64_t ops() const { return ops_; }
  const StorageGaps& gaps() const { return gaps_; }
  size_t storages() const { return storages_.size(); }

  struct Around {
    int64_t gap;
    int64_t op;  // as the gap counts
  };

  // What a storage holds right before an op.
  int64_t value_at(int64_t row, int64_t op) const;

  // The gap of a storage in which, or at whose end, an op lies.
  std::optional<Around> gap_around(int64_t row, int64_t op) const;

  // How to make what a storage holds before an op again; null if it cannot be done. It lives as long as this.
  const Chain* chain(int64_t row, int64_t op);

  // The gaps, ascending, around an op, of what a replay of a gap's storage reads there. Throws std::invalid_argument
  // for a gap that cannot be dropped.
  std::vector<int64_t> needs(int64_t gap, int64_t op);

  // `fixed`: (G,) gaps that others decide about. `useful`: (n + 1,) how many ops before each one are short of memory;
  // empty, or of gaps in `must`, (G,): away at any op will do. Throws std::invalid_argument for a gap that would be
  // dropped and cannot be.
  Resolved resolve(std::span<const int64_t> gaps, const std::vector<bool>& fixed, std::span<const int64_t> useful,
                   const std::vector<bool>& must);

 private:
  const Chain* chain_of(int64_t value, int64_t op);
  // The ops in a row that it takes to make a value; 0 if they would be more than `most`, or cannot be replayed.
  int64_t visit(int64_t value, int64_t op, int64_t most, Chain& into);
  void finish(Chain& chain) const;

  Values values_;
  Storages storages_;
  StorageGaps gaps_;
  int64_t ops_;
  int64_t longest_;
  std::vector<int64_t> changes_;                    // (V,) the value that each changes in place, or kAtFirst
  std::vector<int64_t> values_offset_, values_of_;  // of each storage, in program order
  std::vector<int64_t> gaps_begin_, gaps_end_;      // of each storage
  std::mutex mutex_;                                // of what follows
  std::unordered_map<int64_t, std::unique_ptr<const Chain>> chains_;
  std::vector<int64_t> level_;   // (V,) of the values of the chain in the making; 0 of all others
  std::vector<int64_t> reader_;  // (S,) the newest chain in the making that reads a storage
  int64_t making_ = 0;
};

}  // namespace chameleon::planner
