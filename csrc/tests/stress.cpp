// Threads that make, use, evict, share and drop tensors under a capacity far too small for them, while it changes,
// plans come and go, and sessions open and close. Runs without Python, so that it can be built with a sanitizer: see
// `make sanitize`.
//
//   stress [seconds] [threads]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "faults.h"
#include "program.h"
#include "runtime.h"

using chameleon::Action;
using chameleon::ActionKind;
using chameleon::Cause;
using chameleon::Options;
using chameleon::PlanStorage;
using chameleon::Program;
using chameleon::Runtime;
using chameleon::StepLog;

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kCapacityBytes = 3 * kMiB;
constexpr size_t kKept = 24;

std::atomic<bool> stop{false};
std::atomic<int64_t> checked{0};
std::atomic<int64_t> wrong{0};
std::atomic<int64_t> denied{0};
int64_t planned_copies = 0;
int64_t planned_replays = 0;

// Every tensor holds one number, which goes with it: so any thread can check any tensor.
struct Known {
  at::Tensor tensor;
  double value;
};

// Tensors that die on another thread than the one that made them.
std::mutex shared_mutex;
std::deque<Known> shared;

c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

void check(const Known& known) {
  const int64_t n = known.tensor.numel();
  const double sum = known.tensor.sum(at::kDouble).item<double>();
  ++checked;
  if (sum == known.value * static_cast<double>(n)) return;
  ++wrong;
  std::fprintf(stderr, "wrong: %g instead of %g x %lld\n", sum, known.value, static_cast<long long>(n));
}

void check_raw(const Known& known) {  // its storage stays from here on
  const auto* data = static_cast<const float*>(known.tensor.mutable_data_ptr());
  ++checked;
  if (data[0] != known.value || data[known.tensor.numel() - 1] != known.value) ++wrong;
}

// A thread, and the tensors that it alone changes.
struct Worker {
  std::minstd_rand random;
  std::vector<Known> mine;

  Known& pick() { return mine[random() % mine.size()]; }
  int64_t size() { return int64_t{1} << (8 + random() % 9); }
};

void make_one(Worker& worker) {
  const int64_t n = worker.size();
  const auto value = static_cast<double>(worker.random() % 1000);
  worker.mine.push_back({at::full({n}, value, at::kFloat), value});
}

void forget_one(Worker& worker) {
  worker.mine.erase(worker.mine.begin() + static_cast<int64_t>(worker.random() % worker.mine.size()));
}

void add_in_place(Worker& worker) {
  Known& known = worker.pick();
  known.tensor.add_(1);
  known.value += 1;
}

void clone_a_view(Worker& worker) {
  const Known& known = worker.pick();
  if (known.tensor.numel() < 64) return;
  worker.mine.push_back({known.tensor.view({-1, 2}).select(1, 0).clone(), known.value});
}

void evict_one(Worker& worker) { Runtime::of(c10::DeviceType::CPU).evict(storage_of(worker.pick().tensor)); }

void restore_one(Worker& worker) { Runtime::of(c10::DeviceType::CPU).restore(storage_of(worker.pick().tensor)); }

void share_one(Worker& worker) {
  const Known& known = worker.pick();
  Known copy{known.tensor.clone(), known.value};
  std::lock_guard<std::mutex> lock(shared_mutex);
  shared.push_back(std::move(copy));
  if (shared.size() > kKept) shared.pop_front();
}

void check_a_shared_one(Worker&) {
  Known theirs;
  {
    std::lock_guard<std::mutex> lock(shared_mutex);
    if (!shared.empty()) {
      theirs = std::move(shared.front());
      shared.pop_front();
    }
  }
  if (theirs.tensor.defined()) check(theirs);
}

void check_at_its_address(Worker& worker) {
  if (worker.random() % 8 == 0) check_raw(worker.pick());
}

void hold_one(Worker& worker) {
  c10::StorageImpl* storage = storage_of(worker.pick().tensor);
  if (Runtime::of(c10::DeviceType::CPU).hold(storage)) Runtime::of(c10::DeviceType::CPU).let_go(storage);
}

void ask(Worker& worker) {
  Runtime::of(c10::DeviceType::CPU).counters();
  Runtime::of(c10::DeviceType::CPU).residency(storage_of(worker.pick().tensor));
}

void add_to_one(Worker& worker) {
  const Known& known = worker.pick();
  worker.mine.push_back({known.tensor.add(1), known.value + 1});
}

// It is made again by whoever reads it next.
void drop_one(Worker& worker) { Runtime::of(c10::DeviceType::CPU).drop(storage_of(worker.pick().tensor)); }

void change_in_place_twice(Worker& worker) {
  Known& known = worker.pick();
  known.tensor.mul_(2).sub_(known.value);
}

// From the generator that all threads share.
void draw_one(Worker& worker) {
  worker.mine.push_back({at::empty({worker.size()}, at::kFloat).bernoulli_(1.0).mul_(3), 3});
}

void check_one(Worker& worker) { check(worker.pick()); }

// What is listed more than once is done as much more often.
constexpr std::array kThings = {forget_one, add_in_place, clone_a_view,       evict_one, restore_one,
                                share_one,  hold_one,     check_a_shared_one, ask,       check_at_its_address,
                                add_to_one, drop_one,     drop_one,           draw_one,  change_in_place_twice,
                                check_one,  check_one,    check_one};

void one_thing(Worker& worker) {
  const bool few = worker.mine.size() < kKept;
  if (worker.mine.empty() || (few && worker.random() % 2 == 0)) return make_one(worker);
  kThings[worker.random() % kThings.size()](worker);
  if (worker.mine.size() > kKept) worker.mine.erase(worker.mine.begin());
}

void work(unsigned seed) {
  c10::NoGradGuard no_grad;
  Worker worker{std::minstd_rand(seed), {}};
  std::vector<Known>& mine = worker.mine;
  while (!stop) {
    try {
      one_thing(worker);
    } catch (const c10::OutOfMemoryError&) {  // the others' tensors are in use just now
      ++denied;
      mine.clear();
    } catch (const c10::Error& error) {  // the same, where an op found it out; or a replay that could not be
      // Not "cannot draw again": an op that began before the session, which nobody saw, may have drawn meanwhile.
      const bool lost = std::strstr(error.what(), "report this");
      ++(lost ? wrong : denied);
      if (lost) std::fprintf(stderr, "lost: %s\n", error.what_without_backtrace());
      mine.clear();
    }
  }
  for (const Known& known : mine) {
    try {
      check(known);
    } catch (const c10::Error&) {
      ++denied;
    }
  }
}

Options options() {
  Options options;
  options.capacity_bytes = kCapacityBytes;
  options.min_swap_bytes = 1 << 10;
  return options;
}

void open(const Options& options) {
  Runtime& runtime = Runtime::of(c10::DeviceType::CPU);
  runtime.open(options);
  runtime.keep_producers(true);
}

// A plan of a step that was: between two uses of a storage it is swapped, or dropped and made again, one or the other
// at random. The threads' next ops fit it in places.
std::shared_ptr<const Program> plan_of(const StepLog& log, std::minstd_rand& random) {
  std::vector<uint32_t> tokens;
  for (const auto& op : log.ops) tokens.push_back(op.token);
  std::vector<std::vector<int32_t>> uses_of(log.storages.size());
  for (const auto& use : log.uses) uses_of[use.storage].push_back(use.op);
  std::vector<PlanStorage> storages;
  std::vector<int32_t> uses;
  std::vector<Action> actions;
  const auto ops = static_cast<int32_t>(tokens.size());
  for (size_t row = 0; row < log.storages.size(); ++row) {
    const auto& storage = log.storages[row];
    std::vector<int32_t>& own = uses_of[row];
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    const auto begin = static_cast<uint32_t>(uses.size());
    uses.insert(uses.end(), own.begin(), own.end());
    storages.push_back({storage.birth_op < 0 ? storage.uid : -1, storage.birth_op, storage.birth_ordinal, storage.bytes,
                        begin, static_cast<uint32_t>(uses.size()), storage.category, -1, random() % 16 == 0, -1,
                        random() % 4 > 0});
    if (storage.birth_op >= 0) own.insert(own.begin(), storage.birth_op);
    const auto plan_row = static_cast<int32_t>(row);
    for (size_t i = 0; i + 1 < own.size(); ++i) {
      const int32_t from = own[i], to = own[i + 1];
      if (to - from < 2 || to >= ops) continue;
      if (random() % 2 == 0) {
        actions.push_back({from, ActionKind::Drop, plan_row});
        actions.push_back({to - 1, ActionKind::Replay, plan_row});
      } else {
        actions.push_back({from, ActionKind::SwapOut, plan_row});
        actions.push_back({from + 1, ActionKind::Free, plan_row});
        actions.push_back({to - 1, ActionKind::SwapIn, plan_row});
      }
    }
  }
  return std::make_shared<const Program>(std::move(tokens), std::move(storages), std::move(uses), std::move(actions));
}

void count_planned(const StepLog& log) {
  const auto planned = [](const auto& row) { return row.cause == static_cast<uint8_t>(Cause::Planned); };
  planned_copies += std::count_if(log.transfers.begin(), log.transfers.end(), planned);
  planned_replays += std::count_if(log.replays.begin(), log.replays.end(), planned);
}

// What the session's own thread does meanwhile.
void manage(std::minstd_rand& random) {
  Runtime& runtime = Runtime::of(c10::DeviceType::CPU);
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
  constexpr int64_t kPlans = 3;
  switch (random() % 16) {
    case 0:
    case 1: {
      runtime.close();
      Options next = options();
      if (random() % 2 == 0) next.host_capacity_bytes = kCapacityBytes / 4;
      open(next);
      break;
    }
    case 2:
      runtime.set_capacity(kCapacityBytes + random() % (2 * kMiB));
      break;
    case 3: {
      const double bytes_per_s = random() % 2 ? 0 : 2e8;
      runtime.set_link(bytes_per_s, bytes_per_s);
      chameleon::faults().handed_over = random() % 4 != 0;
      break;
    }
    case 4:
      chameleon::faults().refused_blocks = random() % 4 == 0 ? 20 : 0;
      break;
    case 5:
      runtime.logs();
      runtime.take_failure();
      break;
    case 6: {  // nothing is limited, and then it is
      runtime.close();
      Options unlimited = options();
      unlimited.capacity_bytes = SIZE_MAX;
      open(unlimited);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
      runtime.set_capacity(kCapacityBytes);
      break;
    }
    case 7:
    case 8:
    case 9: {  // a plan comes into force; sometimes without waiting for a step's end
      if (random() % 8 != 0) count_planned(*runtime.end_step());
      const auto logs = runtime.logs();
      if (logs.empty() || logs.back()->ops.empty()) break;
      const auto id = static_cast<int64_t>(random() % kPlans);
      runtime.add_program(id, plan_of(*logs.back(), random));
      runtime.use_program(id);
      break;
    }
    case 10:
      runtime.drop_program(static_cast<int64_t>(random() % kPlans));
      break;
    default:
      count_planned(*runtime.end_step());
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int seconds = count > 1 ? std::atoi(arguments[1]) : 10;
  const int threads = count > 2 ? std::atoi(arguments[2]) : 4;
  at::set_num_threads(1);
  Runtime& runtime = Runtime::of(c10::DeviceType::CPU);
  constexpr uint64_t kEveryDtype = ~uint64_t{0};
  std::unordered_map<std::string, uint64_t> replayed;
  for (const char* name : {"add", "add_", "bernoulli_", "clone", "full", "mul_", "sub_"}) {
    replayed.emplace(std::string("aten::") + name, kEveryDtype);
  }
  runtime.allow_replays(replayed);
  open(options());
  std::vector<std::thread> workers;
  for (int k = 0; k < threads; ++k) workers.emplace_back(work, 100 + k);
  std::minstd_rand random(7);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (std::chrono::steady_clock::now() < until) {
    try {
      manage(random);
    } catch (const c10::Error&) {  // what cannot move is more than the capacity
      ++denied;
      if (!runtime.is_open()) {
        shared_mutex.lock();
        shared.clear();
        shared_mutex.unlock();
        Options large = options();
        large.capacity_bytes *= 40;
        open(large);
      }
    }
  }
  stop = true;
  for (std::thread& worker : workers) worker.join();
  chameleon::faults().refused_blocks = 0;
  shared.clear();
  runtime.close();
  const auto left = runtime.counters();
  std::printf(
      "%lld checks by %d threads, %lld denied for lack of room, %lld planned copies, %lld planned replays, %lld wrong, "
      "%zu bytes left\n",
      static_cast<long long>(checked), threads, static_cast<long long>(denied), static_cast<long long>(planned_copies),
      static_cast<long long>(planned_replays), static_cast<long long>(wrong), left.live_bytes + left.host_used_bytes);
  const bool planned = planned_copies > 0 && planned_replays > 0;  // else the plans have fitted nowhere
  return planned && wrong == 0 && left.live_bytes + left.host_used_bytes == 0 ? 0 : 1;
}
