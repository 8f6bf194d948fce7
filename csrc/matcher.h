// Where in a known sequence the live run is. Tokens in, positions out; knows no torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sequence.h"

namespace chameleon {

// A cursor. Where the live ops part from the sequence, a few hypotheses of what has happened compete: the op is an
// extra one, some ops were left out, or the run has jumped to where this token or these last few ops are found. Each
// op that does not fit costs, and so does each jump, a backward one more. When one of them has matched long enough
// without a fault, the others are dropped.
class Matcher {
 public:
  struct Match {
    int32_t op;    // of the sequence, or -1
    bool settled;  // is there one hypothesis alone?
  };

  void reset(const Sequence* sequence, int32_t cursor = 0);

  Match match(uint32_t token) {
    recent_[seen_++ % recent_.size()] = token;
    if (count_ == 1 && best_.cursor < sequence_->size() && (*sequence_)[best_.cursor] == token) {
      ++best_.run;
      return {best_.cursor++, true};
    }
    return weigh(token);
  }

  int32_t cursor() const { return best_.cursor; }  // the op expected next
  bool settled() const { return count_ == 1 && best_.run > 0; }

 private:
  struct Hypothesis {
    float cost;
    int32_t cursor;
    int32_t run;  // clean matches up to now
    int32_t op;   // that the newest live op is, or -1
    bool jumped;  // it began with a token or a few that are found elsewhere, and not next to the cursor
  };
  static constexpr size_t kMost = 8;
  static constexpr size_t kMostIdle = 3, kMostNear = 4;  // of them
  static constexpr int32_t kNear = 48;                   // ops that may be left out without a better reason
  static constexpr int32_t kCleanRun = 6;

  Match weigh(uint32_t token);
  void add(Hypothesis hypothesis);
  void prune();

  const Sequence* sequence_ = nullptr;
  size_t count_ = 1;
  Hypothesis best_{};                           // hypotheses_[0]
  std::array<Hypothesis, kMost> hypotheses_{};  // cheapest first, while there are several
  std::array<Hypothesis, 2 * kMost + 3> next_{};
  size_t next_count_ = 0;
  std::array<uint32_t, 8> recent_{};  // a ring of the last tokens
  size_t seen_ = 0;
};

}  // namespace chameleon
