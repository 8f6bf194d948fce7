#include "matcher.h"

#include <algorithm>

namespace chameleon {

void Matcher::reset(const Program* program) {
  program_ = program;
  begin_step();
}

void Matcher::begin_step() {
  cursor_ = 0;
  parted_ = 0;
}

int32_t Matcher::resync(uint32_t token) {
  std::copy(recent_.begin() + 1, recent_.end(), recent_.begin());
  recent_.back() = token;
  ++parted_;
  // A few ops more or less are found again nearby, by fewer of them.
  if (parted_ >= kNearGram) {
    const int32_t last = std::min(program_->ops(), cursor_ + kNear);
    for (int32_t end = cursor_ + static_cast<int32_t>(kNearGram); end <= last; ++end) {
      if (std::equal(recent_.end() - kNearGram, recent_.end(), program_->tokens.begin() + end - kNearGram)) {
        parted_ = 0;
        cursor_ = end;
        return end - 1;
      }
    }
  }
  if (parted_ < recent_.size()) return -1;
  const int32_t found =
      program_->find_gram(Program::gram_key(recent_.data()), cursor_ + static_cast<int32_t>(recent_.size()) - 1);
  if (found < 0) return -1;
  parted_ = 0;
  cursor_ = found + 1;
  return found;
}

}  // namespace chameleon
