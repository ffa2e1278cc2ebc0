#include "config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace trireme::config {
namespace {

constexpr double kPi = std::numbers::pi;

/// One schedule; steps are doubles, all whole. at(s): share of the peak rate after s updates.
class Schedule {
 public:
  Schedule(const RunConfig& config, int64_t total)
      : type_(config.lr_scheduler_type),
        kwargs_(config.lr_scheduler_kwargs),
        peak_(config.learning_rate),
        warmup_(static_cast<double>(count_steps(config.warmup_steps, total))),
        total_(static_cast<double>(total)) {}

  double at(int64_t update) const {
    const auto step = static_cast<double>(update);
    switch (type_) {
      case Scheduler::constant:
        return 1.0;
      case Scheduler::cosine_warmup_with_min_lr:
        return early_cosine(step);
      case Scheduler::warmup_stable_decay:
        return stable_decay(step);
      case Scheduler::warmup_lr:
      case Scheduler::warmup_decay_lr:
      case Scheduler::warmup_cosine_lr:
        return deepspeed(step - 1);
      default:
        return step < warmup_ ? step / warmup_ : decay(step);
    }
  }

 private:
  double decay(double step) const {
    const double progress = (step - warmup_) / std::max(1.0, total_ - warmup_);
    switch (type_) {
      case Scheduler::linear:
        return std::max(0.0, (total_ - step) / std::max(1.0, total_ - warmup_));
      case Scheduler::cosine:
        return std::max(0.0, wave(cycles(0.5), progress));
      case Scheduler::cosine_with_min_lr:
        return std::max(0.0, above(floor(), wave(cycles(0.5), progress)));
      case Scheduler::cosine_with_restarts:
        if (progress >= 1) return 0.0;
        return 0.5 * (1.0 + std::cos(kPi * std::fmod(cycles(1) * progress, 1.0)));
      case Scheduler::polynomial:
        return power_decay(step);
      case Scheduler::inverse_sqrt: {
        const double unit = kwargs_.timescale.value_or(warmup_ > 0 ? warmup_ : 10000.0);
        return 1.0 / std::sqrt((step + unit - warmup_) / unit);
      }
      default:
        return 1.0;  // constant_with_warmup
    }
  }

  double power_decay(double step) const {
    const double end = kwargs_.lr_end.value_or(kDefaultPolynomialEnd);
    if (step > total_ || total_ <= warmup_) return end / peak_;
    const double left = 1 - (step - warmup_) / (total_ - warmup_);
    return ((peak_ - end) * std::pow(left, kwargs_.power.value_or(1.0)) + end) / peak_;
  }

  double early_cosine(double step) const {
    if (step < warmup_) {
      if (!kwargs_.warmup_lr_rate) return (step + 1) / std::max(1.0, warmup_);
      const double first = *kwargs_.warmup_lr_rate;
      return first + (1 - first) * step / std::max(1.0, warmup_ - 1);
    }
    const double progress = (step - warmup_ + 1) / std::max(1.0, total_ - warmup_);
    return std::max(0.0, above(floor(), wave(cycles(0.5), progress)));
  }

  double stable_decay(double step) const {
    const double lowest = kwargs_.min_lr_ratio.value_or(0.0);
    const auto decay_steps = static_cast<double>(kwargs_.num_decay_steps.value_or(0));
    const double stable = kwargs_.num_stable_steps ? static_cast<double>(*kwargs_.num_stable_steps)
                                                   : total_ - warmup_ - decay_steps;
    if (step < warmup_) {
      const double left = 1 - step / std::max(1.0, warmup_);
      return std::max(
          0.0, above(lowest, descent(kwargs_.warmup_type.value_or(Curve::linear), left, 0.5)));
    }
    if (step < warmup_ + stable) return 1.0;
    if (step < warmup_ + stable + decay_steps) {
      const double progress = (step - warmup_ - stable) / std::max(1.0, decay_steps);
      return std::max(0.0, above(lowest, descent(kwargs_.decay_type.value_or(Curve::cosine),
                                                 progress, cycles(0.5))));
    }
    return lowest;
  }

  /// DeepSpeed's schedulers start one update late: the first one has iteration -1.
  double deepspeed(double iteration) const {
    const bool cosine = type_ == Scheduler::warmup_cosine_lr;
    const double lowest = cosine ? kwargs_.warmup_min_ratio.value_or(0.0)
                                 : (peak_ > 0 ? kwargs_.warmup_min_lr.value_or(0.0) / peak_ : 0.0);
    if (iteration < 0) return cosine ? 0.0 : lowest;
    const double warmup = std::max(2.0, warmup_);
    if (iteration < warmup) {
      const bool logarithmic = kwargs_.warmup_type.value_or(Curve::log) == Curve::log;
      return above(lowest,
                   logarithmic ? std::log(iteration + 1) / std::log(warmup) : iteration / warmup);
    }
    const double total =
        kwargs_.total_num_steps ? static_cast<double>(*kwargs_.total_num_steps) : total_;
    const double decay_steps = std::max(1.0, total - warmup);
    if (cosine) {
      const double progress = std::min(1.0, (iteration - warmup + 1) / decay_steps);
      return std::max(0.0, above(kwargs_.cos_min_ratio.value_or(1e-4), wave(0.5, progress)));
    }
    if (type_ == Scheduler::warmup_lr) return 1.0;
    return above(lowest, std::max(0.0, (total - iteration) / decay_steps));
  }

  /// From 1 at progress 0 downwards; a warm-up is one backwards.
  static double descent(Curve curve, double progress, double cycles) {
    switch (curve) {
      case Curve::cosine:
        return wave(cycles, progress);
      case Curve::one_minus_sqrt:
        return 1 - std::sqrt(progress);
      default:
        return 1 - progress;
    }
  }

  static double wave(double cycles, double progress) {
    return 0.5 * (1.0 + std::cos(kPi * cycles * 2.0 * progress));
  }
  static double above(double lowest, double factor) { return factor * (1 - lowest) + lowest; }
  double cycles(double otherwise) const { return kwargs_.num_cycles.value_or(otherwise); }
  double floor() const {
    if (kwargs_.min_lr) return peak_ > 0 ? *kwargs_.min_lr / peak_ : 0.0;
    return kwargs_.min_lr_rate.value_or(0.0);
  }

  Scheduler type_;
  SchedulerKwargs kwargs_;
  double peak_;
  double warmup_;
  double total_;
};

}  // namespace

int64_t count_steps(double steps_or_share, int64_t total_steps) {
  if (steps_or_share >= 1) return static_cast<int64_t>(steps_or_share);
  return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * steps_or_share));
}

std::vector<double> schedule_table(const RunConfig& config, int64_t total_steps) {
  check(total_steps >= 0, "schedule_table: {} steps", total_steps);
  const Schedule schedule(config, total_steps);
  std::vector<double> rates(static_cast<size_t>(total_steps) + 1);
  for (int64_t step = 0; step <= total_steps; ++step) {
    rates[static_cast<size_t>(step)] = config.learning_rate * schedule.at(step);
  }
  return rates;
}

}  // namespace trireme::config
