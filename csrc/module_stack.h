// Which module each thread is in, and which module an autograd node's forward op was in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
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

// Autograd numbers the nodes of a thread's forward ops; a backward op carries its node's number. Nodes of the newest
// steps are known: graphs seldom live longer.
class ForwardModules {
 public:
  void record(uint64_t thread, int64_t sequence_nr, int32_t module) {
    auto& list = by_thread_[thread];
    if (!list.empty() && list.back().sequence_nr == sequence_nr) {
      list.back() = {sequence_nr, module, step_};  // the op before made no node, so the number was not its own
      return;
    }
    if (!list.empty() && list.back().sequence_nr > sequence_nr) list.clear();
    list.push_back({sequence_nr, module, step_});
    if (list.size() > kKept) list.erase(list.begin(), list.begin() + kKept / 2);
  }
  void end_step();

  int32_t find(uint64_t thread, int64_t sequence_nr) const;
  size_t size() const;

 private:
  struct Node {
    int64_t sequence_nr;
    int32_t module;
    int32_t step;
  };
  static constexpr size_t kKept = 1 << 20;
  static constexpr int32_t kSteps = 16;

  std::unordered_map<uint64_t, std::vector<Node>> by_thread_;
  int32_t step_ = 0;
};

}  // namespace chameleon
