#include "plan/plan.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/hash.h"
#include "base/math.h"
#include "config/parse.h"
#include "model/backward_needs.h"
#include "plan/placement.h"
#include "plan/print.h"
#include "plan/recomputation.h"
#include "plan/verify.h"

namespace trireme::plan {

namespace {

using config::Recompute;
using config::RunConfig;
using model::ModelGraph;

/// Parameters of the largest unit that repeats (a block), else of the largest unit.
int64_t unit_elements(const ModelGraph& model) {
  std::vector<int64_t> by_kind(model.kinds.size(), 0);
  std::vector<int> members(model.kinds.size(), 0);
  for (const model::Unit& unit : model.units) {
    int64_t size = 0;
    for (const auto& slot : unit.parameters) {
      for (int id : slot) size += model.parameters[static_cast<size_t>(id)].size();
    }
    by_kind[static_cast<size_t>(unit.kind)] = size;
    ++members[static_cast<size_t>(unit.kind)];
  }
  int64_t best = 0;
  for (size_t k = 0; k < by_kind.size(); ++k) {
    if (members[k] > 1) best = std::max(best, by_kind[k]);
  }
  return best > 0 ? best : *std::max_element(by_kind.begin(), by_kind.end());
}

/// Tokens per chunk of the loss: as many as the bytes of logits allow, and enough for a matrix
/// product to run at speed; chunks of about one size.
int64_t loss_chunk(const ModelGraph& model, DType compute, const ops::Extent& capacity,
                   int64_t logits_bytes) {
  constexpr int64_t kFewestRows = 256;
  const int64_t rows = logits_bytes / (size_of(compute) * model.dims[model::Dim::vocab]);
  const int64_t most = std::max(kFewestRows, rows / 64 * 64);
  const int64_t chunks = std::max<int64_t>(1, ceil_div(capacity.tokens, most));
  const int64_t even = round_up(ceil_div(capacity.tokens, chunks), 64);
  return std::max<int64_t>(1, std::min(even, capacity.tokens));
}

void check_tokens(const ops::Extent& capacity) {
  if (capacity.tokens <= INT32_MAX) return;
  throw ConfigError(fmt::format(
      "a micro-batch may be of {} tokens, and {} are the most: lower per_device_train_batch_size, "
      "per_device_eval_batch_size or max_seq_length",
      capacity.tokens, INT32_MAX));
}

void check_shard_group(const RunConfig& config, int64_t data_ranks) {
  const int64_t size = config.shard_group_size;
  if (size == 0) return;
  if (config.zero.stage == 0) {
    throw ConfigError(
        "shard_group_size", std::to_string(size),
        "nothing is sharded at zero_stage 0; leave it out, or choose stage 1, 2 or 3");
  }
  if (data_ranks % size != 0) {
    throw ConfigError("shard_group_size", std::to_string(size),
                      fmt::format("the {} data ranks must be a multiple of it", data_ranks));
  }
}

DType type_of(config::Precision precision) {
  return precision == config::Precision::bfloat16 ? DType::bf16 : DType::f32;
}

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : request_(request), config_(*request.config) {}

  Plan run() {
    make_mesh();
    TensorPart part = tensor_part(*request_.model, plan_.mesh.layout.tp, plan_.mesh.at.tp);
    plan_.mesh.kv_replicas = part.kv_replicas;
    check_tokens(request_.capacity);
    plan_.pipeline = make_pipeline(config_, *request_.model, plan_.mesh, request_.capacity);
    plan_.capacity = request_.capacity;
    plan_.rope_positions = request_.rope_positions;
    plan_.compute = config_.bf16 ? DType::bf16 : DType::f32;
    plan_.sharding = resolve_sharding(config_, part.model, plan_.mesh);
    plan_.groups =
        make_groups({&part, plan_.pipeline.own_units(), plan_.sharding.shard_ranks,
                     plan_.sharding.stage == 3 ? plan_.sharding.persistence_threshold : -1});
    plan_.model = std::move(part.model);
    const bool has_moments = config_.optim == config::Optimizer::adamw;
    plan_.state = make_state({&plan_.model, &plan_.mesh, &plan_.groups, &plan_.sharding,
                              plan_.compute, type_of(config_.master_dtype),
                              has_moments ? type_of(config_.moment_dtype) : DType::f32,
                              config_.optim, request_.schedule_entries, request_.rope_positions});
    fill_context();
    lower();
    place();
    verify();
    plan_.hash = hash();
    return std::move(plan_);
  }

 private:
  void make_mesh() {
    plan_.mesh.layout = config::layout_of(config_, request_.world_size);
    check_shard_group(config_, plan_.mesh.layout.dp);
    plan_.mesh.at = mesh::coordinates_of(plan_.mesh.layout, request_.rank);
    plan_.mesh.chunks = static_cast<int>(config_.virtual_pipeline_size);
    plan_.mesh.tied_ends =
        request_.model->config.tie_word_embeddings && plan_.mesh.layout.pp > 1;
  }

  void fill_context() {
    context_.model = &plan_.model;
    context_.mesh = &plan_.mesh;
    context_.pipeline = &plan_.pipeline;
    context_.groups = &plan_.groups;
    context_.sharding = &plan_.sharding;
    context_.state = &plan_.state;
    context_.compute = plan_.compute;
    context_.optimizer = config_.optim;
    context_.seed = static_cast<uint64_t>(config_.seed);
    context_.optimizer_attributes.beta1 = config_.adam_beta1;
    context_.optimizer_attributes.beta2 = config_.adam_beta2;
    context_.optimizer_attributes.eps = config_.adam_epsilon;
    context_.optimizer_attributes.weight_decay = config_.weight_decay;
    context_.optimizer_attributes.max_grad_norm = config_.max_grad_norm;
    context_.capacity = plan_.capacity;
    context_.op_sizing = request_.op_sizing;
    context_.comm_sizing = request_.comm_sizing;
    make_variants();
  }

  /// Units that run the same phases share a variant.
  void make_variants() {
    int64_t blocks = plan_.model.num_units() - 2;
    const auto levels = recompute_levels(config_, std::max<int64_t>(blocks, 0));
    struct Key {
      int kind;
      std::vector<bool> trainable;
      bool backward;
      bool input_gradient;
      Recompute level;
      auto operator<=>(const Key&) const = default;
    };
    const std::vector<model::AdjointRequest> needs = model::backward_needs(plan_.model);
    std::map<Key, int> known;
    context_.variant_of_unit.assign(plan_.model.units.size(), -1);
    for (int u : plan_.pipeline.own_units()) {
      const model::AdjointRequest& need = needs[static_cast<size_t>(u)];
      Key key{plan_.model.units[static_cast<size_t>(u)].kind, need.trainable, false,
              need.input_gradient, Recompute::none};
      key.backward = key.input_gradient ||
                     std::count(key.trainable.begin(), key.trainable.end(), true) > 0;
      if (u >= 1 && u <= blocks) key.level = levels[static_cast<size_t>(u) - 1];
      const auto [at, fresh] = known.try_emplace(key, static_cast<int>(context_.variants.size()));
      if (fresh) {
        PhaseRequest phase{&plan_.model,
                           key.kind,
                           key.trainable,
                           key.backward,
                           key.input_gradient,
                           plan_.pipeline.kind == PipelineSchedule::zero_bubble,
                           key.level,
                           plan_.compute,
                           plan_.capacity,
                           loss_chunk(plan_.model, plan_.compute, plan_.capacity,
                                      request_.loss_chunk_bytes),
                           request_.op_sizing,
                           request_.comm_sizing};
        context_.variants.push_back(build_phases(phase));
      }
      context_.variant_of_unit[static_cast<size_t>(u)] = at->second;
    }
    const auto& parameters = plan_.model.parameters;
    const bool trains = std::any_of(parameters.begin(), parameters.end(),
                                    [](const auto& parameter) { return parameter.trainable; });
    if (!trains) throw ConfigError("trainable", "nothing", "at least one tensor must be trained");
  }

  void lower() {
    for (int accumulation : request_.accumulations) {
      plan_.train.emplace(accumulation, lower_train(context_, accumulation));
    }
    plan_.flush = lower_flush(context_);
    if (request_.evaluates) {
      plan_.evaluate_begin = lower_evaluate_begin(context_);
      plan_.evaluate = lower_evaluate(context_);
      plan_.evaluate_end = lower_evaluate_end(context_);
    }
    plan_.load = lower_load(context_);
    plan_.load_weights = lower_load_weights(context_);
    plan_.save = lower_save(context_);
    plan_.gradients = lower_gradients(context_);
    plan_.export_weights = lower_export(context_);
  }

  void place() {
    std::vector<Program*> all;
    for (const Program* program : plan_.programs()) all.push_back(const_cast<Program*>(program));
    plan_.arenas = place_buffers(all);
  }

  void verify() const {
    for (const Program* program : plan_.programs()) {
      const auto fault = find_fault(*program, plan_.arenas);
      check(!fault, "{}", fault.value_or(""));
    }
  }

  bool hands_out(const Program* program) const {
    return program == &plan_.export_weights || program == &plan_.save ||
           program == &plan_.gradients;
  }

  uint64_t hash() const {
    std::string text = fmt::format("arenas {} {}\n", plan_.arenas[0], plan_.arenas[1]);
    for (const Program* program : plan_.programs()) {
      if (hands_out(program)) continue;  // data rank 0 the weights, one copy the state
      text += print_program(*program, plan_.model, {.addresses = true});
    }
    return hash64(text);
  }

  const PlanRequest& request_;
  const RunConfig& config_;
  Plan plan_;
  LoweringContext context_;
};

}  // namespace

std::vector<const Program*> Plan::programs() const {
  std::vector<const Program*> all;
  for (const auto& [accumulation, program] : train) all.push_back(&program);
  all.push_back(&flush);
  if (!evaluate.schedule.empty()) {
    all.insert(all.end(), {&evaluate_begin, &evaluate, &evaluate_end});
  }
  all.insert(all.end(), {&load, &load_weights, &save, &gradients, &export_weights});
  return all;
}

Plan make_plan(const PlanRequest& request) { return Planner(request).run(); }

Sharding resolve_sharding(const RunConfig& config, const ModelGraph& model, const Mesh& mesh) {
  const config::ZeroConfig& zero = config.zero;
  const int64_t unit = unit_elements(model);
  Sharding sharding;
  sharding.stage = zero.stage;
  sharding.shard_ranks = mesh.layout.shard_ranks();
  sharding.shard_rank = mesh.at.dp % sharding.shard_ranks;
  sharding.replicas = mesh.layout.dp / sharding.shard_ranks;
  sharding.replica = mesh.at.dp / sharding.shard_ranks;
  sharding.reduce_each_micro_batch = config.reduce_at == config::ReduceAt::automatic
                                         ? zero.stage >= 2
                                         : config.reduce_at == config::ReduceAt::micro;
  if (config.reduce_dtype == config::Precision::bfloat16) sharding.gradient_wire = DType::bf16;
  sharding.overlap = zero.overlap_comm;
  if (zero.max_live_parameters) {
    sharding.weight_slots = std::max<int64_t>(1, ceil_div(*zero.max_live_parameters, unit));
  }
  if (zero.prefetch_bucket_size) sharding.prefetch = ceil_div(*zero.prefetch_bucket_size, unit);
  sharding.reuse_distance = zero.max_reuse_distance;
  sharding.reduce_bucket = zero.reduce_bucket_size;
  sharding.optimizer_tile = zero.sub_group_size;
  sharding.persistence_threshold = zero.param_persistence_threshold;
  return sharding;
}

namespace {

/// Adds what transfers are staged in where none of `buffers` lies: they run beside the computation.
void add_staging_beside(const Program& program, Space space, std::vector<int32_t>* buffers) {
  const auto overlaps = [&](const Buffer& a, int32_t other) {
    const Buffer& b = program.buffers[static_cast<size_t>(other)];
    return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  };
  for (int32_t b = 0; b < std::ssize(program.buffers); ++b) {
    const Buffer& buffer = program.buffers[static_cast<size_t>(b)];
    if (buffer.owner != Owner::staging || buffer.space != space) continue;
    const bool beside = std::ranges::none_of(
        *buffers, [&](int32_t other) { return other == b || overlaps(buffer, other); });
    if (beside) buffers->push_back(b);
  }
}

}  // namespace

std::vector<MemoryRow> memory_table(const Plan& plan) {
  std::vector<MemoryRow> rows;
  for (int s = 0; s < device::kNumSpaces; ++s) {
    const auto space = static_cast<Space>(s);
    std::array<int64_t, kNumOwners> bytes{};
    for (const Buffer& buffer : plan.state.buffers) {
      if (buffer.space == space) {
        bytes[static_cast<size_t>(buffer.owner)] += round_up(buffer.bytes, 256);
      }
    }
    const Program* largest = nullptr;
    Peak peak;
    for (const Program* program : plan.programs()) {
      Peak candidate = find_peak(*program, space);
      if (largest == nullptr || candidate.live_bytes > peak.live_bytes) {
        largest = program;
        peak = std::move(candidate);
      }
    }
    add_staging_beside(*largest, space, &peak.buffers);
    for (int32_t b : peak.buffers) {
      const Buffer& buffer = largest->buffers[static_cast<size_t>(b)];
      bytes[static_cast<size_t>(buffer.owner)] += buffer.bytes;
    }
    int64_t rest = plan.arenas[static_cast<size_t>(s)];
    for (int o = 0; o < kNumOwners; ++o) {
      const int64_t owned = bytes[static_cast<size_t>(o)];
      rest -= owned;
      if (owned > 0) rows.push_back({std::string(name_of(static_cast<Owner>(o))), space, owned});
    }
    if (rest > 0) rows.push_back({"alignment and packing", space, rest});
  }
  return rows;
}

}  // namespace trireme::plan
