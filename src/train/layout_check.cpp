#include "train/layout_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::train {

namespace {

/// Largest relative difference of a field of any step.
double step_difference(const TrialResult& a, const TrialResult& b, ops::Control field) {
  if (a.steps.size() != b.steps.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t s = 0; s < b.steps.size(); ++s) {
    const double reference = value(b.steps[s], field);
    const double found = value(a.steps[s], field);
    if (std::isnan(found) && std::isnan(reference)) continue;  // no token was trained
    const double difference = std::abs(found - reference) / std::max(std::abs(reference), 1e-30);
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
  }
  return worst;
}

Differences between(const TrialResult& found, const TrialResult& expected) {
  // Some gradients are sums that cancel, and nothing but rounding.
  constexpr double kFloor = 0.01;
  return {relative_difference(found.gradients, expected.gradients, kFloor),
          step_difference(found, expected, ops::Control::grad_norm),
          step_difference(found, expected, ops::Control::loss),
          relative_difference(found.exported, expected.exported)};
}

/// A unit in the last place. A step without a trained token hides what the next ones differ by.
constexpr double kBf16Unit = 1.0 / 256;

Differences at_least(double least, const Differences& d) {
  return {std::max(least, d.gradients), std::max(least, d.norm), std::max(least, d.loss),
          std::max(least, d.weights)};
}

/// Trains the case's model and samples on so many ranks.
TrialResult train(const LayoutCase& test, const config::RunConfig& config, int ranks,
                  const RunRanks& run_ranks) {
  const data::Dataset dataset = random_dataset(test.lengths, test.model.vocab, test.seed);
  TrialOptions options;
  options.model = tiny_model(test.model);
  options.dataset = &dataset;
  options.gradients = true;
  options.source = [&] { return std::make_unique<RoughSource>(test.seed); };
  options.config = config;
  options.ranks = ranks;
  Trial trial(options);
  run_ranks(ranks, [&](int rank, device::Backend& backend) { trial.run_rank(rank, backend); });
  return trial.take_result();
}

}  // namespace

bool Differences::agree(const Differences& rounding) const {
  // Sums in another order: a few units in the last place of f32, times the depth of the sums; and
  // in bf16 another draw of as much rounding. That of norm and loss may happen to cancel, and later
  // ones are of weights that were rounded apart.
  return gradients < 3e-5 + 4 * rounding.gradients && norm < 3e-5 + 4 * rounding.gradients &&
         loss < 1e-5 + 2 * rounding.gradients && weights < 1e-5 + 4 * rounding.weights;
}

SingleProcess train_alone(const LayoutCase& test, const RunRanks& run_ranks) {
  config::RunConfig config = single_process_config(test);
  SingleProcess alone{train(test, config, 1, run_ranks), {}};
  if (config.bf16) {
    config.bf16 = false;
    config.master_dtype = config::Precision::float32;
    alone.rounding = at_least(kBf16Unit, between(alone.result, train(test, config, 1, run_ranks)));
  }
  return alone;
}

Differences compare(const LayoutCase& test, const SingleProcess& alone, const RunRanks& run_ranks) {
  return between(train(test, test.config, test.ranks, run_ranks), alone.result);
}

}  // namespace trireme::train
