#include "matcher.h"

#include <algorithm>
#include <cmath>

namespace chameleon {

namespace {

// What a fault costs, in ops that do not fit. The figures are those of the prototype that was measured on mutated
// traces; what matters is their order: an extra op, a few left out, a jump with a reason, a jump back.
constexpr float kExtra = 1.0f;
constexpr float kLeftOut = 0.85f, kLeftOutEach = 0.04f;
constexpr float kUnique = 1.2f, kUniqueDistance = 0.15f, kUniqueBack = 1.0f;
constexpr float kGramAhead = 1.5f, kGramBack = 4.0f, kGramDistance = 0.3f;
constexpr int32_t kGramBackLeast = 8;
constexpr float kForgiven = 0.25f;  // by each match
constexpr float kHopeless = 8.0f;   // dearer than the best by this

float distance(int32_t a, int32_t b) { return std::log2(1.0f + static_cast<float>(std::abs(a - b))); }

}  // namespace

void Matcher::reset(const Sequence* sequence, int32_t cursor) {
  sequence_ = sequence;
  count_ = 1;
  best_ = {0, cursor, 0, -1, false};
  seen_ = 0;
}

void Matcher::add(Hypothesis hypothesis) {
  for (size_t i = 0; i < next_count_; ++i) {
    if (next_[i].cursor != hypothesis.cursor) continue;
    if (hypothesis.cost < next_[i].cost) next_[i] = hypothesis;
    return;
  }
  next_[next_count_++] = hypothesis;
}

Matcher::Match Matcher::weigh(uint32_t token) {
  if (count_ == 1) hypotheses_[0] = best_;
  const Sequence& sequence = *sequence_;
  const auto same = sequence.with_token(token);
  const Hypothesis best = hypotheses_[0];
  next_count_ = 0;
  for (size_t i = 0; i < count_; ++i) {
    const auto& [cost, cursor, run, op, jumped] = hypotheses_[i];
    if (cursor < sequence.size() && sequence[cursor] == token) {
      add({std::max(0.0f, cost - kForgiven), cursor + 1, run + 1, cursor, jumped});
      continue;
    }
    add({cost + kExtra, cursor, 0, -1, jumped});
    const auto next = std::lower_bound(same.begin(), same.end(), cursor);
    if (next != same.end() && *next - cursor <= kNear) {
      add({cost + kLeftOut + kLeftOutEach * static_cast<float>(*next - cursor), *next + 1, 1, *next, false});
    }
  }
  if (same.size() == 1 && same[0] != best.cursor) {
    const int32_t op = same[0];
    const float back = op < best.cursor ? kUniqueBack : 0.0f;
    add({best.cost + kUnique + kUniqueDistance * distance(op, best.cursor) + back, op + 1, 1, op, true});
  }
  constexpr auto kGram = static_cast<int32_t>(Sequence::kGram);
  if (best.run < kGram && seen_ >= Sequence::kGram) {
    std::array<uint32_t, Sequence::kGram> last;
    for (size_t i = 0; i < last.size(); ++i) last[i] = recent_[(seen_ - last.size() + i) % recent_.size()];
    const auto ends = sequence.with_gram(last.data());
    const auto ahead = std::lower_bound(ends.begin(), ends.end(), best.cursor);
    if (ahead != ends.end()) {
      add({best.cost + kGramAhead + kGramDistance * distance(*ahead, best.cursor), *ahead + 1, kGram, *ahead, true});
    }
    if (ahead != ends.begin() && best.cursor - *(ahead - 1) > kGramBackLeast) {
      const int32_t op = *(ahead - 1);
      add({best.cost + kGramBack + kGramDistance * distance(op, best.cursor), op + 1, 1, op, true});
    }
  }
  prune();
  if (hypotheses_[0].run >= kCleanRun) count_ = 1;
  best_ = hypotheses_[0];
  return {best_.op, count_ == 1 && best_.op >= 0};
}

// The cheapest go on, but those that wait where they are leave room for those that this op fits, and those that went on
// nearby (where ops are much alike, each of them opens several) for those that have jumped: or a beam full of equals
// would let none in that finds the run again far away.
void Matcher::prune() {
  std::sort(next_.begin(), next_.begin() + next_count_, [](const Hypothesis& a, const Hypothesis& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.cursor < b.cursor;
  });
  const float least = next_[0].cost;
  count_ = 0;
  size_t idle = 0, near = 0;
  for (size_t i = 0; i < next_count_ && count_ < kMost && next_[i].cost - least < kHopeless; ++i) {
    if (next_[i].op < 0 ? idle++ >= kMostIdle : !next_[i].jumped && near++ >= kMostNear) continue;
    hypotheses_[count_] = next_[i];
    hypotheses_[count_++].cost -= least;
  }
}

}  // namespace chameleon
