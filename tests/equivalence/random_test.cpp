// Random layouts of random models against the single process and the loop in double. A few in CI;
// TRIREME_LAYOUTS says how many.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "base/math.h"
#include "plan/placement.h"
#include "support/backends.h"
#include "support/forwarding_device.h"
#include "support/odd_models.h"
#include "support/reference_run.h"
#include "support/rig.h"

namespace trireme::testing {
namespace {

/// Replaces what RC_PARAMS asks of cheap properties; one case here is a few training runs.
const int kSeeded = [] {
  const char* cases = std::getenv("TRIREME_LAYOUTS");
  const std::string params = "seed=2026 max_success=" + std::string(cases ? cases : "12");
  return ::setenv("RC_PARAMS", params.c_str(), 1);
}();

// Where the bytes are ------------------------------------------------------------------------

/// Sees that no launch touches a byte outside the arenas.
class FencedDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  std::byte* allocate(device::Space space, int64_t bytes) override {
    std::byte* const base = device_.allocate(space, bytes);
    arenas_.push_back({base, base + bytes});
    return base;
  }
  void launch(device::StreamKind stream, const ops::OpCall& call) override {
    for (int i = 0; i < call.num_args; ++i) {
      const TensorView& view = call.args[static_cast<size_t>(i)];
      if (view.present()) expect_inside(view.data, view.size() * size_of(view.dtype));
    }
    if (call.workspace != nullptr) expect_inside(call.workspace, call.workspace_bytes);
    device_.launch(stream, call);
  }
  void launch(device::StreamKind stream, const comm::CommCall& call) override {
    for (const comm::CommPiece& piece : call.pieces) {
      expect_inside(piece.send, piece.count * size_of(call.dtype));
      expect_inside(piece.recv, piece.count * size_of(call.dtype));
    }
    device_.launch(stream, call);
  }
  void copy(device::StreamKind stream, void* to, const void* from, int64_t bytes) override {
    expect_inside(to, bytes);
    expect_inside(from, bytes);
    device_.copy(stream, to, from, bytes);
  }

 private:
  struct Arena {
    const std::byte* begin;
    const std::byte* end;
  };
  void expect_inside(const void* data, int64_t bytes) const {
    const auto* const begin = static_cast<const std::byte*>(data);
    for (const Arena& arena : arenas_) {
      if (begin >= arena.begin && begin + bytes <= arena.end) return;
    }
    check(false, "{} bytes are touched outside the arenas", bytes);
  }
  std::vector<Arena> arenas_;
};

/// Bytes by owner at a moment, or of what persists.
using Rows = std::map<std::string, int64_t>;

/// The table that buffers and lives of a space give at every moment of a program.
std::vector<Rows> moments(const plan::Program& program, plan::Space space) {
  std::vector<Rows> found;
  std::set<int32_t> alive;
  for (const plan::Entry& entry : program.schedule) {
    for (const plan::BufferAccess& access : entry.accesses) {
      if (access.acquire) alive.insert(access.buffer);
    }
    Rows& rows = found.emplace_back();
    for (int32_t b : alive) {
      const plan::Buffer& buffer = program.buffers[static_cast<size_t>(b)];
      if (buffer.space == space) rows[std::string(name_of(buffer.owner))] += buffer.bytes;
    }
    for (const plan::BufferAccess& access : entry.accesses) {
      if (access.release) alive.erase(access.buffer);
    }
  }
  return found;
}

int64_t sum(const Rows& rows) {
  int64_t total = 0;
  for (const auto& [owner, bytes] : rows) total += bytes;
  return total;
}

/// What some program's transfers are staged in, at most.
int64_t most_staging(const plan::Plan& plan, plan::Space space) {
  int64_t most = 0;
  for (const plan::Program* program : plan.programs()) {
    int64_t bytes = 0;
    for (const plan::Buffer& buffer : program->buffers) {
      if (buffer.owner == plan::Owner::staging && buffer.space == space) bytes += buffer.bytes;
    }
    most = std::max(most, bytes);
  }
  return most;
}

/// Each row of the printed table is what the buffers are, at one of the fullest moments; staging
/// may lie beside those.
void check_table(const plan::Plan& plan, const plan::ArenaBytes& allocated) {
  for (const plan::Space space : {plan::Space::device, plan::Space::pinned}) {
    Rows printed;
    for (const plan::MemoryRow& row : plan::memory_table(plan)) {
      if (row.space == space) printed[row.owner] += row.bytes;
    }
    RC_ASSERT(sum(printed) == allocated[static_cast<size_t>(space)]);
    printed.erase("alignment and packing");
    const int64_t staging = std::exchange(printed["staging"], 0);
    std::erase_if(printed, [](const auto& row) { return row.second == 0; });
    RC_ASSERT(staging <= most_staging(plan, space));
    Rows persistent;
    for (const plan::Buffer& buffer : plan.state.buffers) {
      if (buffer.space == space && buffer.bytes > 0) {
        persistent[std::string(name_of(buffer.owner))] += round_up(buffer.bytes, 256);
      }
    }
    int64_t fullest = 0;
    std::vector<Rows> candidates;
    for (const plan::Program* program : plan.programs()) {
      for (Rows& rows : moments(*program, space)) {
        if (sum(rows) > fullest) candidates.clear();
        fullest = std::max(fullest, sum(rows));
        if (sum(rows) == fullest) candidates.push_back(std::move(rows));
      }
    }
    const bool known = std::any_of(candidates.begin(), candidates.end(), [&](const Rows& rows) {
      Rows all = persistent;
      for (const auto& [owner, bytes] : rows) all[owner] += bytes;
      if (std::exchange(all["staging"], 0) > staging) return false;
      std::erase_if(all, [](const auto& row) { return row.second == 0; });
      return all == printed;
    });
    RC_ASSERT(known);
  }
}

// Layouts ------------------------------------------------------------------------------------

constexpr int kSamplesPerStep = 12;

template <typename T>
T one_of(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}

data::Dataset some_samples(int64_t vocab) {
  std::vector<int64_t> lengths;
  const int last_step = *rc::gen::inRange(1, kSamplesPerStep + 1);
  for (int i = 0; i < kSamplesPerStep + last_step; ++i) {
    lengths.push_back(*rc::gen::inRange(1, 34));
  }
  return random_dataset(lengths, vocab, static_cast<uint64_t>(*rc::gen::inRange(0, 1000)));
}

/// The single process that every layout is compared with.
RigOptions single_process(const model::ModelGraph& model, const data::Dataset& dataset) {
  RigOptions options;
  options.model = model;
  options.dataset = &dataset;
  options.gradients = true;
  options.config.optim = config::Optimizer::sgd;
  options.config.learning_rate = 0.02;
  options.config.lr_scheduler_type = config::Scheduler::constant;
  options.config.weight_decay = 0.01;
  options.config.num_train_epochs = 2;
  options.config.per_device_train_batch_size = kSamplesPerStep;
  options.source = [] { return std::make_unique<RoughSource>(5); };
  return options;
}

void choose_layout(RigOptions& options) {
  config::RunConfig& c = options.config;
  options.ranks = std::min(*rc::gen::inRange(1, 5), max_ranks());
  if (options.ranks == 3 && max_ranks() < 3) options.ranks = 2;
  c.gradient_accumulation_steps =
      one_of({1, options.ranks == 4 ? 3 : 2, kSamplesPerStep / options.ranks});
  c.per_device_train_batch_size = kSamplesPerStep / (options.ranks * c.gradient_accumulation_steps);
  c.zero.stage = *rc::gen::inRange(0, 4);
  c.zero.overlap_comm = *rc::gen::arbitrary<bool>();
  c.reduce_at =
      one_of({config::ReduceAt::automatic, config::ReduceAt::micro, config::ReduceAt::boundary});
  c.debug_poison = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) c.zero.max_live_parameters = one_of({1, 3000, 20000, 1 << 30});
  if (*rc::gen::arbitrary<bool>()) c.zero.prefetch_bucket_size = one_of({0, 1, 10000, 1 << 30});
  if (*rc::gen::arbitrary<bool>()) c.zero.max_reuse_distance = one_of({0, 5000, 1 << 30});
  if (*rc::gen::arbitrary<bool>()) c.zero.sub_group_size = one_of({1000, 77, 1 << 20});
  c.zero.param_persistence_threshold = one_of({0, 50, 400});
  const int64_t blocks = options.model.num_units() - 2;
  int64_t left = blocks;
  while (left > 0 && *rc::gen::arbitrary<bool>()) {
    const int64_t count = *rc::gen::inRange<int64_t>(1, left + 1);
    c.recompute.push_back({static_cast<config::Recompute>(*rc::gen::inRange(0, 7)), count});
    left -= count;
  }
  if (*rc::gen::inRange(0, 4) == 0) options.device.delay_collectives = std::chrono::milliseconds(1);
}

std::string words(const RigOptions& options) {
  const config::RunConfig& c = options.config;
  std::string text = fmt::format(
      "{} ranks, stage {}, accumulation {} x {}, reduce_at {}, overlap {}, persistence {}",
      options.ranks, c.zero.stage, c.gradient_accumulation_steps, c.per_device_train_batch_size,
      static_cast<int>(c.reduce_at), c.zero.overlap_comm, c.zero.param_persistence_threshold);
  for (const config::RecomputeSpan& span : c.recompute) {
    text += fmt::format(", recompute {}:{}", static_cast<int>(span.level), span.blocks);
  }
  const auto optional = [&](const char* name, const std::optional<int64_t>& value) {
    if (value) text += fmt::format(", {} {}", name, *value);
  };
  optional("live", c.zero.max_live_parameters);
  optional("prefetch", c.zero.prefetch_bucket_size);
  optional("reuse", c.zero.max_reuse_distance);
  optional("tile", c.zero.sub_group_size);
  return text;
}

/// Some gradients are sums that cancel, and nothing but rounding.
double gradient_difference(const Tensors& a, const Tensors& b) {
  return relative_difference(a, b, 0.01);
}

Tensors narrowed(const DoubleTensors& wide) {
  Tensors narrow;
  for (const auto& [name, tensor] : wide) narrow[name].assign(tensor.begin(), tensor.end());
  return narrow;
}

/// Trains under the layout, and compares with the single process and its table of memory.
void expect_the_single_step(RigOptions& options, const RigResult& expected) {
  RC_LOG(words(options));
  std::mutex mutex;
  plan::Plan plan;
  options.after_step = [&](train::Session& session, int rank, int64_t step,
                           const train::ControlValues&) {
    const std::lock_guard lock(mutex);
    if (rank == options.ranks - 1 && step == 0) plan = session.plan();
  };
  options.wrap = [](int, device::Device& device) { return std::make_unique<FencedDevice>(device); };
  const RigResult result = train(options);
  RC_ASSERT(gradient_difference(result.gradients, expected.gradients) < 2e-5);
  RC_ASSERT(relative_difference(result.masters, expected.masters) < 2e-5);
  RC_ASSERT(result.exported == result.masters);
  RC_ASSERT(result.planned == result.allocated);
  RC_ASSERT(result.steps.size() == expected.steps.size());
  for (size_t s = 0; s < result.steps.size(); ++s) {
    for (ops::Control field : {ops::Control::loss, ops::Control::grad_norm}) {
      const double reference = train::value(expected.steps[s], field);
      const double found = train::value(result.steps[s], field);
      const bool both_nothing = std::isnan(found) && std::isnan(reference);  // no token trained
      RC_ASSERT(both_nothing || std::abs(found - reference) <= 1e-5 * reference);
    }
  }
  check_table(plan, result.allocated);
}

TEST(RandomLayouts, TrainTheStepOfTheSingleProcess) {
  EXPECT_TRUE(rc::check("any layout equals the single process", [] {
    TinyModel spec;
    spec.family = one_of(
        {model::Family::qwen2, model::Family::llama, model::Family::qwen3, model::Family::mistral});
    if (spec.family == model::Family::mistral) spec.window = *rc::gen::inRange(0, 12);
    spec.hidden = *rc::gen::inRange(3, 50);
    spec.layers = *rc::gen::inRange(1, 6);
    spec.kv_heads = *rc::gen::inRange(1, 4);
    spec.heads = spec.kv_heads * *rc::gen::inRange(1, 4);
    spec.head_dim = 8 * *rc::gen::inRange(1, 4);
    spec.ffn = *rc::gen::inRange(1, 60);
    spec.vocab = *rc::gen::inRange(2, 90);
    spec.tied = *rc::gen::arbitrary<bool>();
    const data::Dataset dataset = some_samples(spec.vocab);
    RigOptions options = single_process(tiny_model(spec), dataset);
    const RigResult expected = train(options);
    choose_layout(options);
    expect_the_single_step(options, expected);
  }));
}

TEST(RandomModels, TrainAsTheLoopInDouble) {
  EXPECT_TRUE(rc::check("any graph trains as its derivatives say", [] {
    const auto seed = static_cast<uint32_t>(*rc::gen::inRange(0, 100000));
    const int num_nodes = *rc::gen::inRange(2, 10);
    const model::ModelGraph model = random_model(seed, num_nodes);
    const data::Dataset dataset = some_samples(model.config.vocab_size);
    RigOptions options = single_process(model, dataset);
    options.config.max_grad_norm = 1;
    const RigResult expected = train(options);
    const ReferenceRun reference = train_in_double(options);
    RC_ASSERT(gradient_difference(expected.gradients, narrowed(reference.gradients)) < 1e-4);
    RC_ASSERT(relative_difference(expected.masters, reference.masters) < 1e-4);
    choose_layout(options);
    expect_the_single_step(options, expected);
  }));
}

}  // namespace
}  // namespace trireme::testing
