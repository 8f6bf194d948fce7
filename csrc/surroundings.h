// The settings beside its inputs that an op's numbers may depend on: taken when it runs, and put back while it runs
// again.
//
// Note [Denormals]
// Whether denormals are flushed to zero is a thread's own setting. The workers that share an op with it take it over
// when they are made, and keep it when the thread changes it: an op's numbers may depend on when its workers were made.
// From the first op on that runs on several threads while one flushes, what runs on several is not replayed any more.
// What is gone by then was made by workers that do not flush: those of the thread that replays it are set so meanwhile.
#pragma once

#include <ATen/Context.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace chameleon {

struct Determinism {
  bool demanded = false;
  bool warns_only = false;
  bool operator==(const Determinism&) const = default;
};

// What an object was compared with last, by its number, and whether they were the same. No copy has it.
class Verdict {
 public:
  Verdict() = default;
  Verdict(const Verdict&) {}
  Verdict& operator=(const Verdict&) { return *this; }
  bool operator==(const Verdict&) const { return true; }

  std::optional<bool> of(uint64_t number) const {
    const uint64_t found = found_.load(std::memory_order_relaxed);
    return found >> 1 == number ? std::optional(bool(found & 1)) : std::nullopt;
  }
  void note(uint64_t number, bool same) const { found_.store(number << 1 | same, std::memory_order_relaxed); }

 private:
  mutable std::atomic<uint64_t> found_{0};
};

struct Surroundings {
  int32_t threads = 1;  // of an op of the host
  c10::ScalarType default_dtype = c10::ScalarType::Float;
  uint32_t float_control = 0;  // of the processor: are denormals flushed to zero?
  uint64_t autocast = 0;       // autocast keys that are active, as the raw bits of a key set
  c10::ScalarType autocast_dtype = c10::ScalarType::Undefined;  // of the op's device, where autocast is active there
  c10::DeviceType autocast_device = c10::DeviceType::CPU;
  Determinism deterministic;
  bool mkldnn = true;
  bool mkldnn_deterministic = false;
  bool nnpack = true;
  bool cudnn = true;
  bool cudnn_benchmark = false;
  bool cudnn_deterministic = false;
  int32_t cudnn_depthwise = 0;                    // kernel of depthwise convolutions
  at::Float32Precision precision[4] = {};         // what matrix products and convolutions get, of CUDA and oneDNN
  at::CuBLASReductionOption half_reduction = {};  // of sums in cuBLAS
  at::CuBLASReductionOption bfloat16_reduction = {};
  bool half_accumulation = false;
  int32_t cublaslt_groups = 0;    // grouped matrix products by cuBLASLt
  bool flash_3 = false;           // does FlashAttention 3 compute what 2 does else?
  int32_t flash_4 = 0;            // or 4?
  int32_t native_aot = 0;         // may ops (topk) take kernels that torch brings compiled ahead?
  int32_t native_aot_masked = 0;  // without those that no condition guards
  bool half_reduction_on_host = false;
  std::optional<int32_t> multiprocessors_left;      // by matrix products of cuBLAS
  at::BlasBackend blas = at::BlasBackend::Default;  // of ops on a GPU
  Verdict checked;                                  // of CheckedSettings::hold_for()

  bool operator==(const Surroundings&) const = default;

  // The bytes of every setting but autocast's: the same where an op outside of autocast gets the same kernels.
  std::string key() const;

  // Those of this thread, now; the same object as the last time where nothing has changed.
  static std::shared_ptr<const Surroundings> now(c10::DeviceType device);

  // Does an op outside of autocast get the same kernels under both?
  bool same_kernels(const Surroundings& other) const;

  // See Note [Denormals]: at the start of every op, and whether there has been such a one.
  static void watch_denormals();
  static bool workers_may_flush();

  // Autocast keys that are active on this thread.
  static c10::DispatchKeySet active_autocast();
};

// The settings of the thread that makes it: under them it was found out which ops repeat themselves to the bit. They
// are those of one device, whose runtime keeps them.
class CheckedSettings {
 public:
  explicit CheckedSettings(c10::DeviceType device);

  // Are these the same? For what does not change any more, such as now()'s, which remembers the answer.
  bool hold_for(const Surroundings& settings) const;
  bool operator==(const CheckedSettings& other) const { return settings_.same_kernels(other.settings_); }

 private:
  Surroundings settings_;
  uint64_t number_;  // of all that were made
};

// While this lives, the thread runs ops as one did before: below autograd and modes, under these settings. Only what
// differs is set. Most of it belongs to the process: ops of other threads see it for that while.
class Reenacted {
 public:
  explicit Reenacted(const Surroundings& then);
  ~Reenacted();
  Reenacted(const Reenacted&) = delete;
  Reenacted& operator=(const Reenacted&) = delete;

 private:
  std::shared_ptr<const Surroundings> before_;
  Surroundings then_;
  at::Float32Precision own_precision_[4] = {};  // before: most entries have none, and inherit
  std::vector<uint32_t> workers_;               // their float_control before, this thread's first; empty if left alone
};

}  // namespace chameleon
