// Ties the parts together for one device: the dispatcher's hook, the allocator's requests, the session's calls.
#pragma once

#include <ATen/record_function.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "clock.h"
#include "collectives.h"
#include "core_mutex.h"
#include "device/device.h"
#include "disk_target.h"
#include "executor.h"
#include "host_target.h"
#include "module_stack.h"
#include "op_info.h"
#include "recorder.h"
#include "replay.h"
#include "storage.h"
#include "swapper.h"

namespace chameleon {

// Smaller blocks are the allocator's own business, as they are in a GPU's caching allocator: never counted.
inline constexpr size_t kTrackedBytes = 512;
inline constexpr std::chrono::seconds kLongestUnseenOp(3);

struct Options {
  size_t capacity_bytes = SIZE_MAX;  // SIZE_MAX: no limit, nothing ever leaves
  size_t host_capacity_bytes = SIZE_MAX;
  DiskOptions disk;                 // where storages go that are away, instead of the host; no folder: nowhere else
  double link_out_bytes_per_s = 0;  // 0: as fast as the machine copies
  double link_in_bytes_per_s = 0;
  size_t min_swap_bytes = 16 << 10;
  size_t min_tracked_bytes = kTrackedBytes;
  size_t max_ops = size_t{1} << 20;  // of a step that are recorded
  bool splits_lists = false;         // list ops run in parts where the capacity asks for it
  bool stacks = false;               // record the Python stack of every op
  bool trusting = false;             // that nothing outside of ops writes unseen
  bool unbacked = false;             // follow meta tensors, which have no memory, instead of the device's
  size_t unbacked_block_bytes = 0;   // their blocks are multiples of this; 0: as large as the device's would be
};

class Runtime;

// Note [Loans]
// A numpy array or a DLPack capsule holds a raw pointer for as long as it lives. While it does, the storage stays where
// it is, as with a bare pointer; when the last one has gone, it may move again. Who asks for a bare address is not
// known to be done with it, ever: that is an escape. On a GPU the kernels of a capsule's holder may run on when it has
// let go, along streams of its own: there, the storage stays until the step ends, when the host waits for the device.
struct Loan {
  Runtime* owner;
  Storage* storage;
  int64_t uid;  // of the storage: records are reused, and never freed
  void end() const;
};

// Why memory could not be had, for the error that the session raises.
struct Failure {
  std::string op;
  size_t request_bytes = 0;
  size_t pinned_bytes = 0;     // of the ops that were running
  size_t unmovable_bytes = 0;  // of storages that can never leave
  size_t other_bytes = 0;      // under the capacity, and no storage's: libraries' work spaces
  size_t useless_bytes = 0;    // free under the capacity, in no piece that is large enough
  size_t capacity_bytes = 0;
  bool below_floor = false;  // else the host is full
  std::string needs;         // the error's first sentence
  std::string advice;        // the rest of it
  int64_t step = 0;
  int32_t ops = 0;    // of the step, up to this one
  int32_t since = 0;  // up to the one before it that failed: a loop may have begun anew there

  size_t needed_bytes() const { return request_bytes + pinned_bytes + unmovable_bytes + other_bytes + useless_bytes; }
  std::string message() const { return needs + " " + advice; }
};

struct Counters {
  MemoryInfo memory;
  size_t live_bytes = 0;
  size_t storages = 0;
  size_t escaped = 0;        // storages with a raw pointer outside
  size_t escaped_bytes = 0;  // of their blocks
  size_t dropped = 0;        // storages whose bytes are to be made again
  size_t ghosts = 0;         // that are kept for those
  int64_t producers = 0;     // calls of ops that are kept
  size_t forward_nodes = 0;  // of autograd, whose modules are known
  size_t host_used_bytes = 0;
  size_t host_reserved_bytes = 0;
  size_t host_peak_bytes = 0;
  HostMemory::Pinned host_pinned;
  int64_t host_placed = 0;     // buffers that lie where the plan has them
  int64_t host_misplaced = 0;  // and elsewhere: that place was taken, or there is none
  int64_t step = 0;
  int64_t ops_in_step = 0;
  Watch::Level recent;  // how well the plan is followed, over the newest few hundred ops
};

class Runtime {
 public:
  // One a device; never destroyed, since tensors may outlive everything else.
  static Runtime& of(c10::Device device);
  static bool any_open();
  // Whose storages those of this one's device are, whether this one is or not; null where no session has been.
  static Runtime* owning(const c10::StorageImpl* impl);

  // --- the session's calls
  void open(const Options& options);
  void close();
  bool is_open() const { return open_.load(std::memory_order_relaxed); }
  void set_capacity(size_t capacity_bytes);
  void set_link(double out_bytes_per_s, double in_bytes_per_s);
  std::pair<double, double> measure_link();  // bytes per second out and in
  size_t pooled_host_bytes();                // host memory that the device keeps for copies
  size_t pageable_host_bytes();              // host memory whose copies stop the host
  static void release_host();                // what devices keep of it and no session needs
  std::vector<double> measure_pinning(const std::string& way, size_t bytes);
  void reserve_host(size_t planned_bytes, size_t bytes);  // for storages that are away, ahead of its use
  c10::Device torch_device() const { return torch_device_; }
  size_t total_bytes() const { return device_->total_bytes(); }
  std::shared_ptr<StepLog> end_step();
  std::shared_ptr<StepLog> step_so_far();
  void own_work(bool on);  // the session's, between ops
  // From here on the calling thread's ops and memory are none of any session's, or its own again. Not inside of an op.
  static void stand_aside(bool on);
  // Memory of torch's own allocator, which belongs to no session.
  static c10::DataPtr allocate_aside(c10::DeviceType type, size_t bytes);
  // The loop pauses, and so do all open sessions.
  static void begin_pauses(PauseKind kind);
  static void end_pauses();
  // A stretch that somebody names without torch's record_function, in all open sessions. Returns what end_marks()
  // takes.
  using Marks = std::vector<std::pair<size_t, int64_t>>;  // the places of those sessions' runtimes, and their marks
  static Marks begin_marks(const char* name);
  static void end_marks(const Marks& marks);
  std::vector<std::shared_ptr<StepLog>> logs();
  void add_program(int64_t id, std::shared_ptr<const Program> program);
  void drop_program(int64_t id);
  void use_program(int64_t id);  // from the next op on: call it between two steps
  // The texts behind ids of modules and labels: what tokens are made of, since ids mean nothing to another process.
  void name_module(int32_t id, std::string_view path);
  void name_label(int32_t id, std::string_view name);
  // Of every how many ops the time on the device is taken, and which is the first of a step; 0: of none.
  void time_ops(int32_t every, int32_t first);
  void record_stacks(bool on) { stacks_.store(on, std::memory_order_relaxed); }  // of the ops that begin from now on
  std::vector<std::string> mark_names();
  std::vector<std::vector<int64_t>> shapes();  // what StorageRow::shape counts
  void set_optimizer_stage(bool on) { optimizer_stage_.store(on, std::memory_order_relaxed); }

  // Owners: how many tensors are known to hold the storage; held by more, it stays where it is, unless the caller is
  // trusted to know better. What numpy or another process shares always stays.
  enum class Adopted { New, Known, TooSmall, Foreign, Shared, NoRoom };
  Adopted adopt(c10::StorageImpl* impl, Category category, int32_t label, size_t owners, bool trusted, bool evict_last);
  size_t block_bytes(size_t bytes) const { return device_->block_bytes(bytes); }
  // Eviction takes these where nothing else is left, and no others.
  void set_evict_last(const std::unordered_set<int64_t>& uids);
  bool restore(c10::StorageImpl* impl);
  bool evict(c10::StorageImpl* impl);
  std::optional<Residency> residency(c10::StorageImpl* impl);
  // Until the session ends: storages of any size are ours, and all that may leave are away between outermost ops; with
  // a seed, a random eighth of them each time. For tests.
  void evict_always(std::optional<uint64_t> seed);
  std::vector<Transition> take_transitions();  // since the last call; the first one begins to keep them

  // --- replay: see Note [Values]
  // Of ops, by name, with a bit per ScalarType; where bits are named, under the settings that are in force now.
  void allow_replays(const std::unordered_map<std::string, uint64_t>& dtypes);
  void keep_producers(bool on);          // even where no program drops anything
  Refusal drop(c10::StorageImpl* impl);  // now, if its bytes can be made again

  // What `empty` has made between these two, and nobody has taken a pointer of, may leave before an op has used it: it
  // is a bucket of DDP, which is filled by ops alone.
  static void begin_buckets();
  static void settle_buckets();

  // For calls that read the bytes, such as torch.save's: the storage is resident from hold() to let_go(), and whoever
  // takes its pointer meanwhile gives it up before that.
  bool hold(c10::StorageImpl* impl);
  void let_go(c10::StorageImpl* impl);

  // A pointer whose end will be told; see Note [Loans]. The storage is held as well, until the pointer has been taken
  // and let_go() is called. Null where the bytes are not ours; throws where they do not fit.
  std::optional<Loan> lend(c10::StorageImpl* impl);

  // An address that stands for the storage as long as it lives, wherever its bytes are, and is not to be read. Null
  // where they are not ours.
  const void* identity(c10::StorageImpl* impl);

  // A read has met the mark of a storage that is away: its bytes are put there. False: there are none behind it.
  bool show(const void* address);

  // A raw pointer to the bytes is about to leave the dispatcher: they come in, and stay. False: they are not ours.
  bool accessed(c10::StorageImpl* impl, bool by_hook);

  Counters counters();
  std::optional<DiskCounters> disk_counters();  // none without a disk; after the session, what they were at its end
  std::string allocator_setting() { return device_->allocator_setting(); }
  // The last one, once; of an error that tells of one, where `told` is its text.
  std::optional<Failure> take_failure(std::optional<std::string_view> told = {});
  std::optional<Failure> failure_of(std::string_view told);  // the same, and it stays

  int64_t backwards();  // that have been seen to begin

  // --- module hooks; the calling thread's
  void enter_module(int32_t module);
  void leave_module();

  // --- the allocator's requests (device backends call these)
  bool tracks(size_t bytes) const {
    return bytes >= tracked_bytes_.load(std::memory_order_relaxed) && is_open() &&
           !unbacked_.load(std::memory_order_relaxed) && !stands_aside_;
  }
  bool is_small(size_t bytes) const { return bytes < tracked_bytes_.load(std::memory_order_relaxed); }
  void* allocate(size_t bytes);
  bool release(const void* block);  // false: not ours
  bool make_way(size_t bytes);      // memory that is not the runtime's could not be had; false: nothing can leave
  void make_way_where_refused(size_t bytes);  // the same ahead, where it is known that it cannot be had
  // Its user says that a stream uses it, of which torch is told for its block of now. False: not ours.
  bool recorded(const c10::DataPtr& pointer, const void* stream, const std::function<void()>& tell_torch);

 private:
  friend struct Loan;
  inline static thread_local bool stands_aside_ = false;
  struct ThreadState;
  struct CallStack;
  ThreadState& thread_state();
  class PinsOfReplay;
  class Staying;
  class Replaying;
  class ReplayInputs;
  class Restoration;
  class Refusals;
  class Ending;

  // Where in the step and in the program what happens now belongs.
  struct OpPlace {
    int64_t step = -1;  // step_serial_ then
    int32_t op = -1;
    int32_t plan_op = -1;
    int32_t ordinal = 0;  // of the next storage made there
  };
  void begin_pause(PauseKind kind);
  void end_pause();
  int64_t begin_mark(const char* name);  // below 0: it is not kept
  void end_mark(int64_t mark);
  OpPlace& place(ThreadState& thread);  // and the recorder goes there
  void begin_step();
  void note_allocator_events();

  // Runtimes by their places, as bits.
  using Places = uint64_t;
  Places bit() const { return Places{1} << place_; }
  template <class F>
  static void each_of(Places places, F&& f) {
    for (; places; places &= places - 1) f(*known_[std::countr_zero(places)].load(std::memory_order_relaxed));
  }
  template <class F>
  static void each_known(F&& f) {
    const size_t count = known_count_.load(std::memory_order_acquire);
    for (size_t i = 0; i < count; ++i) f(*known_[i].load(std::memory_order_relaxed));
  }
  bool serves(c10::Device device) const {
    return device == torch_device_ || (device.is_meta() && unbacked_.load(std::memory_order_relaxed));
  }
  // Are its tensors in the host's own memory? Of a GPU that the host plays, they are.
  bool on_host() const { return torch_device_.is_cpu(); }
  // An op belongs to every session on whose device it has a tensor, or is asked to make one. An op without any goes
  // with the one before it on its thread, if that is of the host's memory: what the host computes beside a GPU (a data
  // loader's thread that pins batches) is no part of the program. Where one session is open, and it is the host's, that
  // is all there is to it.
  static Places concerned(const at::RecordFunction& function, CallStack& stack);
  static Places concerned_of(const at::RecordFunction& function, CallStack& stack, Places listening);

  Runtime(std::unique_ptr<Device> device, bool runs_behind, size_t place);
  static std::vector<Runtime*> all();
  static std::unique_ptr<at::ObserverContext> on_op_start(const at::RecordFunction& function);
  static void on_op_end(const at::RecordFunction& function, at::ObserverContext* context);
  static std::unique_ptr<at::ObserverContext> on_mark_start(const at::RecordFunction& function);
  static void on_mark_end(const at::RecordFunction& function, at::ObserverContext* context);
  static void on_access(c10::StorageImpl* impl);
  static bool on_mark_read(const void* address);
  static void on_away_deleted(void* storage);
  static void on_unbacked_deleted(void* address);

  void listen();
  void stop_listening();
  void op_start(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread);
  void lose_sight(c10::StorageImpl* impl, bool reads, bool writes, ThreadState& thread);
  void stay(Storage& storage);
  void end_outermost(const EventPtr& began, const EventPtr& ended, const ThreadState& thread);
  void follow(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread);
  bool take_results(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread, Maker* maker,
                    const collectives::Launched* launched);
  void op_end(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread, Maker* maker);
  // Where an outermost op comes from.
  struct Origin {
    Stage stage;
    int32_t module;  // id; below 0: none
    int64_t sequence_nr;
  };
  void enter(const OpInfo& info, ThreadState& thread);
  void begin_outermost(const OpInfo& info, ThreadState& thread);
  void look_for_unseen_op(ThreadState& thread);
  void follow_backward(Stage stage, const ThreadState& thread);
  void end_backward();
  Origin origin_of(const at::RecordFunction& function, ThreadState& thread);
  void record_start(const at::RecordFunction& function, const OpInfo& info, const Origin& origin,
                    std::shared_ptr<torch::CapturedTraceback> stack, ThreadState& thread);
  void follow_plan(ThreadState& thread);
  void time_start(ThreadState& thread);
  void use_input(const c10::IValue& value, size_t argument, const OpInfo& info, ThreadState& thread);
  // See Note [Flights].
  void board(c10::ArrayRef<const c10::IValue> inputs, const OpInfo& info, ThreadState& thread);
  void depart(const collectives::Launched& launched, ThreadState& thread);
  void use_waited(const at::RecordFunction& function, ThreadState& thread);
  void end_waited(ThreadState& thread);
  void end_flights_of(Storage& storage, const at::Tensor& tensor, size_t argument, const OpInfo& info);
  void end_dropped_flights();
  void take_loans_back();
  void take_loans_back(Storage& storage, int32_t count);
  void end_flight(Flight flight);
  bool has_flight(const void* work);
  void make_way_for_hook(const c10::IValue& value);
  using HostWaits = std::vector<std::pair<EventPtr, Order>>;  // for which the host has to wait, and why
  static bool taken_by_op(Storage& storage, const ThreadState& thread, bool by_hook);
  void bring_for_pointer(Storage& storage, ThreadState& thread, HostWaits* waits);
  void expect_writes(Storage& storage, ThreadState& thread, HostWaits* waits);
  void wait_for(const HostWaits& waits);
  void hold_here(Storage& storage);
  static void bring_gradient(const at::RecordFunction& function);
  static void hold_argument(const at::RecordFunction& function, const OpInfo& info, CallStack& stack);
  Storage* use(c10::StorageImpl* impl, bool reads, bool writes, ThreadState& thread, int32_t part = -1);
  void use_elements(const c10::IValue& list, size_t argument, const OpInfo& info, ThreadState& thread);
  struct StrongReferences;
  bool only_sets(c10::ArrayRef<const c10::IValue> inputs, ThreadState& thread, const StrongReferences& strong);
  void use_inputs(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread,
                  const StrongReferences& strong);
  void bring_in_missing(const std::vector<Storage*>& missing, Storage* overwritten, ThreadState& thread);
  void bring_in_missing(Storage& storage, ThreadState& thread);
  Storage* overwritten(const at::RecordFunction& function, const OpInfo& info, const StrongReferences& strong);
  void have_inputs(const std::vector<Storage*>& missing, Storage* overwritten, const std::vector<Storage*>& written,
                   ThreadState& thread);
  void begin_overwriting(Storage& storage, ThreadState& thread);
  void end_overwriting(ThreadState& thread);
  void wait_while_blank(ThreadState& thread);                    // while other threads' ops overwrite an input
  bool wait_while_blank(Storage& storage, ThreadState& thread);  // false: it has died meanwhile
  void mark_results(const at::RecordFunction& function, size_t parts);
  void attach_output(const c10::IValue& value, bool settled, const ThreadState& thread);
  void settle(Storage& storage, const ThreadState& thread);
  bool settle_unseen();
  void attach(Storage& storage, c10::StorageImpl* impl);
  void pin(Storage& storage, ThreadState& thread);
  void unpin(Storage& storage);
  void unpin_all(ThreadState& thread);
  void destroyed(Storage* storage);
  void record_end(Storage& storage, bool dies, bool leaves);
  void place_death();
  uint64_t next_serial() { return ++serials_; }

  void keep_producers_if_needed();
  void begin_maker(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread);
  void link_maker(ThreadState& thread);
  void end_maker(const at::RecordFunction& function, Maker& maker);
  // These give up the lock while ops run, and so may bring_in().
  void bring_in(Storage& storage, Cause cause, ThreadState& thread, EventPtr* arrived = nullptr);
  bool fetch(Storage& storage);
  bool keep_or_let_die(Storage& storage);
  bool show_bytes(const void* address, bool* dropped);
  void make_behind(const void* address);
  Storage* behind(const void* address) const;  // whose mark it is
  void rematerialize(std::shared_ptr<Value> value, Cause cause, ThreadState& thread);
  void begin_restoration(const std::shared_ptr<Value>& value, std::vector<std::unique_ptr<Restoration>>& open,
                         ThreadState& thread);
  void end_restoration(std::vector<std::unique_ptr<Restoration>>& open, ThreadState& thread);
  at::Tensor make_again(const std::shared_ptr<Value>& value, Restoration& wanted, Cause cause, ThreadState& thread);
  void note_replay(Storage* storage, const Producer& producer, size_t bytes, Cause cause, Ticks start);
  at::Tensor blank(const KeptInput& input, ThreadState& thread);
  void restore_dependents(Storage& storage, Cause cause, ThreadState& thread);
  void end_values(const std::vector<Storage*>& written, ThreadState& thread);
  void end_value(Storage& storage, bool in_place, ThreadState& thread);
  void replay_planned(ThreadState& thread);
  void restore_dropped(ThreadState& thread);
  void forget_values();
  void watch(Storage& storage);
  void wait_for_others(ThreadState& thread);
  void take_over(Storage& storage, const at::Tensor& made, ThreadState& thread);
  Refusal drop_bytes(Storage& storage, bool note = true);  // note: in the trace, if it is declined
  void free_ghost(Storage& ghost);
  void let_go(Storage& ghost);
  void follow_replays(const Storage& storage, int lane, bool writes, Order made = Order::Replayed);
  void host_follows(const Storage& storage, HostWaits* waits);
  c10::DataPtr allocate_kept(size_t bytes);
  bool accumulates(const at::RecordFunction& function, const OpInfo& info, ThreadState& thread);
  void leaf_start(const at::RecordFunction& function, const OpInfo& info, CallStack& stack);
  void leaf_end(const at::RecordFunction& function, ThreadState& thread);
  Storage* see_unbacked(c10::StorageImpl* impl, ThreadState& thread);
  void hand_over(Storage& storage, c10::StorageImpl* impl);
  Storage* add_unbacked(c10::StorageImpl* impl);
  Adopted adopt_unbacked(c10::StorageImpl* impl);
  Adopted adopt_memory(c10::StorageImpl* impl, size_t owners, bool trusted);
  void categorize(Storage& storage, Category category, int32_t label);
  void forget_unbacked();
  void begin_life(Storage& storage, const OpPlace& here, ThreadState& thread);
  int32_t describe_birth(Storage& storage, ThreadState& thread);  // returns its number among the op's
  size_t resident_bytes() const;
  bool wait_for_pins();
  void grow_host(size_t bytes);
  void trim_host(bool all);
  void end_session();
  SwapTarget& target() { return disk_ ? static_cast<SwapTarget&>(*disk_) : host_; }
  void begin_session(const Options& options);
  void lift_limits();
  void open_disk(const DiskOptions& options);
  void close_disk();
  void lose(const std::vector<Storage*>& storages);
  std::string name_of(const Storage& storage) const;
  std::string kept_words(const Storage& storage) const;
  void check_device() const;  // throws where it is of no use any more
  std::string full_words() const;
  bool wait_for_other_ops();
  void hand_back();
  void forget_block(Storage& storage);
  void make_way_while_refused(size_t bytes);
  Storage* find(c10::StorageImpl* impl) const;
  Category guess_category(ThreadState& thread);
  ModuleStack& modules(ThreadState& thread);
  std::string note_failure(size_t request_bytes, ThreadState& thread);
  bool send_out(Storage& storage);
  void send_all_out();

  static void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  std::unique_ptr<Device> device_;
  const bool runs_behind_;  // as DeviceTraits says
  const c10::Device torch_device_;
  const size_t place_;  // among the known ones
  const c10::DeleterFnPtr block_deleter_;
  CoreMutex mutex_;
  std::condition_variable_any pins_released_;
  int threads_in_ops_ = 0;
  int threads_waiting_ = 0;
  int threads_waiting_in_ops_ = 0;
  int replays_running_ = 0;
  int blanks_ = 0;  // storages that ops overwrite now: see Note [Overwriting]

  StorageTable table_;
  HostTarget host_;
  std::unique_ptr<DiskTarget> disk_;  // takes its place while it is there
  std::optional<DiskCounters> closed_disk_;
  Recorder recorder_;
  Swapper swapper_;
  Executor executor_;
  Replays replays_;
  Flights flights_;
  bool always_keep_producers_ = false;
  std::atomic<bool> keeps_producers_{false};
  ForwardModules forward_modules_;
  std::vector<uint32_t> module_hashes_;  // by id
  std::vector<uint32_t> label_hashes_;
  std::vector<std::string> module_names_;  // by id
  std::vector<std::string> label_names_;
  Options options_;
  static constexpr size_t kMostFailures = 1024;
  std::vector<Failure> failures_;  // since they were last taken

  std::atomic<bool> open_{false};
  std::atomic<bool> optimizer_stage_{false};
  std::atomic<bool> unbacked_{false};                   // as in the options, for ops that have not taken the lock yet
  std::atomic<bool> stacks_{false};                     // the same
  std::atomic<int64_t> epoch_{0};                       // sessions so far
  std::chrono::steady_clock::time_point unseen_until_;  // ops that began before the session may still run
  std::unordered_set<pid_t> older_threads_;             // on these
  std::atomic<size_t> tracked_bytes_{kTrackedBytes};
  bool evicts_always_ = false;
  bool closing_ = false;              // what is dropped comes back now
  std::optional<std::mt19937> dice_;  // decide which of them
  bool limited_ = false;              // is there a capacity?
  bool listens_ = false;              // to ops: while it is open, and as long as something is away
  // Entries come, and none goes: nobody has to wait for a lock to read them.
  static constexpr size_t kMostRuntimes = 64;
  inline static std::array<std::atomic<Runtime*>, kMostRuntimes> known_{};
  inline static std::atomic<size_t> known_count_{0};
  inline static std::atomic<Places> listening_{0};
  inline static std::atomic<Places> beside_host_{0};               // those of GPUs
  inline static std::atomic<bool> asks_for_views_{false};          // does DDP? See Note [DDP before torch 2.13]
  inline static std::atomic<Runtime*> unbacked_runtime_{nullptr};  // that follows meta tensors
  TensorForms forms_;
  uint64_t serials_ = 0;  // of outermost ops, and of replays between them
  int32_t timed_every_ = 0;
  int32_t timed_first_ = 0;
  int64_t clock_ops_ = 0;             // outermost ops since the process began
  AllocatorEvents allocator_events_;  // when the step began
  Lanes op_lanes_ = 0;                // that ops of the session have run along
  bool some_loans_ended_ = false;     // of which storages are not free yet
  int64_t buckets_from_uid_ = 0;      // see begin_buckets()
  int64_t backwards_ = 0;             // seen to begin, in all sessions
  bool backward_goes_on_ = false;     // the newest of them
  int32_t backward_caller_ = -1;      // the thread that ran the newest op before it
  int64_t step_serial_ = 0;           // steps begun, and programs loaded, since the process began
  OpPlace newest_;                    // of the op that started last; what happens between ops belongs there
  int32_t next_thread_ = 0;
  std::vector<Storage*> missing_;    // inputs of the op that are not resident
  std::vector<Storage*> written_;    // those that it writes, where a value ends by that
  std::vector<Storage*> made_from_;  // scratch of end_maker
};

}  // namespace chameleon
