#include "data/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/math.h"
#include "config/run_config.h"

namespace trireme::data {
namespace {

int64_t count_updates(const StepPlanOptions& options, int64_t steps_per_epoch) {
  if (options.max_steps > 0) return options.max_steps;
  const double updates = std::ceil(options.num_epochs * static_cast<double>(steps_per_epoch));
  if (updates > static_cast<double>(config::kMaxUpdates)) {
    throw ConfigError("num_train_epochs", fmt::format("{}", options.num_epochs),
                      fmt::format("these are more than {} updates, {} an epoch; give fewer, or "
                                  "larger batches",
                                  config::kMaxUpdates, steps_per_epoch));
  }
  return static_cast<int64_t>(updates);
}

}  // namespace

StepPlanOptions evaluation_plan(int64_t num_samples, int64_t batch_size, int64_t num_ranks) {
  StepPlanOptions options;
  options.num_samples = num_samples;
  options.batch_size = batch_size;
  options.num_ranks = num_ranks;
  return options;
}

StepPlan::StepPlan(const StepPlanOptions& options) : options_(options) {
  check(options.num_samples > 0 && options.num_samples <= INT32_MAX, "a plan for {} samples",
        options.num_samples);
  check(options.batch_size > 0 && options.num_ranks > 0 && options.accumulation_steps > 0,
        "a plan for batches of {} on {} ranks, {} accumulated", options.batch_size,
        options.num_ranks, options.accumulation_steps);
  micro_batches_ = ceil_div(ceil_div(options.num_samples, options.batch_size), options.num_ranks);
  steps_ = ceil_div(micro_batches_, options.accumulation_steps);
  total_steps_ = count_updates(options, steps_);
}

int64_t StepPlan::num_epochs() const { return ceil_div(total_steps_, steps_); }

StepPlan::Step StepPlan::at(int64_t step) const {
  check(step >= 0 && step < total_steps_, "step {} of {}", step, total_steps_);
  const int64_t first = step % steps_ * options_.accumulation_steps;
  return {step / steps_, first, std::min(options_.accumulation_steps, micro_batches_ - first)};
}

double StepPlan::epoch_after(int64_t step) const {
  const Step at = this->at(step);
  const auto done = static_cast<double>(at.first_micro_batch + at.num_micro_batches);
  return static_cast<double>(at.epoch) + done / static_cast<double>(micro_batches_);
}

EpochOrder::EpochOrder(const StepPlanOptions& options) : options_(options) {
  const int64_t row = options.num_ranks * options.batch_size;
  const bool wrap = options.even_batches && options.num_ranks > 1;
  order_.resize(
      static_cast<size_t>(wrap ? round_up(options.num_samples, row) : options.num_samples));
  fill();
}

void EpochOrder::move_to(int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  if (options_.shuffle) fill();
}

void EpochOrder::fill() {
  const auto num_samples = static_cast<size_t>(options_.num_samples);
  const std::span<int32_t> samples(order_.data(), num_samples);
  if (options_.shuffle) {
    torch_permutation(static_cast<uint64_t>(options_.seed + epoch_), samples);
  } else {
    std::iota(samples.begin(), samples.end(), 0);
  }
  for (size_t i = num_samples; i < order_.size(); ++i) order_[i] = order_[i - num_samples];
}

std::span<const int32_t> EpochOrder::slice(int64_t begin, int64_t size) const {
  const int64_t end = std::min(begin + size, std::ssize(order_));
  begin = std::min(begin, end);
  return {order_.data() + begin, static_cast<size_t>(end - begin)};
}

void torch_permutation(uint64_t seed, std::span<int32_t> out) {
  constexpr size_t kWide = UINT32_MAX / 20;
  std::mt19937 engine(static_cast<uint32_t>(seed));
  std::iota(out.begin(), out.end(), 0);
  for (size_t i = 0; i + 1 < out.size(); ++i) {
    uint64_t draw = engine();
    if (out.size() >= kWide) draw = draw << 32 | engine();
    std::swap(out[i], out[i + draw % (out.size() - i)]);
  }
}

}  // namespace trireme::data
