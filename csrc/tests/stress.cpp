// Threads that make, use, evict, share and drop tensors under a capacity far too small for them, while it changes and
// sessions open and close. Runs without Python, so that it can be built with a sanitizer: see `make sanitize`.
//
//   stress [seconds] [threads]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "faults.h"
#include "runtime.h"

using chameleon::Options;
using chameleon::Runtime;

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kCapacityBytes = 3 * kMiB;
constexpr size_t kKept = 24;

std::atomic<bool> stop{false};
std::atomic<int64_t> checked{0};
std::atomic<int64_t> wrong{0};
std::atomic<int64_t> denied{0};

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

void one_thing(std::minstd_rand& random, std::vector<Known>& mine) {
  Runtime& runtime = Runtime::instance();
  const auto pick = [&]() -> Known& { return mine[random() % mine.size()]; };
  if (mine.empty() || (mine.size() < kKept && random() % 2 == 0)) {
    const auto n = static_cast<int64_t>(1) << (8 + random() % 9);
    const auto value = static_cast<double>(random() % 1000);
    mine.push_back({at::full({n}, value, at::kFloat), value});
    return;
  }
  switch (random() % 15) {
    case 0:
      mine.erase(mine.begin() + static_cast<int64_t>(random() % mine.size()));
      break;
    case 1: {
      Known& known = pick();
      known.tensor.add_(1);
      known.value += 1;
      break;
    }
    case 2: {
      const Known& known = pick();
      if (known.tensor.numel() < 64) break;
      mine.push_back({known.tensor.view({-1, 2}).select(1, 0).clone(), known.value});
      break;
    }
    case 3:
      runtime.evict(storage_of(pick().tensor));
      break;
    case 4:
      runtime.restore(storage_of(pick().tensor));
      break;
    case 5: {
      const Known& known = pick();
      Known copy{known.tensor.clone(), known.value};
      std::lock_guard<std::mutex> lock(shared_mutex);
      shared.push_back(std::move(copy));
      if (shared.size() > kKept) shared.pop_front();
      break;
    }
    case 6: {
      Known theirs;
      {
        std::lock_guard<std::mutex> lock(shared_mutex);
        if (!shared.empty()) {
          theirs = std::move(shared.front());
          shared.pop_front();
        }
      }
      if (theirs.tensor.defined()) check(theirs);
      break;
    }
    case 7:
      if (random() % 8 == 0) check_raw(pick());
      break;
    case 8: {
      c10::StorageImpl* storage = storage_of(pick().tensor);
      if (runtime.hold(storage)) runtime.let_go(storage);
      break;
    }
    case 9:
      runtime.counters();
      runtime.residency(storage_of(pick().tensor));
      break;
    case 10: {
      const Known& known = pick();
      mine.push_back({known.tensor.add(1), known.value + 1});
      break;
    }
    case 11:
    case 12:
      runtime.drop(storage_of(pick().tensor));  // made again by whoever reads it next
      break;
    default:
      check(pick());
  }
  if (mine.size() > kKept) mine.erase(mine.begin());
}

void work(unsigned seed) {
  c10::NoGradGuard no_grad;
  std::minstd_rand random(seed);
  std::vector<Known> mine;
  while (!stop) {
    try {
      one_thing(random, mine);
    } catch (const c10::Error&) {  // out of memory: the others' tensors are in use just now
      ++denied;
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
  Runtime& runtime = Runtime::instance();
  runtime.open(options);
  runtime.keep_producers(true);
}

// What the session's own thread does meanwhile.
void manage(std::minstd_rand& random) {
  Runtime& runtime = Runtime::instance();
  std::this_thread::sleep_for(std::chrono::milliseconds(random() % 8));
  switch (random() % 8) {
    case 0:
      runtime.close();
      open(options());
      break;
    case 1:
      runtime.set_capacity(kCapacityBytes + random() % (2 * kMiB));
      break;
    case 2: {
      const double bytes_per_s = random() % 2 ? 0 : 2e8;
      runtime.set_link(bytes_per_s, bytes_per_s);
      break;
    }
    case 3:
      chameleon::faults().refused_blocks = random() % 4 == 0 ? 20 : 0;
      break;
    case 4:
      runtime.logs();
      runtime.take_failure();
      break;
    default:
      runtime.end_step();
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int seconds = count > 1 ? std::atoi(arguments[1]) : 10;
  const int threads = count > 2 ? std::atoi(arguments[2]) : 4;
  at::set_num_threads(1);
  Runtime& runtime = Runtime::instance();
  constexpr uint64_t kEveryDtype = ~uint64_t{0};
  runtime.allow_replays({{"aten::add", kEveryDtype}, {"aten::clone", kEveryDtype}, {"aten::full", kEveryDtype}});
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
  std::printf("%lld checks by %d threads, %lld denied for lack of room, %lld wrong, %zu bytes left\n",
              static_cast<long long>(checked), threads, static_cast<long long>(denied), static_cast<long long>(wrong),
              left.live_bytes + left.host_used_bytes);
  return wrong == 0 && left.live_bytes + left.host_used_bytes == 0 ? 0 : 1;
}
