// Which module each thread is in, and which module an autograd node's forward op was in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace chameleon {

class ModuleStack {
 public:
  void enter(int32_t module) { stack_.push_back(module); }
  void leave() {
    if (!stack_.empty()) stack_.pop_back();
  }
  void clear() { stack_.clear(); }
  int32_t current() const { return stack_.empty() ? -1 : stack_.back(); }

 private:
  std::vector<int32_t> stack_;
};

// Autograd numbers the nodes of a thread's forward ops; a backward op carries its node's number.
class ForwardModules {
 public:
  void record(uint64_t thread, int64_t sequence_nr, int32_t module) {
    auto& list = by_thread_[thread];
    if (!list.empty() && list.back().first >= sequence_nr) {
      if (list.back().first == sequence_nr) return;  // a nested op, or one that makes no node
      list.clear();
    }
    list.emplace_back(sequence_nr, module);
    if (list.size() > kKept) list.erase(list.begin(), list.begin() + kKept / 2);
  }

  int32_t find(uint64_t thread, int64_t sequence_nr) const;

 private:
  static constexpr size_t kKept = 1 << 20;
  std::unordered_map<uint64_t, std::vector<std::pair<int64_t, int32_t>>> by_thread_;
};

}  // namespace chameleon
