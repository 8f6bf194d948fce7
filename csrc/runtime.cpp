#include "runtime.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "device/registry.h"
#include "late_deaths.h"
#include "marks.h"
#include "runtime_internal.h"
#include "spare_memory.h"

namespace chameleon {

namespace {
constexpr int kDigits = 3;

std::string in_units(size_t bytes, bool rounded_up) {
  constexpr const char* kUnits[] = {" B", " KiB", " MiB", " GiB"};
  size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  if (rounded_up && value > 0) {
    const double last_digit = std::pow(10.0, std::floor(std::log10(value)) + 1 - kDigits);
    value = std::ceil(value / last_digit) * last_digit;
  }
  std::ostringstream text;
  text.precision(value >= 1000 ? kDigits + 1 : kDigits);
  text << value << kUnits[unit];
  return text.str();
}
}  // namespace

std::string human(size_t bytes) { return in_units(bytes, false); }
std::string human_enough(size_t bytes) { return in_units(bytes, true); }

// Stacks are never destroyed: when a thread ends, the next one takes its stack over. A tensor that the thread keeps to
// its very end may die after that, and needs a stack that no other thread has: it gets one for good.
Runtime::CallStack& Runtime::CallStack::here() {
  static auto* mutex = new std::mutex;
  static auto* spare = new std::vector<CallStack*>;
  static size_t made = 0;
  static thread_local CallStack* mine = nullptr;
  static thread_local bool ended = false;
  struct AtThreadEnd {
    ~AtThreadEnd() {
      std::lock_guard<std::mutex> lock(*mutex);
      spare->push_back(std::exchange(mine, nullptr));
      ended = true;
    }
  };
  if (mine) return *mine;
  if (ended) return *(mine = new CallStack);
  {
    std::lock_guard<std::mutex> lock(*mutex);
    if (spare->empty()) {
      spare->reserve(made + 1);  // a thread's end has to find room there
      mine = new CallStack;
      ++made;
    } else {
      mine = spare->back();
      spare->pop_back();
      mine->states_.clear();
    }
  }
  mine->of_backend = collectives::on_backend_thread();
  stands_aside_ |= mine->of_backend;
  static thread_local AtThreadEnd at_thread_end;
  (void)at_thread_end;
  return *mine;
}

Runtime::ThreadState& Runtime::thread_state() { return CallStack::here().of(*this); }

namespace {

std::mutex registry_mutex;
std::vector<std::pair<c10::Device, Runtime*>>& registry() {
  static auto* runtimes = new std::vector<std::pair<c10::Device, Runtime*>>();
  return *runtimes;
}

// Empty where the system does not say.
std::unordered_set<pid_t> threads_of_this_process() {
  std::unordered_set<pid_t> threads;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator("/proc/self/task", error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    threads.insert(static_cast<pid_t>(std::stoi(entry->path().filename())));
  }
  return error ? std::unordered_set<pid_t>() : threads;
}

}  // namespace

Runtime& Runtime::of(c10::Device device) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  for (const auto& [known, runtime] : registry()) {
    if (known == device) return *runtime;
  }
  const size_t place = registry().size();
  TORCH_CHECK(place < kMostRuntimes, "Chameleon Lab: no more than ", kMostRuntimes, " devices can have sessions");
  auto* runtime = new Runtime(make_device(device), device_traits(device.type()).runs_behind, place);
  if (registry().empty()) {
    access::set_hook(&Runtime::on_access);
    access::set_away_deleter(&Runtime::on_away_deleted);
    marks::set_provider(&Runtime::on_mark_read);
    pthread_atfork(
        [] {
          registry_mutex.lock();
          before_fork();
          lock_op_registry();
          late_deaths::before_fork();
        },
        [] {
          late_deaths::after_fork();
          unlock_op_registry();
          for (const auto& one : registry()) one.second->after_fork_in_parent();
          registry_mutex.unlock();
        },
        [] {
          late_deaths::after_fork();
          unlock_op_registry();
          for (const auto& one : registry()) one.second->after_fork_in_child();
          registry_mutex.unlock();
        });
  }
  registry().emplace_back(device, runtime);
  if (!runtime->on_host()) beside_host_.fetch_or(runtime->bit());
  known_[place].store(runtime, std::memory_order_relaxed);
  known_count_.store(place + 1, std::memory_order_release);
  return *runtime;
}

bool Runtime::any_open() {
  bool any = false;
  each_known([&](const Runtime& runtime) { any |= runtime.is_open(); });
  return any;
}

Runtime* Runtime::owning(const c10::StorageImpl* impl) {
  const c10::Device device = impl->device();
  Runtime* owner = nullptr;
  each_known([&](Runtime& runtime) {
    // Two may serve one device where a GPU is played by the host: then it is the one that is open.
    if (runtime.serves(device) && !(owner && owner->is_open())) owner = &runtime;
  });
  return owner;
}

std::vector<Runtime*> Runtime::all() {
  std::lock_guard<std::mutex> lock(registry_mutex);
  std::vector<Runtime*> runtimes;
  for (const auto& one : registry()) runtimes.push_back(one.second);
  return runtimes;
}

Runtime::Runtime(std::unique_ptr<Device> device, bool runs_behind, size_t place)
    : device_(std::move(device)),
      runs_behind_(runs_behind),
      torch_device_(device_->torch_device()),
      place_(place),
      block_deleter_(device_->block_deleter()),
      table_(this, block_deleter_),
      host_(*device_, *device_),
      swapper_(*device_, host_, table_, recorder_),
      executor_(swapper_, table_, recorder_),
      replays_([this](c10::StorageImpl* impl) { return find(impl); },
               [this](const Storage& storage) { return swapper_.movable(storage); },
               [this](Storage& ghost) { free_ghost(ghost); }, [this](size_t bytes) { return allocate_kept(bytes); }) {
  executor_.let_go = [this](Storage& ghost) { let_go(ghost); };
  executor_.drop_bytes = [this](Storage& storage) { return drop_bytes(storage) == Refusal::None; };
  swapper_.next_use = [this](const Storage& storage) { return executor_.next_use(storage, clock_ops_); };
  swapper_.host_place = [this](const Storage& storage) { return executor_.host_place(storage); };
  swapper_.host_kept = [this](const Storage& storage) { return executor_.host_kept(storage); };
  swapper_.drop_instead = [this](Storage& storage) { return drop_bytes(storage, /*note=*/false) == Refusal::None; };
  swapper_.wait_for_pins = [this] { return wait_for_pins(); };
  swapper_.name_of = [this](const Storage& storage) { return name_of(storage); };
  if (device_->places_plans()) swapper_.grow_host = [this](size_t bytes) { grow_host(bytes); };
}

void Runtime::open(const Options& options) {
  if (!options.unbacked) {
    check_device();
    device_->install_allocator();
  }
  Lock lock(mutex_);
  TORCH_CHECK(!open_, "Chameleon Lab: a session is open on ", torch_device_, " already");
  if (options.capacity_bytes != SIZE_MAX) marks::reserve(on_host());
  open_disk(options.disk);
  const bool listened = listens_, was_limited = limited_;
  try {
    begin_session(options);
    listen();
    unseen_until_ = std::chrono::steady_clock::now() + kLongestUnseenOp;
    older_threads_ = threads_of_this_process();
  } catch (...) {
    if (!listened) stop_listening();
    device_->keep_free_blocks(false);
    lift_limits();
    limited_ = listened && was_limited;  // what an earlier session has left away still makes room
    throw;
  }
  open_ = true;
  always_keep_producers_ = false;
  keep_producers_if_needed();
}

void Runtime::begin_session(const Options& options) {
  options_ = options;
  unbacked_ = options.unbacked;
  if (options.unbacked) unbacked_runtime_ = this;
  if (!any_open()) asks_for_views_ = false;
  stacks_ = options.stacks;
  limited_ = options.capacity_bytes != SIZE_MAX;
  if (!unbacked_) {
    device_->host_wait_for_compute();
    check_device();  // what it was given before may have ended it
  }
  device_->set_capacity(options.capacity_bytes);
  device_->set_link(options.link_out_bytes_per_s, options.link_in_bytes_per_s);
  device_->reset_peaks();
  host_.set_capacity(options.host_capacity_bytes);
  host_.reset_peak();
  if (disk_) disk_->set_link(options.link_out_bytes_per_s, options.link_in_bytes_per_s);
  swapper_.min_bytes = options.min_swap_bytes;
  swapper_.forget_refusals();
  swapper_.keeps_host_copies = access::has_hook() || options.trusting;
  tracked_bytes_ = replays_.copied_bytes = options.min_tracked_bytes;
  recorder_ = Recorder(options.max_ops);
  for (const auto& storage : table_.all()) {
    storage->log_step = storage->resident_step = -1;
    storage->plan = -1;
    storage->label = storage->module = -1;
    storage->anchor = 0;
    storage->categorized = storage->evict_last = false;
  }
  executor_.unload();
  forward_modules_ = ForwardModules();
  module_hashes_.clear();
  label_hashes_.clear();
  module_names_.clear();
  label_names_.clear();
  ++epoch_;
  thread_state().seen = epoch_;  // whoever opens a session is in no op
  thread_state().unseen = false;
  failures_.clear();
  optimizer_stage_ = false;
  op_lanes_ = 0;
  end_backward();
  timed_every_ = timed_first_ = 0;
  if (!options.unbacked) allocator_events_ = device_->end_allocator_step();
  device_->take_useless_bytes();
  // Where the host runs ahead, it tells nothing of the device.
  recorder_.notice_pauses(!runs_behind_);
  begin_step();
  const size_t resident_bytes = device_->resident_bytes();
  TORCH_CHECK(resident_bytes <= options.capacity_bytes || swapper_.make_room(0),
              "Chameleon Lab: tensors of an earlier session hold ", human(resident_bytes),
              " that cannot move, more than the capacity of ", human(options.capacity_bytes),
              ": delete them, or give a larger capacity");
  device_->keep_free_blocks(true);
}

// Of a session that ends, or has not begun.
void Runtime::lift_limits() {
  close_disk();
  limited_ = unbacked_ = false;
  Runtime* self = this;
  unbacked_runtime_.compare_exchange_strong(self, nullptr);
  device_->set_capacity(SIZE_MAX);
}

namespace {

// One for all runtimes, while any listens.
std::mutex callbacks_mutex;
at::CallbackHandle ops_callback = at::INVALID_CALLBACK_HANDLE;
at::CallbackHandle marks_callback = at::INVALID_CALLBACK_HANDLE;

void remove_callbacks() {
  for (at::CallbackHandle* callback : {&ops_callback, &marks_callback}) {
    if (*callback != at::INVALID_CALLBACK_HANDLE) at::removeCallback(*callback);
    *callback = at::INVALID_CALLBACK_HANDLE;
  }
}

}  // namespace

// Outputs are needed to know which StorageImpl holds a new block before anything else can get its address: also where
// nothing leaves, since a capacity may be given later, and storages are handed back at the end.
void Runtime::listen() {
  if (std::exchange(listens_, true)) return;  // close() has left it so: storages may move, and no op may begin unseen
  std::lock_guard<std::mutex> lock(callbacks_mutex);
  if (listening_.fetch_or(bit()) != 0) return;
  try {
    ops_callback = at::addGlobalCallback(at::RecordFunctionCallback(&Runtime::on_op_start, &Runtime::on_op_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
    marks_callback = at::addGlobalCallback(at::RecordFunctionCallback(&Runtime::on_mark_start, &Runtime::on_mark_end)
                                               .scopes({at::RecordScope::USER_SCOPE}));
  } catch (...) {
    remove_callbacks();
    listening_.fetch_and(~bit());
    listens_ = false;
    throw;
  }
}

void Runtime::stop_listening() {
  if (!std::exchange(listens_, false)) return;
  std::lock_guard<std::mutex> lock(callbacks_mutex);
  if ((listening_.fetch_and(~bit()) & ~bit()) != 0) return;
  remove_callbacks();
}

void Runtime::close() {
  take_loans_back();
  end_session();
  if (!any_open()) spare_memory::let_go();
  trim_host(/*all=*/true);
}

void Runtime::end_session() {
  Lock lock(mutex_);
  if (!listens_) return;  // in a forked child it does although nothing is open
  keeps_producers_ = false;
  evicts_always_ = false;
  swapper_.transitions.reset();
  executor_.unload();
  device_->set_capacity(device_->total_bytes());
  closing_ = true;
  restore_dropped(thread_state());
  closing_ = false;
  open_ = false;
  tracked_bytes_ = kTrackedBytes;
  // A real device may not hold everything at once. Then what is away comes back when it is used, as it did before.
  std::vector<Storage*> lost;
  if (!swapper_.restore_all(&lost)) return;
  lose(lost);
  Lanes replays = 0;
  for (const auto& storage : table_.all()) replays |= storage->made_by | storage->replays_read;
  const EventPtr replayed = replays ? device_->record(replays) : nullptr;
  if (replayed) device_->host_wait(replayed, Order::SessionEndsReplayed);
  lift_limits();
  end_dropped_flights();
  flights_ = {};  // whose Works are still held: what they were given stays
  forget_values();
  forget_unbacked();
  hand_back();
  // Only now: other threads' ops must come past the hook, and wait there, while storages move.
  stop_listening();
  device_->release_kept_host();
  device_->keep_free_blocks(false);
}

// A child of a session's process may still have its parent's storages away: they come back before another place is
// used.
void Runtime::open_disk(const DiskOptions& options) {
  const auto is_away = [](const auto& storage) { return storage->host.data != nullptr; };
  if ((disk_ || !options.folder.empty()) && std::any_of(table_.all().begin(), table_.all().end(), is_away)) {
    std::vector<Storage*> lost;
    swapper_.restore_all(&lost);
    lose(lost);
  }
  close_disk();
  TORCH_CHECK(!disk_,
              "Chameleon Lab: tensors of an earlier session are on its disk still, in use by other threads: "
              "delete them first");
  closed_disk_.reset();
  if (options.folder.empty()) return;
  disk_ = device_->open_disk(options);
  TORCH_CHECK(disk_, "Chameleon Lab: ", torch_device_, " has no way to a disk: leave out disk=\"", options.folder,
              "\"");
  swapper_.use(*disk_);
}

void Runtime::close_disk() {
  const auto is_away = [](const auto& storage) { return storage->host.data != nullptr; };
  if (!disk_ || std::any_of(table_.all().begin(), table_.all().end(), is_away)) return;  // the last ones die elsewhere
  closed_disk_ = disk_->counters();
  swapper_.use(host_);
  disk_.reset();
}

// Their bytes cannot be had, and the session ends: accesses raise for good. One that goes may take others along.
void Runtime::lose(const std::vector<Storage*>& storages) {
  std::vector<std::pair<Storage*, int64_t>> left;
  for (Storage* storage : storages) left.emplace_back(storage, storage->uid);
  for (const auto& [storage, uid] : left) {
    if (storage->uid != uid) continue;
    if (storage->ghost) {
      free_ghost(*storage);
    } else if (access::keep(*storage)) {
      const std::string failure = device_->failure();
      access::mark_lost(
          *storage, "Chameleon Lab: " + name_of(*storage) +
                        (failure.empty() ? " was on the disk when the session ended, and could not be read from there"
                                         : " was not on the device when that failed (" + failure + ")") +
                        ": its bytes are lost");
      destroyed(storage);
    }
  }
}

std::string Runtime::name_of(const Storage& storage) const {
  constexpr const char* kWords[] = {"parameter", "gradient", "optimizer state", "activation", "input", "tensor"};
  const auto known = [](const std::vector<std::string>& names, int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < names.size() ? names[id] : std::string();
  };
  const std::string what = kWords[static_cast<int>(storage.category)];
  const std::string size = human(storage.bytes);
  if (const std::string name = known(label_names_, storage.label); !name.empty()) {
    return "the " + what + " '" + name + "' (" + size + ")";
  }
  const std::string module = known(module_names_, storage.module);
  return "the " + what + (module.empty() ? "" : " of '" + module + "'") + ", of " + size + ",";
}

void Runtime::check_device() const {
  const std::string failure = device_->failure();
  TORCH_CHECK(failure.empty(), "Chameleon Lab: ", torch_device_, " can be used no more by this process (", failure,
              "): the error that came first says why. Start the process (in Jupyter, the kernel) anew");
}

// Storages go back to torch's own allocator, as if the session had never been. What has a raw pointer outside, is in
// use on another thread, or was never seen by an op stays where it is, and is freed when it dies. Where its block is
// torch's own, nothing of it counts here any more: a library keeps its work space to the end of the process, and no
// later session is to have less room for it.
void Runtime::hand_back() {
  std::vector<Storage*> ours;
  for (const auto& storage : table_.all()) ours.push_back(storage.get());
  for (Storage* storage : ours) {
    const bool goes = storage->residency == Residency::Resident && storage->pins == 0 && storage->settled &&
                      !storage->given_out() && access::movable(*storage) && access::keep(*storage);
    storage->escaped = true;  // what stays is out of sight from here on: no later session may move it
    if (!goes) {
      forget_block(*storage);
      continue;
    }
    if (storage->moved) device_->used_by_all(storage->block);
    if (device_->hand_over(storage->block, storage->block_bytes)) {
      void* block = storage->block;
      storage->impl->_mutable_data_ptr_no_checks().release_context();
      storage->impl->set_data_ptr_noswap({block, block, device_->plain_deleter(), device_->torch_device()});
      record_end(*storage, /*dies=*/false, /*leaves=*/true);
      table_.set_block(storage, nullptr);
      destroyed(storage);
      continue;
    }
    c10::DataPtr plain;
    try {
      plain = device_->allocate_plain(storage->bytes);
    } catch (const std::exception&) {  // the system has no memory left; the block serves as well
      continue;
    }
    device_->copy_now(plain.get(), storage->block, storage->bytes);
    if (!access::intact(*storage)) continue;  // what Python knows by an object is not kept from dying meanwhile
    storage->impl->_mutable_data_ptr_no_checks().release_context();
    storage->impl->set_data_ptr_noswap(std::move(plain));
    destroyed(storage);
  }
}

// Its DataPtr keeps our deleter, which hands on to torch's what is no storage's.
void Runtime::forget_block(Storage& storage) {
  if (storage.residency != Residency::Resident || storage.pins > 0 || storage.ghost || storage.unbacked) return;
  if (storage.moved) device_->used_by_all(storage.block);
  if (!device_->hand_over(storage.block, storage.block_bytes)) return;
  if (storage.impl && access::intact(storage)) access::disarm(storage);
  record_end(storage, /*dies=*/false, /*leaves=*/true);
  table_.set_block(&storage, nullptr);
  destroyed(&storage);
}

void Runtime::set_capacity(size_t capacity_bytes) {
  Lock lock(mutex_);
  const bool limited = capacity_bytes != SIZE_MAX;
  limited_ = limited;
  keep_producers_if_needed();
  options_.capacity_bytes = capacity_bytes;
  if (limited) marks::reserve(on_host());
  device_->set_capacity(capacity_bytes);
  if (limited) swapper_.make_room(0);
}

void Runtime::set_link(double out_bytes_per_s, double in_bytes_per_s) {
  Lock lock(mutex_);
  options_.link_out_bytes_per_s = out_bytes_per_s;
  options_.link_in_bytes_per_s = in_bytes_per_s;
  device_->set_link(out_bytes_per_s, in_bytes_per_s);
  if (disk_) disk_->set_link(out_bytes_per_s, in_bytes_per_s);
}

std::pair<double, double> Runtime::measure_link() {
  Lock lock(mutex_);
  check_device();
  std::pair<double, double> found;
  try {
    found = target().measure_bandwidth();
  } catch (const std::exception&) {
    check_device();
    throw;
  }
  check_device();  // where it is gone, copies seem to take no time
  return found;
}

size_t Runtime::pooled_host_bytes() {
  Lock lock(mutex_);
  return device_->pooled_host_bytes();
}

void Runtime::release_host() {
  for (Runtime* runtime : all()) {
    std::function<void()> give_back;
    {
      Lock lock(runtime->mutex_);
      give_back = runtime->device_->release_host();
    }
    if (give_back) give_back();
  }
}

std::vector<double> Runtime::measure_pinning(const std::string& way, size_t bytes) {
  return device_->measure_pinning(way, bytes);
}

size_t Runtime::pageable_host_bytes() {
  Lock lock(mutex_);
  return device_->pageable_host_bytes();
}

// Ops of other threads go on meanwhile: pinning takes long.
void Runtime::reserve_host(size_t planned_bytes, size_t bytes) {
  Lock lock(mutex_);
  while (const auto growth = device_->grow_host(std::max(planned_bytes, bytes))) {
    {
      const Unlocked unlocked(mutex_);
      growth->have();
    }
    growth->add();
  }
  device_->place_plans(planned_bytes);
}

void Runtime::trim_host(bool all) {
  std::function<void()> give_back;
  {
    Lock lock(mutex_);
    give_back = device_->trim_host(all);
  }
  if (give_back) give_back();
}

// For what leaves when that is there.
void Runtime::grow_host(size_t bytes) {
  const auto growth = device_->grow_host_for(bytes);
  if (!growth) return;
  {
    const Unlocked unlocked(mutex_);
    growth->have();
  }
  growth->add();
  place(thread_state());  // other threads' ops have come between
}

std::shared_ptr<StepLog> Runtime::end_step() {
  trim_host(/*all=*/false);
  take_loans_back();
  Lock lock(mutex_);
  end_dropped_flights();
  executor_.end_step();
  recorder_.log().settle();
  note_allocator_events();
  end_backward();
  auto log = recorder_.end_step(table_, [this](const Storage& storage) { return swapper_.movable(storage); });
  begin_step();
  if (Producer::count > 0) replays_.prune(table_);
  forward_modules_.end_step();
  thread_state().modules.clear();  // whatever an interrupt has left there
  executor_.send_waiting();
  return log;
}

std::shared_ptr<StepLog> Runtime::step_so_far() {
  Lock lock(mutex_);
  recorder_.log().settle();
  return recorder_.so_far(table_, [this](const Storage& storage) { return swapper_.movable(storage); });
}

void Runtime::note_allocator_events() {
  StepLog& log = recorder_.log();
  const AllocatorEvents before = std::exchange(allocator_events_, device_->end_allocator_step());
  const AllocatorEvents& now = allocator_events_;
  // Torch's counts begin anew where the user resets its statistics.
  const auto since = [](int64_t now, int64_t before) { return now >= before ? now - before : now; };
#define CHAMELEON_COUNTER(name) log.allocator.name = since(now.name, before.name);
  CHAMELEON_ALLOCATOR_EVENTS(CHAMELEON_COUNTER)
#undef CHAMELEON_COUNTER
  log.useless_bytes = static_cast<int64_t>(device_->take_useless_bytes());
}

void Runtime::own_work(bool on) {
  Lock lock(mutex_);
  recorder_.own_work(on);
}

c10::DataPtr Runtime::allocate_aside(c10::DeviceType type, size_t bytes) {
  const bool aside = std::exchange(stands_aside_, true);
  c10::DataPtr memory;
  try {
    memory = c10::GetAllocator(type)->allocate(bytes);
  } catch (...) {
    stands_aside_ = aside;
    throw;
  }
  stands_aside_ = aside;
  return memory;
}

void Runtime::stand_aside(bool on) {
  static thread_local bool were_seen = true;
  if (on == stands_aside_) return;
  if (on) were_seen = at::isRecordFunctionEnabled();
  stands_aside_ = on;
  at::enableRecordFunction(!on && were_seen);
}

// A GPU may have work to do while the host waits for data: no pause begins before that is done.
void Runtime::begin_pause(PauseKind kind) {
  Lock lock(mutex_);
  if (open_) recorder_.begin_pause(kind, device_->moment(device_->lane()));
}

void Runtime::end_pause() {
  Lock lock(mutex_);
  if (open_) recorder_.end_pause();
}

void Runtime::begin_pauses(PauseKind kind) {
  each_known([&](Runtime& runtime) {
    if (runtime.is_open()) runtime.begin_pause(kind);
  });
}

void Runtime::end_pauses() {
  each_known([&](Runtime& runtime) {
    if (runtime.is_open()) runtime.end_pause();
  });
}

Runtime::Marks Runtime::begin_marks(const char* name) {
  Marks marks;
  marks.reserve(known_count_.load(std::memory_order_acquire));  // first: all that have begun are to be in it
  try {
    each_known([&](Runtime& runtime) {
      const int64_t mark = runtime.begin_mark(name);
      if (mark >= 0) marks.emplace_back(runtime.place_, mark);
    });
  } catch (...) {
    end_marks(marks);
    throw;
  }
  return marks;
}

void Runtime::end_marks(const Marks& marks) {
  for (const auto& [place, mark] : marks) {
    if (place < known_count_.load(std::memory_order_acquire)) known_[place].load()->end_mark(mark);
  }
}

int64_t Runtime::begin_mark(const char* name) {
  if (!open_) return -1;
  ThreadState& thread = thread_state();
  Lock lock(mutex_);
  if (!open_) return -1;
  if (thread.index < 0) thread.index = next_thread_++;
  return recorder_.begin_mark(name, thread.index);
}

void Runtime::end_mark(int64_t mark) {
  Lock lock(mutex_);
  if (open_) recorder_.end_mark(mark);
}

void Runtime::begin_step() {
  spare_memory::keep();
  executor_.begin_step();
  recorder_.record_makings(keeps_producers_);
  newest_ = {++step_serial_, -1, executor_.loaded() ? 0 : -1, kBeforeFirstOp};
}

std::vector<std::string> Runtime::mark_names() {
  Lock lock(mutex_);
  return recorder_.mark_names();
}

std::vector<std::vector<int64_t>> Runtime::shapes() {
  Lock lock(mutex_);
  return forms_.shapes();
}

std::vector<std::shared_ptr<StepLog>> Runtime::logs() {
  Lock lock(mutex_);
  if (!open_) return {};  // those of the session before are no longer asked for
  return {recorder_.finished().begin(), recorder_.finished().end()};
}

void Runtime::add_program(int64_t id, std::shared_ptr<const Program> program) {
  Lock lock(mutex_);
  executor_.add(id, std::move(program));
  keep_producers_if_needed();
}

void Runtime::drop_program(int64_t id) {
  Lock lock(mutex_);
  executor_.drop(id);
  keep_producers_if_needed();
}

void Runtime::use_program(int64_t id) {
  Lock lock(mutex_);
  executor_.use(id);
  begin_step();
  executor_.send_waiting();
}

void Runtime::time_ops(int32_t every, int32_t first) {
  Lock lock(mutex_);
  timed_every_ = every;
  timed_first_ = first;
}

namespace {
void set_text(std::vector<uint32_t>& hashes, std::vector<std::string>& names, int32_t id, std::string_view text) {
  if (id < 0) return;
  if (hashes.size() <= static_cast<size_t>(id)) {
    hashes.resize(id + 1);
    names.resize(id + 1);
  }
  hashes[id] = hash_text(text);
  names[id] = text;
}
}  // namespace

void Runtime::name_module(int32_t id, std::string_view path) {
  Lock lock(mutex_);
  set_text(module_hashes_, module_names_, id, path);
}

void Runtime::name_label(int32_t id, std::string_view name) {
  Lock lock(mutex_);
  set_text(label_hashes_, label_names_, id, name);
}

Counters Runtime::counters() {
  Lock lock(mutex_);
  Counters counters;
  counters.memory = device_->memory_info();
  counters.live_bytes = table_.live_bytes();
  counters.storages = table_.all().size();
  for (const auto& storage : table_.all()) {
    counters.escaped += storage->given_out();
    counters.escaped_bytes += storage->given_out() ? storage->block_bytes : 0;
    counters.dropped += storage->residency == Residency::Dropped;
    counters.ghosts += storage->ghost;
  }
  counters.producers = Producer::count;
  counters.forward_nodes = forward_modules_.size();
  counters.host_used_bytes = target().used_bytes();
  counters.host_reserved_bytes = target().reserved_bytes();
  counters.host_peak_bytes = target().peak_bytes();
  counters.host_pinned = device_->pinned_host();
  counters.host_placed = host_.placed();
  counters.host_misplaced = host_.misplaced();
  counters.step = recorder_.log().index;
  counters.ops_in_step = recorder_.ops();
  counters.recent = executor_.recent();
  return counters;
}

std::optional<DiskCounters> Runtime::disk_counters() {
  Lock lock(mutex_);
  return disk_ ? disk_->counters() : closed_disk_;
}

namespace {

// An op notes one failure for each input that finds no room. The first one that its kernel reads is told; the last one
// knows most of what the op needs.
std::optional<Failure> last_of(const std::vector<Failure>& failures, std::optional<std::string_view> told) {
  const auto is_told = [&](const Failure& failure) { return told->find(failure.needs) != told->npos; };
  auto last = told ? std::find_if(failures.rbegin(), failures.rend(), is_told) : failures.rbegin();
  if (last == failures.rend()) return {};
  while (last != failures.rbegin() && std::prev(last)->op == last->op) --last;
  return *last;
}

}  // namespace

std::optional<Failure> Runtime::take_failure(std::optional<std::string_view> told) {
  Lock lock(mutex_);
  return last_of(std::exchange(failures_, {}), told);
}

std::optional<Failure> Runtime::failure_of(std::string_view told) {
  Lock lock(mutex_);
  return last_of(failures_, told);
}

void Runtime::enter_module(int32_t module) { modules(thread_state()).enter(module); }
void Runtime::leave_module() { modules(thread_state()).leave(); }

// Ids of an earlier session mean nothing in this one; a thread may still have them if its forward was cut short.
ModuleStack& Runtime::modules(ThreadState& thread) {
  const int64_t epoch = epoch_.load(std::memory_order_relaxed);
  if (thread.epoch != epoch) {
    thread.epoch = epoch;
    thread.modules.clear();
  }
  return thread.modules;
}

// The child may have fewer threads for ops than the first run had, so nothing is left to it that has to be replayed.
// What is replayed takes memory on any device: that is over before the first lock is held. Of a GPU the child has
// nothing, and nothing is waited for.
void Runtime::before_fork() {
  const auto& runtimes = registry();
  for (bool all_locked = false; !all_locked;) {
    for (const auto& [device, runtime] : runtimes) {
      if (!runtime->on_host()) continue;
      Lock lock(runtime->mutex_);
      runtime->restore_dropped(runtime->thread_state());
    }
    size_t locked = 0;
    for (all_locked = true; all_locked && locked < runtimes.size(); ++locked) {
      Runtime& runtime = *runtimes[locked].second;
      runtime.mutex_.lock();
      all_locked =
          runtime.blanks_ == 0 && (!runtime.on_host() || runtime.replays_running_ <= runtime.thread_state().replays);
    }
    // Another has begun meanwhile, and the child would not see its end.
    while (!all_locked && locked > 0) runtimes[--locked].second->mutex_.unlock();
  }
  for (const auto& [device, runtime] : runtimes) {
    if (runtime->on_host()) runtime->device_->drain();
    if (runtime->disk_) runtime->disk_->before_fork();
  }
}

void Runtime::after_fork_in_parent() {
  if (disk_) disk_->after_fork_in_parent();
  mutex_.unlock();
}

// The child has no copy engines, and none of the parent's budget is its own: it records and plans nothing, and still
// brings back what is away when it is used.
void Runtime::after_fork_in_child() {
  open_ = false;
  unbacked_ = false;
  keeps_producers_ = false;
  Draw::after_fork_in_child();
  device_->after_fork_in_child();
  if (disk_) disk_->after_fork_in_child();
  device_->set_capacity(SIZE_MAX);
  executor_.unload();
  // Of a GPU the fork has waited for nothing: what other threads were making is not made here.
  replays_running_ = thread_state().replays;
  for (const auto& storage : table_.all()) storage->replaying &= replays_running_ > 0;
  threads_in_ops_ = thread_state().depth > 0 ? 1 : 0;
  threads_waiting_ = threads_waiting_in_ops_ = 0;
  mutex_.unlock();
}

}  // namespace chameleon
