#include "matcher.h"

#include <algorithm>

namespace chameleon {

void Matcher::reset(const Program* program) {
  program_ = program;
  begin_step();
}

void Matcher::begin_step() {
  cursor_ = 0;
  recent_.clear();
}

int32_t Matcher::match(uint32_t token) {
  if (cursor_ < program_->ops() && program_->tokens[cursor_] == token) {
    recent_.clear();
    return cursor_++;
  }
  recent_.push_back(token);
  if (recent_.size() > kConfirm) recent_.pop_front();
  if (recent_.size() < kConfirm) return -1;
  const int32_t found = resync();
  if (found < 0) return -1;
  recent_.clear();
  cursor_ = found + 1;
  return found;
}

// The nearest place ahead whose last kConfirm ops are the live ones.
int32_t Matcher::resync() const {
  const int32_t last = std::min(program_->ops(), cursor_ + kReach) - 1;
  for (int32_t end = cursor_ + static_cast<int32_t>(kConfirm) - 1; end <= last; ++end) {
    if (std::equal(recent_.rbegin(), recent_.rend(),
                   std::make_reverse_iterator(program_->tokens.begin() + end + 1))) {
      return end;
    }
  }
  return -1;
}

}  // namespace chameleon
