#include "storage_access.h"

#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "marks.h"

#if __has_include(<c10/core/StorageMaterializer.h>)
#define CHAMELEON_HAS_MATERIALIZER 1
#else
#define CHAMELEON_HAS_MATERIALIZER 0
#endif

#if !CHAMELEON_HAS_MATERIALIZER
// torch 2.11 and 2.12 can set the flag that makes accesses raise, but not clear it: the member is private. Explicit
// instantiation may name private members.
namespace {
template <auto Member>
struct ExposeThrowFlag {
  friend bool& throw_flag(c10::StorageImpl& impl) { return impl.*Member; }
};
bool& throw_flag(c10::StorageImpl& impl);
template struct ExposeThrowFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
}  // namespace
#endif

namespace chameleon::access {

namespace {

[[maybe_unused]] Hook hook = nullptr;
std::atomic<bool> no_hook{!CHAMELEON_HAS_MATERIALIZER};
Deleter away_deleter = nullptr;

void delete_away(void* context) { away_deleter(context); }

void raise_on_access(Storage& storage, const std::string& message) {
  storage.impl->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

void stop_raising(Storage& storage) {
#if CHAMELEON_HAS_MATERIALIZER
  storage.impl->clear_data_ptr_access_error_msg_();
#else
  throw_flag(*storage.impl) = false;  // the next set_data_ptr_noswap refreshes the guard
#endif
}

void set_pointer(Storage& storage, void* data, void* context, c10::DeleterFnPtr deleter) {
  c10::DataPtr& pointer = storage.impl->_mutable_data_ptr_no_checks();
  const c10::Device device = pointer.device();
  pointer.release_context();
  storage.impl->set_data_ptr_noswap(c10::DataPtr(data, context, deleter, device));
}

}  // namespace

void set_hook(Hook h) { hook = h; }
void set_away_deleter(Deleter deleter) { away_deleter = deleter; }
bool has_hook() { return !no_hook.load(std::memory_order_relaxed); }
void pretend_no_hook(bool on) { no_hook = on || !CHAMELEON_HAS_MATERIALIZER; }

bool dying(const Storage& storage) { return storage.weak && storage.weak->use_count() == 0; }

bool intact(const Storage& storage) {
  if (storage.ghost) return true;  // nothing but us knows its block
  if (!storage.impl || storage.weak->use_count() == 0) return false;
  if (storage.unbacked) return true;  // there is no pointer that anything could take
  const c10::DataPtr& pointer = storage.impl->_mutable_data_ptr_no_checks();
  return storage.block && storage.residency != Residency::Returning
             ? pointer.get() == storage.block && pointer.get_deleter() == storage.block_deleter
             : pointer.get_context() == &storage && pointer.get_deleter() == &delete_away;
}

namespace {
std::vector<c10::intrusive_ptr<c10::StorageImpl>>& kept() {
  static thread_local std::vector<c10::intrusive_ptr<c10::StorageImpl>> references;
  return references;
}
}  // namespace

// A storage that Python knows by an object of its own would take the GIL here, under the core's lock: for those (few)
// the check alone must do.
bool keep(Storage& storage) {
  if (storage.ghost) return true;
  if (!intact(storage)) return false;
  if (storage.impl->pyobj_slot()->load_pyobj() != nullptr) return true;
  // Where that throws there is no reference yet, which would end under the core's lock.
  if (kept().size() == kept().capacity()) kept().reserve(2 * kept().size() + 16);
  auto reference = storage.weak->lock();
  if (!reference) return false;
  kept().push_back(std::move(reference));
  return intact(storage);
}

void release_kept() {
  if (kept().empty()) return;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> references;
  references.swap(kept());
}

// Without the hook, all there is to see is that numpy and shared memory make a storage unresizable.
bool movable(const Storage& storage) {
  return intact(storage) && (storage.ghost || has_hook() || storage.impl->resizable());
}

Storage* away_storage(c10::StorageImpl* impl) { return away_storage(impl->_mutable_data_ptr_no_checks()); }

Storage* away_storage(const c10::DataPtr& pointer) {
  return pointer.get_deleter() == &delete_away ? static_cast<Storage*>(pointer.get_context()) : nullptr;
}

// One address each, for as long as it lives: torch.save tells storages apart by it.
void have_mark(Storage& storage) {
  if (!storage.ghost && !storage.mark) storage.mark = marks::take(storage.bytes);
}

void mark_away(Storage& storage) {
  if (storage.ghost) return;
  if (std::exchange(storage.shown, false)) marks::hide(storage.mark, storage.bytes);
  set_pointer(storage, storage.mark, &storage, &delete_away);
  if (has_hook()) {
    arm(storage);
  } else if (!storage.bucket) {  // see Note [DDP before torch 2.13]
    raise_on_access(storage,
                    "Chameleon Lab: this tensor's storage (" + std::to_string(storage.bytes) +
                        " bytes) is away, on the host, and torch before 2.13 gives no way to bring it back from a raw "
                        "access. Use a torch op on it first (t.clone()), or call session.restore(t).");
  }
}

void forbid(Storage& storage) {
  if (has_hook() || storage.ghost || storage.bucket) return;
  raise_on_access(storage,
                  "Chameleon Lab: this tensor's storage (" + std::to_string(storage.bytes) +
                      " bytes) is leaving for the host, and torch before 2.13 gives no way to stop it at a raw access. "
                      "Use a torch op on it first (t.clone()), or call session.restore(t).");
}

void allow(Storage& storage) {
  if (has_hook() || storage.ghost || storage.failed || !storage.impl || dying(storage)) return;
  stop_raising(storage);
  if (!intact(storage)) return;  // its DataPtr was moved elsewhere
  set_pointer(storage, storage.block, storage.block, storage.block_deleter);
}

void mark_resident(Storage& storage) {
  if (storage.ghost) return;
  if (!has_hook()) stop_raising(storage);
  if (storage.escaped) disarm(storage);
  set_pointer(storage, storage.block, storage.block, storage.block_deleter);
}

void mark_failed(Storage& storage, const std::string& message) {
  raise_on_access(storage, message);
  disarm(storage);
  storage.failed = true;
}

void mark_lost(Storage& storage, const std::string& message) {
  disarm(storage);
  set_pointer(storage, nullptr, nullptr, nullptr);
  raise_on_access(storage, message);
}

void clear_failed(Storage& storage) {
  storage.failed = false;
  stop_raising(storage);
  if (storage.residency != Residency::Resident) mark_away(storage);
}

bool show_at_mark(Storage& storage, SwapTarget& target) {
  const bool away = storage.residency == Residency::Away || storage.residency == Residency::Returning || storage.blank;
  const void* bytes = away ? storage.host.data : storage.block;
  const auto fill = [&](void* to) {
    if (away) return target.read_now(to, bytes, storage.bytes);
    std::memcpy(to, bytes, storage.bytes);
    return true;
  };
  storage.shown = storage.shown || (bytes && marks::show(storage.mark, storage.bytes, fill));
  return storage.shown;
}

void give_mark_back(Storage& storage) {
  if (!storage.mark) return;
  if (storage.shown) marks::hide(storage.mark, storage.bytes);
  marks::give_back(storage.mark);
}

void arm([[maybe_unused]] Storage& storage) {
#if CHAMELEON_HAS_MATERIALIZER
  if (has_hook() && !storage.ghost && !storage.impl->has_materializer()) storage.impl->set_materializer(hook);
#endif
}

bool armed([[maybe_unused]] const Storage& storage) {
#if CHAMELEON_HAS_MATERIALIZER
  return has_hook() && !storage.ghost && storage.impl && storage.impl->has_materializer();
#else
  return false;
#endif
}

void disarm([[maybe_unused]] Storage& storage) {
#if CHAMELEON_HAS_MATERIALIZER
  if (!storage.ghost && storage.impl->has_materializer()) storage.impl->clear_materializer();
#endif
}

}  // namespace chameleon::access
