#include "support/rig.h"

#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "base/random.h"
#include "config/parse.h"
#include "config/schedule.h"
#include "data/batch_source.h"
#include "plan/plan.h"
#include "support/backends.h"
#include "train/state_sources.h"

namespace trireme::testing {

namespace {

/// Assembles whole tensors from the boxes of all ranks.
class Collector final : public train::StateSink, public train::WeightSink {
 public:
  Collector(Tensors& masters, Tensors& exp_avg, Tensors& exp_avg_sq, Tensors& gradients,
            std::mutex& mutex)
      : planes_{&masters, &exp_avg, &exp_avg_sq, &gradients}, mutex_(mutex) {}

  void write(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
             const float* data) override {
    put(*planes_[static_cast<size_t>(plane)], parameter, box, [&](int64_t i) { return data[i]; });
  }
  void write(const model::Parameter& parameter, const mesh::Box& box, DType dtype,
             const std::byte* data) override {
    put(*planes_[0], parameter, box, [&](int64_t i) {
      if (dtype == DType::f32) return reinterpret_cast<const float*>(data)[i];
      return f32_from_bf16(reinterpret_cast<const uint16_t*>(data)[i]);
    });
  }

 private:
  template <typename Read>
  void put(Tensors& tensors, const model::Parameter& parameter, const mesh::Box& box,
           const Read& read) {
    const std::lock_guard lock(mutex_);
    std::vector<float>& whole = tensors[parameter.name];
    whole.resize(static_cast<size_t>(parameter.size()), std::numeric_limits<float>::quiet_NaN());
    for (const mesh::Run& run : mesh::copy_runs(box, mesh::whole(parameter.shape))) {
      for (int64_t i = 0; i < run.count; ++i) {
        whole[static_cast<size_t>(run.to + i)] = read(run.from + i);
      }
    }
  }

  std::array<Tensors*, 4> planes_;
  std::mutex& mutex_;
};

mesh::Layout layout_of(const RigOptions& o) { return config::layout_of(o.config, o.ranks); }

int64_t data_rank(const RigOptions& o, int rank) {
  return mesh::coordinates_of(layout_of(o), rank).dp;
}

data::StepPlan evaluation_plan(const RigOptions& o) {
  return data::StepPlan(data::evaluation_plan(o.evaluation->size(), 2, layout_of(o).dp));
}

/// What the ranks of one run have in common.
struct Shared {
  RigResult result;
  std::mutex mutex;
  int ranks_with_gradients = 0;
};

/// Tells after_op of what the CPU's device has run.
class AfterOp final : public cpu::ExecutionObserver {
 public:
  AfterOp(const RigOptions& o, int rank) : o_(o), rank_(rank) {}
  std::atomic<int64_t> step{0};

  void executed(device::StreamKind, int64_t, const cpu::StreamItem& item, Time, Time) override {
    if (const auto* call = std::get_if<ops::OpCall>(&item)) o_.after_op(rank_, step, *call);
  }

 private:
  const RigOptions& o_;
  int rank_;
};

class RankRun {
 public:
  RankRun(const RigOptions& o, Shared& shared, int rank, device::Backend& backend,
          std::atomic<int64_t>& step)
      : o_(o),
        shared_(shared),
        result_(shared.result),
        mutex_(shared.mutex),
        rank_(rank),
        step_(step),
        source_(*o.dataset, step_plan(o), data_rank(o, rank), token_multiple(o, backend)),
        evaluation_(o.evaluation == nullptr
                        ? nullptr
                        : std::make_unique<data::BatchSource>(*o.evaluation, evaluation_plan(o),
                                                              data_rank(o, rank),
                                                              token_multiple(o, backend))),
        backend_(backend),
        wrapped_(o.wrap ? o.wrap(rank, backend.device()) : nullptr),
        session_(make_plan(), wrapped_ ? *wrapped_ : backend.device(), backend.communicator(),
                 session_options()) {}

  void run() {
    auto source = o_.source();
    session_.load(*source);
    const int64_t total = o_.steps > 0 ? o_.steps : source_.plan().total_steps();
    std::vector<std::vector<ops::Extent>> extents;  // made before, so that steps allocate nothing
    for (int64_t s = o_.first_step; s < total; ++s) extents.push_back(extents_of(s));
    reserve(total - o_.first_step);
    exec::Ticket running = -1;
    for (int64_t s = o_.first_step; s < total; ++s) {
      step_ = s;
      if (o_.before_step) o_.before_step(session_, rank_, s);
      const exec::Ticket ticket = session_.step(s, extents[static_cast<size_t>(s - o_.first_step)]);
      if (!o_.runs_ahead) {
        finish(ticket, s);
        continue;
      }
      if (running >= 0) finish(running, s - 1);
      running = ticket;
    }
    if (running >= 0) finish(running, total - 1);
    session_.flush();
    if (o_.final_state) collect_state();
    const std::lock_guard lock(mutex_);
    result_.planned = session_.plan().arenas;
    for (int i = 0; i < device::kNumSpaces; ++i) {
      result_.allocated[static_cast<size_t>(i)] =
          backend_.device().allocated(static_cast<device::Space>(i));
    }
  }

 private:
  plan::Plan make_plan() {
    plan::PlanRequest request;
    const int64_t steps = source_.plan().total_steps();
    request.config = &o_.config;
    request.model = &o_.model;
    request.world_size = o_.ranks;
    request.rank = rank_;
    request.capacity = source_.capacity();
    request.rope_positions = std::max<int64_t>(request.capacity.longest, 1);
    request.schedule_entries = steps + 1;
    std::set<int> accumulations;
    for (int64_t s = 0; s < steps; ++s) {
      accumulations.insert(static_cast<int>(source_.plan().at(s).num_micro_batches));
    }
    request.accumulations.assign(accumulations.begin(), accumulations.end());
    request.evaluates = o_.evaluation != nullptr;
    if (evaluation_) {
      const ops::Extent& other = evaluation_->capacity();
      request.capacity.tokens = std::max(request.capacity.tokens, other.tokens);
      request.capacity.sequences = std::max(request.capacity.sequences, other.sequences);
      request.capacity.longest = std::max(request.capacity.longest, other.longest);
      request.rope_positions = request.capacity.longest;
    }
    request.op_sizing = &backend_.op_sizing();
    request.comm_sizing = &backend_.comm_sizing();
    return plan::make_plan(request);
  }

  train::SessionOptions session_options() {
    train::SessionOptions options;
    options.schedule = config::schedule_table(o_.config, source_.plan().total_steps());
    options.fill_train = [this](int64_t step, int64_t micro_batch, const ops::BatchLayout& layout,
                                int32_t* out) {
      if (!is_empty(step, micro_batch)) {
        source_.fill(step, micro_batch, layout, out);
      } else {
        out[layout.offset(ops::BatchField::cu_seqlens)] = 0;
      }
    };
    options.fill_evaluation = [this](int64_t step, int64_t, const ops::BatchLayout& layout,
                                     int32_t* out) { evaluation_->fill(step, 0, layout, out); };
    options.poison = o_.config.debug_poison;
    return options;
  }

  /// Every tensor rank has an equal part of the sequence.
  static int64_t token_multiple(const RigOptions& o, device::Backend& backend) {
    return backend.token_multiple() * layout_of(o).tp;
  }

  bool is_empty(int64_t step, int64_t micro_batch) const {
    return o_.empty && o_.empty(static_cast<int>(data_rank(o_, rank_)), step, micro_batch);
  }

  std::vector<ops::Extent> extents_of(int64_t step) {
    std::vector<ops::Extent> found;
    for (int64_t m = 0; m < source_.plan().at(step).num_micro_batches; ++m) {
      found.push_back(is_empty(step, m) ? ops::Extent{} : source_.extent(step, m));
    }
    return found;
  }

  void reserve(int64_t steps) {
    const std::lock_guard lock(mutex_);
    result_.steps.reserve(static_cast<size_t>(steps));
  }

  void finish(exec::Ticket ticket, int64_t step) {
    const train::ControlValues values = session_.wait(ticket, step);
    record(step, values);
    if (step == o_.first_step && o_.gradients) collect_gradients(values);
    if (o_.after_step) o_.after_step(session_, rank_, step, values);
  }

  void record(int64_t step, const train::ControlValues& values) {
    const std::lock_guard lock(mutex_);
    const auto place = static_cast<size_t>(step - o_.first_step);
    if (result_.steps.size() <= place) result_.steps.push_back(values);
    result_.control = values;
    result_.control[static_cast<size_t>(ops::index(ops::Control::pending))] = 0;  // flushed
    const auto& known = result_.steps[place];
    for (size_t i = 0; i < values.size(); ++i) {
      const bool same = known[i] == values[i] || (std::isnan(known[i]) && std::isnan(values[i]));
      check(same, "rank {} step {}: control {} is {}, another rank has {}", rank_, step, i,
            values[i], known[i]);
    }
  }

  void collect_gradients(const train::ControlValues& values) {
    Collector collector(result_.masters, result_.exp_avg, result_.exp_avg_sq, result_.gradients,
                        mutex_);
    session_.read_gradients(collector);
    const double inv_tokens = train::value(values, ops::Control::inv_tokens);
    const std::lock_guard lock(mutex_);
    if (++shared_.ranks_with_gradients < o_.ranks) return;
    for (auto& [name, tensor] : result_.gradients) {
      for (float& g : tensor) g = static_cast<float>(g * inv_tokens);
    }
  }

  void collect_state() {
    Collector collector(result_.masters, result_.exp_avg, result_.exp_avg_sq, result_.gradients,
                        mutex_);
    session_.save(collector);
    Tensors unused;
    Collector exporter(result_.exported, unused, unused, unused, mutex_);
    session_.export_weights(exporter);
  }

  const RigOptions& o_;
  Shared& shared_;
  RigResult& result_;
  std::mutex& mutex_;
  int rank_;
  std::atomic<int64_t>& step_;
  data::BatchSource source_;
  std::unique_ptr<data::BatchSource> evaluation_;
  device::Backend& backend_;
  std::unique_ptr<device::Device> wrapped_;
  train::Session session_;
};

}  // namespace

data::StepPlan step_plan(const RigOptions& o) {
  data::StepPlanOptions options;
  options.num_samples = o.dataset->size();
  options.batch_size = o.config.per_device_train_batch_size;
  options.num_ranks = layout_of(o).dp;
  options.accumulation_steps = o.config.gradient_accumulation_steps;
  options.num_epochs = o.config.num_train_epochs;
  options.max_steps = o.config.max_steps;
  options.shuffle = o.config.train_sampling_strategy == config::Sampling::random;
  options.seed = o.config.data_seed.value_or(o.config.seed);
  options.even_batches = o.config.even_batches;
  return data::StepPlan(options);
}

void ResultSource::read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
                        float* out) {
  const Tensors& tensors = plane == plan::Plane::master    ? result_.masters
                           : plane == plan::Plane::exp_avg ? result_.exp_avg
                                                           : result_.exp_avg_sq;
  const std::vector<float>& whole = tensors.at(parameter.name);
  for (const mesh::Run& run : mesh::copy_runs(mesh::whole(parameter.shape), box)) {
    std::copy_n(whole.begin() + run.from, run.count, out + run.to);
  }
}

void ResultSource::read_control(std::span<double> control) {
  std::copy(result_.control.begin(), result_.control.end(), control.begin());
}

std::vector<ops::Extent> evaluation_extents(const RigOptions& options, int rank) {
  const int64_t multiple =
      (on_cuda() ? cuda_maker().token_multiple() : 16) * layout_of(options).tp;
  data::BatchSource source(*options.evaluation, evaluation_plan(options), data_rank(options, rank),
                           multiple);
  std::vector<ops::Extent> extents;
  for (int64_t s = 0; s < source.plan().total_steps(); ++s) extents.push_back(source.extent(s, 0));
  return extents;
}

void on_ranks(int ranks, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

RigResult train(const RigOptions& options) {
  Shared shared;
  check(!options.after_op || !on_cuda(), "after_op needs the CPU");
  TestWorld world(options.ranks);
  on_ranks(options.ranks, [&](int rank) {
    AfterOp after_op(options, rank);
    cpu::DeviceOptions device = options.device;
    if (options.after_op) device.observer = &after_op;
    const auto backend = world.open(rank, options.num_threads, device);
    RankRun(options, shared, rank, *backend, after_op.step).run();
  });
  return std::move(shared.result);
}

model::ModelGraph tiny_model(const TinyModel& spec) {
  model::ModelConfig config;
  config.family = spec.family;
  config.hidden_size = spec.hidden;
  config.num_layers = spec.layers;
  config.num_heads = spec.heads;
  config.num_kv_heads = spec.kv_heads;
  config.head_dim = spec.head_dim;
  config.intermediate_size = spec.ffn;
  config.vocab_size = spec.vocab;
  config.max_position_embeddings = 4096;
  config.qkv_bias = spec.family == model::Family::qwen2;
  config.qk_norm = spec.family == model::Family::qwen3;
  config.sliding_window = spec.window;
  config.tie_word_embeddings = spec.tied;
  config.initializer_range = 0.1;
  return model::build_model(config);
}

data::Dataset random_dataset(const std::vector<int64_t>& lengths, int64_t vocab, uint64_t seed) {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<int32_t>> labels;
  uint64_t state = seed * 2 + 1;
  const auto next = [&] { return state = state * 6364136223846793005u + 1442695040888963407u; };
  for (int64_t length : lengths) {
    auto& row = ids.emplace_back();
    auto& trained = labels.emplace_back();
    for (int64_t t = 0; t < length; ++t) {
      row.push_back(static_cast<int32_t>((next() >> 33) % static_cast<uint64_t>(vocab)));
      trained.push_back((next() >> 33) % 5 == 0 ? -100 : row.back());
    }
  }
  return data::Dataset(ids, labels);
}

double relative_difference(const Tensors& a, const Tensors& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (a.size() != b.size()) return kInfinity;
  double worst = 0;
  for (const auto& [name, tensor] : b) {
    const auto other = a.find(name);
    if (other == a.end() || other->second.size() != tensor.size()) return kInfinity;
    double difference = 0;
    double largest = 0;
    for (size_t i = 0; i < tensor.size(); ++i) {
      const double d = std::abs(double{other->second[i]} - tensor[i]);
      if (!(d <= kInfinity)) return kInfinity;
      difference = std::max(difference, d);
      largest = std::max(largest, std::abs(double{tensor[i]}));
    }
    worst = std::max(worst, difference / std::max(largest, 1e-30));
  }
  return worst;
}

}  // namespace trireme::testing
