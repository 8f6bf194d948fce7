#include "op_info.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "sequence.h"

namespace chameleon {

namespace {

// Ops that read and write no data of their inputs, whatever kernel runs. A longer list gains little; a wrong entry
// would leave an input away while a kernel reads it.
const std::unordered_set<std::string_view> kViews = {
    "aten::view",      "aten::_unsafe_view", "aten::as_strided", "aten::t",           "aten::transpose",
    "aten::permute",   "aten::expand",       "aten::expand_as",  "aten::slice",       "aten::select",
    "aten::unsqueeze", "aten::squeeze",      "aten::detach",     "aten::alias",       "aten::split",
    "aten::chunk",     "aten::narrow",       "aten::unbind",     "aten::view_as",     "aten::_reshape_alias",
    "aten::unfold",    "aten::diagonal",     "aten::movedim",    "aten::detach_",     "aten::split_with_sizes",
    "aten::mT",        "aten::numpy_T",      "aten::unflatten",  "aten::result_type",
};

// Only the inputs' shape and dtype matter.
const std::unordered_set<std::string_view> kShapeOnly = {
    "aten::empty_like",
    "aten::zeros_like",
    "aten::ones_like",
    "aten::full_like",
    "aten::rand_like",
    "aten::randn_like",
    "aten::new_empty",
    "aten::new_zeros",
    "aten::new_ones",
    "aten::new_empty_strided",
    // What `tensor.data = other` asks of the two before it lets go of the one's bytes.
    "aten::_has_compatible_shallow_copy_type",
};

// In-place ops whose result does not depend on what they find.
const std::unordered_set<std::string_view> kOverwriting = {
    "aten::bernoulli_",  "aten::cauchy_", "aten::exponential_", "aten::fill_",    "aten::geometric_",
    "aten::log_normal_", "aten::normal_", "aten::random_",      "aten::uniform_", "aten::zero_",
};

// Composite ops of many steps, layers or intermediate results, which would hold all that they make until they end: the
// ops inside of them are the step's. Only those that keep no raw pointer between these, but for a held_argument.
// `python -m torture composite` measures which are worth a place here.
const std::unordered_set<std::string_view> kSeenThrough = {
    "aten::lstm",
    "aten::gru",
    "aten::rnn_tanh",
    "aten::rnn_relu",
    "aten::lstm_cell",
    "aten::gru_cell",
    "aten::rnn_tanh_cell",
    "aten::rnn_relu_cell",
    "aten::chain_matmul",
    "aten::linalg_multi_dot",
    "aten::matrix_power",
    "aten::linalg_matrix_power",
    "aten::cov",
    "aten::corrcoef",
    "aten::gradient",
    "aten::trapezoid",
    "aten::trapz",
    "aten::cumulative_trapezoid",
    "aten::diff",
    "aten::quantile",
    "aten::nanquantile",
    "aten::isclose",
    "aten::isfinite",
    "aten::float_power",
    "aten::special_ndtr",
    "aten::histogramdd",
    "aten::combinations",
    "aten::cartesian_prod",
    "aten::linalg_matrix_rank",
    "aten::embedding_bag",
    "aten::stft",
    "aten::istft",
    "aten::fft_fft2",
    "aten::fft_ifft2",
    "aten::fft_rfft2",
    "aten::fft_irfft2",
    "aten::fft_fftn",
    "aten::fft_ifftn",
    "aten::fft_rfftn",
    "aten::fft_irfftn",
    "aten::fft_irfft",
    "aten::fft_hfft",
    "aten::fft_hfft2",
    "aten::fft_ihfft2",
    "aten::fft_hfftn",
    "aten::fft_ihfftn",
    "aten::einsum",
    "aten::kl_div",
    "aten::l1_loss",
    "aten::hinge_embedding_loss",
    "aten::margin_ranking_loss",
    "aten::poisson_nll_loss",
    "aten::cosine_similarity",
    "aten::cosine_embedding_loss",
    "aten::triplet_margin_loss",
    "aten::pairwise_distance",
    "aten::instance_norm",
    "aten::cross_entropy_loss",
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_attention_math",
};

// Ops on tensors whose bytes they leave alone, but which no schema tells from others.
const std::unordered_set<std::string_view> kLeavesBytes = {
    "aten::record_stream", "aten::set_", "aten::is_pinned", "aten::_has_same_storage_numel", "aten::is_set_to",
};

// Collectives in which a rank's own part decides what it gets.
const std::unordered_set<std::string_view> kRooted = {"c10d::broadcast_", "c10d::reduce_", "c10d::gather_"};

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }
bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::mutex registry_mutex;
// Names with their facts; never freed, since threads keep pointers to them.
std::unordered_map<std::string, OpInfo*>& registry() {
  static auto* table = new std::unordered_map<std::string, OpInfo*>();
  return *table;
}
std::vector<std::string>& name_list() {
  static auto* list = new std::vector<std::string>();
  return *list;
}

int32_t number_of(const std::string& name) {  // with registry_mutex
  static auto* numbers = new std::unordered_map<std::string, int32_t>();
  return numbers->try_emplace(name, static_cast<int32_t>(numbers->size())).first->second;
}

OpKind kind_of(std::string_view name) {
  if (starts_with(name, "autograd::engine::evaluate_function: ")) return OpKind::BackwardNode;
  if (starts_with(name, "autograd::") || starts_with(name, "torch::autograd::")) return OpKind::Ignored;
  if (!contains(name, "::")) return OpKind::Ignored;
  return kViews.count(name) ? OpKind::View : OpKind::Op;
}

// Is it made of other ops alone, whatever its inputs?
bool is_composite(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         !handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

// What see_through() has put in the list's place.
std::optional<std::unordered_set<std::string>>& seen_through() {
  static auto* names = new std::optional<std::unordered_set<std::string>>();
  return *names;
}

// Whether its insides are the step's. Packed sequences: the lengths are read at each of the steps, through a pointer
// that is taken once.
void set_kind(OpInfo* info) {
  info->kind = kind_of(info->name);
  info->held_argument = -1;
  info->seeded = false;
  if (!info->handle) return;
  const bool named = seen_through() ? seen_through()->count(info->name) > 0 : kSeenThrough.count(info->name) > 0;
  if (!named || !is_composite(*info->handle)) {
    info->seeded = info->handle->hasTag(at::Tag::nondeterministic_seeded);
    return;
  }
  info->kind = OpKind::SeenThrough;
  if (const auto index = info->handle->schema().argumentIndexWithName("batch_sizes")) info->held_argument = *index;
}

// No schema of c10d says what is written. What is only sent has a name of this kind.
bool is_sent(const c10::Argument& argument, std::string_view op) {
  return starts_with(argument.name(), "input") || op == "c10d::send" || op == "c10d::check_for_nan";
}

void read_arguments(const c10::FunctionSchema& schema, OpInfo* info) {
  const auto& arguments = schema.arguments();
  info->functional = arguments.size() <= 64;
  for (const auto& result : schema.returns()) info->functional &= result.alias_info() == nullptr;
  for (size_t i = 0; i < arguments.size() && i < 64; ++i) {
    if (info->launches && is_sent(arguments[i], info->name)) continue;
    const c10::AliasInfo* alias = arguments[i].alias_info();
    // Batch norm updates running_mean and running_var although no schema says so. A lazy clone takes the DataPtr away.
    const bool hidden = starts_with(arguments[i].name(), "running_") || info->sets_hook || info->launches ||
                        (info->name == "fsdp::all_gather_copy_in" && arguments[i].name() == "all_gather_output");
    // It tells the allocator something, and writes no byte, whatever its schema says.
    const bool records = info->name == "aten::record_stream";
    if ((alias && alias->isWrite() && !records) || hidden) info->written_arguments |= uint64_t{1} << i;
    info->functional &= !hidden && alias == nullptr;
    if (arguments[i].name() == "dropout_p") info->dropout_argument = static_cast<int32_t>(i);
    if (arguments[i].name() == "generator") info->generator_argument = static_cast<int32_t>(i);
    if (arguments[i].is_out()) info->out_arguments |= uint64_t{1} << i;
  }
}

// Does it change its first argument, `self`, and nothing else?
bool changes_self_alone(const c10::FunctionSchema& schema, const OpInfo& info) {
  const auto& arguments = schema.arguments();
  const auto& returns = schema.returns();
  if (info.written_arguments != 1 || info.out_arguments != 0 || arguments[0].name() != "self") return false;
  if (returns.size() != 1 || !returns[0].alias_info() || !returns[0].alias_info()->isWrite()) return false;
  return std::all_of(arguments.begin() + 1, arguments.end(),
                     [](const c10::Argument& argument) { return argument.alias_info() == nullptr; });
}

void read_schema(const std::optional<c10::OperatorName>& operator_name, OpInfo* info) {
  const std::string_view name = info->name;
  info->leaf = info->opaque = true;
  if (name == "c10d::wait") return;  // ours, and the dispatcher does not know it: see collectives.h
  const auto handle =
      operator_name ? c10::Dispatcher::singleton().findSchema(*operator_name) : std::optional<c10::OperatorHandle>();
  // Custom ops may write what their schema does not say; recurrent kernels keep hidden buffers.
  const bool annotated = starts_with(name, "aten::") || starts_with(name, "c10d::") ||
                         starts_with(name, "_c10d_functional") || starts_with(name, "fsdp::");
  info->writes_all = !handle || !annotated || contains(name, "rnn") || contains(name, "lstm") || contains(name, "gru");
  if (!handle) {
    info->launches = false;
    return;
  }
  const auto& returns = handle->schema().returns();
  info->launches &= std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return contains(result.type()->str(), "c10d.Work");
  });
  info->leaf = !handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
               handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
               handle->hasKernelForDispatchKey(c10::DispatchKey::Meta);
  info->opaque = info->leaf || !starts_with(name, "aten::");
  info->handle = new c10::OperatorHandle(*handle);  // never freed, as the info that holds it
  info->sets_hook = name == "aten::_lazy_clone";
  read_arguments(handle->schema(), info);
  if (info->launches && kRooted.count(name) == 0) info->received_arguments = info->written_arguments;
  info->in_place = changes_self_alone(handle->schema(), *info);
  info->overwrites = info->in_place && kOverwriting.count(name) > 0;
}

void number(OpInfo* info) {
  info->name_number = number_of(info->name);
  auto& names = name_list();
  info->id = static_cast<int32_t>(names.size());
  names.push_back(info->name);
  info->hash = hash_text(info->name);
}

void describe(const std::optional<c10::OperatorName>& operator_name, OpInfo* made) {
  made->list_op = contains(made->name, "::_foreach_") || contains(made->name, "::_amp_foreach_") ||
                  contains(made->name, "::_fused_adam") || contains(made->name, "::_fused_sgd");
  made->reads_inputs = kShapeOnly.count(made->name) == 0;
  const bool collective = starts_with(made->name, "c10d::") || starts_with(made->name, "_c10d_functional");
  made->waits = made->name == "c10d::wait" || made->name == "_c10d_functional::wait_tensor";
  made->launches = starts_with(made->name, "c10d::") && !made->waits;
  made->sets = made->name == "aten::set_";
  made->replaces = made->name == "aten::zero_" || made->name == "aten::fill_" || made->name == "aten::copy_";
  made->shows_no_end = collective || kLeavesBytes.count(made->name) > 0;
  made->raw_written_output = contains(made->name, "::empty") || contains(made->name, "new_empty");
  read_schema(operator_name, made);
  set_kind(made);
  made->repeatable = made->leaf && (made->functional || made->in_place) && made->handle;
}

// By name. Never freed: threads and profilers keep pointers to their names.
std::unordered_map<std::string, const c10::FunctionSchema*>& regions() {
  static auto* schemas = new std::unordered_map<std::string, const c10::FunctionSchema*>();
  return *schemas;
}

constexpr const char* kRegion = "region";  // their overload's name: no op of the dispatcher is taken for one

OpInfo* look_up(const char* name, const char* overload, const std::optional<c10::OperatorName>& operator_name) {
  std::string key = name;
  if (overload && *overload) key.append(".").append(overload);
  std::lock_guard<std::mutex> lock(registry_mutex);
  OpInfo*& info = registry()[key];
  if (info) return info;
  auto* made = new OpInfo();
  made->name = name;
  const bool region = overload && std::strcmp(overload, kRegion) == 0 && regions().count(name) > 0;
  made->kind = region ? OpKind::Op : kind_of(made->name);
  if (region) {
    made->leaf = made->opaque = true;
    made->written_arguments = 2;
    number(made);
  } else if (made->kind == OpKind::Op || made->kind == OpKind::View) {
    describe(operator_name, made);
    number(made);
  }
  info = made;
  return info;
}

const OpInfo& backward_node() {
  static const auto* info = [] {
    auto* node = new OpInfo();
    node->kind = OpKind::BackwardNode;
    return node;
  }();
  return *info;
}

}  // namespace

const OpInfo& OpInfo::ignored() {
  static const OpInfo info;
  return info;
}

const OpInfo& OpInfo::add_in_place() {
  static const OpInfo& info = *look_up("aten::add_", "Tensor", c10::OperatorName("aten::add_", "Tensor"));
  return info;
}

const OpInfo& OpTable::of(const at::RecordFunction& function) {
  // The engine wraps a node twice: in a plain frame, and in one that carries the node's sequence number.
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) return backward_node();
  const char* name = function.name();
  // Names of autograd nodes and custom Functions are strings inside the RecordFunction: their address says nothing.
  const OpKind kind = std::strncmp(name, "aten::", 6) == 0 ? OpKind::Op : kind_of(name);
  if (kind == OpKind::Ignored) return OpInfo::ignored();
  if (kind == OpKind::BackwardNode) return backward_node();
  // A dispatcher op's name points into its schema, one per overload; checked, since nothing promises it.
  OpInfo*& info = by_pointer_[name];
  if (!info || std::strcmp(info->name.c_str(), name) != 0)
    info = look_up(name, function.overload_name(), function.operator_name());
  return *info;
}

int32_t name_number(const std::string& name) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  return number_of(name);
}

const c10::FunctionSchema& schema_of_region(const std::string& name) {
  static const auto* form =
      new c10::FunctionSchema(torch::jit::parseSchema("chameleon::region(Tensor[] read, Tensor(a!)[] written) -> ()"));
  std::lock_guard<std::mutex> lock(registry_mutex);
  const c10::FunctionSchema*& schema = regions()[name];
  if (!schema) schema = new c10::FunctionSchema(form->cloneWithName(name, kRegion));
  return *schema;
}

void see_through(std::optional<std::unordered_set<std::string>> names) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  seen_through() = std::move(names);
  for (auto& [key, info] : registry()) {
    if (info) set_kind(info);
  }
}

std::vector<std::string> names_seen_through() {
  std::lock_guard<std::mutex> lock(registry_mutex);
  if (seen_through()) return {seen_through()->begin(), seen_through()->end()};
  return {kSeenThrough.begin(), kSeenThrough.end()};
}

void lock_op_registry() { registry_mutex.lock(); }
void unlock_op_registry() { registry_mutex.unlock(); }

std::vector<std::string> op_names() {
  std::lock_guard<std::mutex> lock(registry_mutex);
  return name_list();
}

}  // namespace chameleon
