#include "module_stack.h"

#include <algorithm>

namespace chameleon {

void ForwardModules::end_step() {
  const int32_t oldest = ++step_ - kSteps;
  for (auto& [thread, list] : by_thread_) {
    const auto kept = std::find_if(list.begin(), list.end(), [&](const Node& node) { return node.step > oldest; });
    list.erase(list.begin(), kept);
  }
  std::erase_if(by_thread_, [](const auto& one) { return one.second.empty(); });  // of a thread that is gone, perhaps
}

// A composite op is recorded with the number of its first node, so the last number at or below is the one.
int32_t ForwardModules::find(uint64_t thread, int64_t sequence_nr) const {
  auto list = by_thread_.find(thread);
  if (list == by_thread_.end()) return -1;
  auto next = std::upper_bound(list->second.begin(), list->second.end(), sequence_nr,
                               [](int64_t nr, const Node& node) { return nr < node.sequence_nr; });
  return next == list->second.begin() ? -1 : std::prev(next)->module;
}

size_t ForwardModules::size() const {
  size_t nodes = 0;
  for (const auto& [thread, list] : by_thread_) nodes += list.size();
  return nodes;
}

}  // namespace chameleon
