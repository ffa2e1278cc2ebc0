#include "train/trial.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <set>
#include <thread>

#include "config/parse.h"
#include "config/schedule.h"
#include "data/batch_source.h"
#include "plan/plan.h"
#include "train/run_data.h"

namespace trireme::train {

namespace {

/// Assembles whole tensors from the boxes of all ranks.
class Collector final : public StateSink, public WeightSink {
 public:
  Collector(TrialResult& result, Tensors& weights, std::mutex& mutex)
      : planes_{&result.masters, &result.exp_avg, &result.exp_avg_sq, &result.gradients},
        weights_(weights),
        mutex_(mutex) {}

  void write(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
             DType dtype, const std::byte* data) override {
    put(*planes_[static_cast<size_t>(plane)], parameter, box, dtype, data);
  }
  void write(const model::Parameter& parameter, const mesh::Box& box, DType dtype,
             const std::byte* data) override {
    put(weights_, parameter, box, dtype, data);
  }

 private:
  void put(Tensors& tensors, const model::Parameter& parameter, const mesh::Box& box, DType dtype,
           const std::byte* data) {
    const auto read = [&](int64_t i) {
      if (dtype == DType::f32) return reinterpret_cast<const float*>(data)[i];
      return f32_from_bf16(reinterpret_cast<const uint16_t*>(data)[i]);
    };
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
  Tensors& weights_;
  std::mutex& mutex_;
};

mesh::Layout layout_of(const TrialOptions& o) { return config::layout_of(o.config, o.ranks); }

int64_t data_rank(const TrialOptions& o, int rank) {
  return mesh::coordinates_of(layout_of(o), rank).dp;
}

data::Packs training_packs(const TrialOptions& o) {
  return packs_of(o.config, *o.dataset, o.config.packing);
}

std::unique_ptr<data::BatchSource> evaluation_source(const TrialOptions& o, int rank,
                                                     int64_t token_multiple) {
  if (o.evaluation == nullptr) return nullptr;
  data::Packs packs = packs_of(o.config, *o.evaluation, o.config.packs_evaluation());
  const data::StepPlan plan(data::evaluation_plan(packs.size(), 2, layout_of(o).dp));
  // Every tensor rank has an equal part of the sequence.
  return std::make_unique<data::BatchSource>(*o.evaluation, std::move(packs), plan,
                                             data_rank(o, rank), token_multiple * layout_of(o).tp);
}

}  // namespace

class TrialRank {
 public:
  TrialRank(Trial& trial, int rank, device::Backend& backend)
      : trial_(trial),
        o_(trial.options_),
        rank_(rank),
        backend_(backend),
        source_(*o_.dataset, training_packs(o_), step_plan(o_), data_rank(o_, rank),
                backend.token_multiple() * layout_of(o_).tp),
        evaluation_(evaluation_source(o_, rank, backend.token_multiple())),
        session_(make_plan(), backend.device(), backend.communicator(), session_options()) {}

  void run() {
    auto source = o_.source();
    session_.load(*source);
    const int64_t total = o_.steps > 0 ? o_.steps : source_.plan().total_steps();
    std::vector<std::vector<ops::Extent>> extents;  // made before, so that steps allocate nothing
    for (int64_t s = o_.first_step; s < total; ++s) extents.push_back(extents_of(s));
    reserve(total - o_.first_step);
    exec::Ticket running = -1;
    for (int64_t s = o_.first_step; s < total; ++s) {
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
    const std::lock_guard lock(trial_.mutex_);
    trial_.result_.planned = session_.plan().arenas;
    for (int i = 0; i < device::kNumSpaces; ++i) {
      trial_.result_.allocated[static_cast<size_t>(i)] =
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
    std::set<int> accumulations;
    for (int64_t s = 0; s < steps; ++s) {
      accumulations.insert(static_cast<int>(source_.plan().at(s).num_micro_batches));
    }
    request.accumulations.assign(accumulations.begin(), accumulations.end());
    request.evaluates = o_.evaluation != nullptr;
    if (evaluation_) grow(request.capacity, evaluation_->capacity());
    request.rope_positions = std::max<int64_t>(request.capacity.longest, 1);
    request.schedule_entries = steps + 1;
    request.op_sizing = &backend_.op_sizing();
    request.comm_sizing = &backend_.comm_sizing();
    return plan::make_plan(request);
  }

  SessionOptions session_options() {
    SessionOptions options;
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
    const std::lock_guard lock(trial_.mutex_);
    trial_.result_.steps.reserve(static_cast<size_t>(steps));
  }

  void finish(exec::Ticket ticket, int64_t step) {
    const ControlValues values = session_.wait(ticket, step);
    record(step, values);
    if (step == o_.first_step && o_.gradients) collect_gradients(values);
    if (o_.after_step) o_.after_step(session_, rank_, step, values);
  }

  void record(int64_t step, const ControlValues& values) {
    const std::lock_guard lock(trial_.mutex_);
    TrialResult& result = trial_.result_;
    const auto place = static_cast<size_t>(step - o_.first_step);
    if (result.steps.size() <= place) result.steps.push_back(values);
    result.control = values;
    result.control[static_cast<size_t>(ops::index(ops::Control::pending))] = 0;  // flushed
    const auto& known = result.steps[place];
    for (size_t i = 0; i < values.size(); ++i) {
      const bool same = known[i] == values[i] || (std::isnan(known[i]) && std::isnan(values[i]));
      check(same, "rank {} step {}: control {} is {}, another rank has {}", rank_, step, i,
            values[i], known[i]);
    }
  }

  void collect_gradients(const ControlValues& values) {
    Tensors unused;
    Collector collector(trial_.result_, unused, trial_.mutex_);
    session_.read_gradients(collector);
    const double inv_tokens = value(values, ops::Control::inv_tokens);
    const std::lock_guard lock(trial_.mutex_);
    if (++trial_.ranks_with_gradients_ < o_.ranks) return;
    for (auto& [name, tensor] : trial_.result_.gradients) {
      for (float& g : tensor) g = static_cast<float>(g * inv_tokens);
    }
  }

  void collect_state() {
    Collector collector(trial_.result_, trial_.result_.exported, trial_.mutex_);
    session_.save(collector);
    session_.export_weights(collector);
  }

  Trial& trial_;
  const TrialOptions& o_;
  int rank_;
  device::Backend& backend_;
  data::BatchSource source_;
  std::unique_ptr<data::BatchSource> evaluation_;
  Session session_;
};

void Trial::run_rank(int rank, device::Backend& backend) { TrialRank(*this, rank, backend).run(); }

void on_ranks(int ranks, const std::function<void(int rank)>& body) {
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

data::StepPlan step_plan(const TrialOptions& o) {
  data::StepPlanOptions options;
  options.num_samples = training_packs(o).size();
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

std::vector<ops::Extent> evaluation_extents(const TrialOptions& options, int rank,
                                            int64_t token_multiple) {
  const auto source = evaluation_source(options, rank, token_multiple);
  std::vector<ops::Extent> extents;
  for (int64_t s = 0; s < source->plan().total_steps(); ++s)
    extents.push_back(source->extent(s, 0));
  return extents;
}

double relative_difference(const Tensors& a, const Tensors& b, double floor) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (a.size() != b.size()) return kInfinity;
  const auto largest_of = [](const std::vector<float>& tensor) {
    double largest = 0;
    for (const float x : tensor) largest = std::max(largest, std::abs(double{x}));
    return largest;
  };
  double largest = 0;
  for (const auto& [name, tensor] : b) largest = std::max(largest, largest_of(tensor));
  double worst = 0;
  for (const auto& [name, tensor] : b) {
    const auto other = a.find(name);
    if (other == a.end() || other->second.size() != tensor.size()) return kInfinity;
    double difference = 0;
    for (size_t i = 0; i < tensor.size(); ++i) {
      const double d = std::abs(double{other->second[i]} - tensor[i]);
      if (!std::isfinite(d)) return kInfinity;
      difference = std::max(difference, d);
    }
    worst = std::max(worst, difference / std::max(largest_of(tensor) + floor * largest, 1e-30));
  }
  return worst;
}

}  // namespace trireme::train
