#include "module_stack.h"

#include <algorithm>

namespace chameleon {

// A composite op is recorded with the number of its first node, so the last number at or below is the one.
int32_t ForwardModules::find(uint64_t thread, int64_t sequence_nr) const {
  auto list = by_thread_.find(thread);
  if (list == by_thread_.end()) return -1;
  auto next = std::upper_bound(list->second.begin(), list->second.end(), sequence_nr,
                               [](int64_t nr, const auto& entry) { return nr < entry.first; });
  return next == list->second.begin() ? -1 : std::prev(next)->second;
}

}  // namespace chameleon
