#include "support/reference_run.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "config/schedule.h"
#include "train/run_data.h"

namespace trireme::testing {

namespace {

class Loop {
 public:
  explicit Loop(const RigOptions& options)
      : o_(options),
        packs_(train::packs_of(options.config, *options.dataset, options.config.packing)),
        plan_(step_plan(options)),
        order_(plan_.options()),
        schedule_(config::schedule_table(options.config, plan_.total_steps())) {
    run_.masters = weights_of(o_.model, *o_.source());
    for (const auto& [name, tensor] : run_.masters) {
      m_[name].resize(tensor.size());
      v_[name].resize(tensor.size());
    }
  }

  ReferenceRun run() {
    const int64_t steps = o_.steps > 0 ? o_.steps : plan_.total_steps();
    for (int64_t s = 0; s < steps; ++s) step(s);
    return std::move(run_);
  }

 private:
  std::vector<int32_t> samples_of(const data::StepPlan::Step& at) {
    order_.move_to(at.epoch);
    std::vector<int32_t> found;
    for (const int32_t pack : order_.batches(at.first_micro_batch, at.num_micro_batches)) {
      const auto samples = packs_.samples(pack);
      found.insert(found.end(), samples.begin(), samples.end());
    }
    return found;
  }

  void step(int64_t s) {
    LossSums sums;
    add_micro_batch(o_.model, o_.config.bf16 ? rounded_to_bf16(run_.masters) : run_.masters,
                    batch_of(*o_.dataset, samples_of(plan_.at(s))), true, sums);
    double squares = 0;
    for (auto& [name, gradient] : sums.gradients) {
      for (double& g : gradient) {
        g = sums.tokens > 0 ? g / sums.tokens : 0;
        squares += g * g;
      }
    }
    ReferenceStep& now = run_.steps.emplace_back();
    now.loss = sums.loss / sums.tokens;  // NaN where nothing is trained
    now.tokens = sums.tokens;
    now.grad_norm = std::sqrt(squares);
    now.clip_coef = 1;
    if (o_.config.max_grad_norm > 0) {
      now.clip_coef = std::min(1.0, o_.config.max_grad_norm / (now.grad_norm + 1e-6));
    }
    now.learning_rate = schedule_[static_cast<size_t>(updates_)];
    if (sums.tokens > 0) {
      ++updates_;
      for (const model::Parameter& parameter : o_.model.parameters) {
        if (parameter.trainable) update(parameter, sums.gradients.at(parameter.name), now);
      }
    }
    if (s == 0) run_.gradients = std::move(sums.gradients);
  }

  void update(const model::Parameter& parameter, const std::vector<double>& gradient,
              const ReferenceStep& now) {
    const config::RunConfig& c = o_.config;
    const double decay = parameter.decay ? c.weight_decay : 0.0;
    auto& master = run_.masters.at(parameter.name);
    auto& m = m_.at(parameter.name);
    auto& v = v_.at(parameter.name);
    const double bias1 = 1 - std::pow(c.adam_beta1, static_cast<double>(updates_));
    const double bias2 = 1 - std::pow(c.adam_beta2, static_cast<double>(updates_));
    for (size_t i = 0; i < master.size(); ++i) {
      const double g = gradient[i] * now.clip_coef;
      if (c.optim == config::Optimizer::sgd) {
        master[i] -= now.learning_rate * (g + decay * master[i]);
        continue;
      }
      m[i] = c.adam_beta1 * m[i] + (1 - c.adam_beta1) * g;
      v[i] = c.adam_beta2 * v[i] + (1 - c.adam_beta2) * g * g;
      master[i] *= 1 - now.learning_rate * decay;
      master[i] -= now.learning_rate * (m[i] / bias1) / (std::sqrt(v[i] / bias2) + c.adam_epsilon);
    }
  }

  const RigOptions& o_;
  data::Packs packs_;
  data::StepPlan plan_;
  data::EpochOrder order_;
  std::vector<double> schedule_;
  ReferenceRun run_;
  DoubleTensors m_, v_;
  int64_t updates_ = 0;
};

}  // namespace

DoubleTensors weights_of(const model::ModelGraph& model, train::StateSource& source) {
  DoubleTensors weights;
  for (const model::Parameter& parameter : model.parameters) {
    std::vector<float> whole(static_cast<size_t>(parameter.size()));
    source.read(parameter, plan::Plane::master, mesh::whole(parameter.shape), whole.data());
    weights[parameter.name].assign(whole.begin(), whole.end());
  }
  return weights;
}

DoubleTensors rounded_to_bf16(DoubleTensors masters) {
  for (auto& [name, tensor] : masters) {
    for (double& x : tensor) {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x)) + 0x8000u;
      x = std::bit_cast<float>(bits & 0xffff0000u);
    }
  }
  return masters;
}

ReferenceRun train_in_double(const RigOptions& options) { return Loop(options).run(); }

double relative_difference(const Tensors& a, const DoubleTensors& b) {
  Tensors narrow;
  for (const auto& [name, tensor] : b) narrow[name].assign(tensor.begin(), tensor.end());
  return relative_difference(a, narrow);
}

}  // namespace trireme::testing
