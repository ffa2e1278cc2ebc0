// The control block: the step's decisions, on the device, as f64 scalars.
//
// One all-reduce over the world yields the sums; step_control turns them into everything the
// optimizer needs. The host reads the block a step late and never decides for the step.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace trireme::ops {

enum class Sum : int { squares, loss, trained_tokens };
inline constexpr int kNumSums = 3;

enum class Control : int {
  // Persistent: saved in checkpoints.
  global_step,        // steps done, skipped ones included
  updates,            // optimizer steps applied (unskipped): Adam's t, index of the schedule
  skipped_steps,      // steps skipped since the run began
  consecutive_skips,  // skipped in a row, up to now
  // Of the last step_control.
  pending,            // 1: an update is computed but not yet applied
  skip,               // 1: the pending update must not be applied (non-finite norm, or N = 0)
  inv_tokens,         // 1 / trained tokens (0 when there are none)
  loss,               // loss sum / trained tokens (NaN when there are none)
  trained_tokens,
  grad_norm,          // of the mean gradient, before clipping; non-finite when the gradient is
  clip_coef,          // min(1, max_grad_norm / (grad_norm + 1e-6)); 1 without clipping
  learning_rate,      // the rate the pending update uses
  bias1,              // 1 - beta1^updates, of the pending update
  bias2,
  kCount,
};
inline constexpr int kControlSize = 16;
static_assert(static_cast<int>(Control::kCount) <= kControlSize);

inline constexpr int index(Control field) { return static_cast<int>(field); }
inline constexpr int index(Sum field) { return static_cast<int>(field); }

/// base^exponent by squaring: multiplications alone, so that every processor has the same bits, which
/// the pow of its library does not promise. `exponent` is a whole number.
constexpr double whole_power(double base, double exponent) {
  double power = 1.0;
  for (auto left = static_cast<int64_t>(exponent); left > 0; left /= 2) {
    if (left % 2 != 0) power *= base;
    base *= base;
  }
  return power;
}

/// What step_control computes; one definition for every backend, constexpr for GPUs' sake.
///   sums      (kNumSums) over the world
///   schedule  learning rate by number of updates already applied; the last entry repeats
///   control   (kControlSize), updated in place:
/// global_step += 1. If the norm is finite and N > 0: updates += 1, learning_rate = schedule of
/// the old count, skip = 0, consecutive_skips = 0. Else: skip = 1, skipped_steps += 1,
/// consecutive_skips += 1 (an empty step, N = 0, counts in skipped_steps only), learning_rate =
/// schedule of the unchanged count. pending = 1 always. schedule_size is at least 1.
constexpr void step_control(const double* sums, const double* schedule, int64_t schedule_size,
                            double max_grad_norm, double beta1, double beta2, double* control) {
  const auto field = [control](Control which) -> double& { return control[index(which)]; };
  const double num_tokens = sums[index(Sum::trained_tokens)];
  const bool empty = !(num_tokens > 0);
  const double inv_tokens = empty ? 0.0 : 1.0 / num_tokens;
  const double norm = std::sqrt(sums[index(Sum::squares)]) * inv_tokens;
  const bool finite = norm - norm == 0;
  const bool apply = !empty && finite;

  double clip = 1.0;
  if (max_grad_norm > 0) {
    const double wanted = max_grad_norm / (norm + 1e-6);
    clip = wanted > 1.0 ? 1.0 : wanted;  // NaN stays NaN
  }
  const auto last = static_cast<double>(schedule_size - 1);
  const double applied = field(Control::updates);
  const auto step = static_cast<int64_t>(applied < last ? applied : last);

  field(Control::global_step) += 1;
  field(Control::learning_rate) = schedule[step];
  field(Control::skip) = apply ? 0.0 : 1.0;
  if (apply) {
    field(Control::updates) += 1;
    field(Control::consecutive_skips) = 0;
  } else {
    field(Control::skipped_steps) += 1;
    if (!empty) field(Control::consecutive_skips) += 1;
  }
  field(Control::pending) = 1;
  field(Control::inv_tokens) = inv_tokens;
  field(Control::loss) =
      empty ? std::numeric_limits<double>::quiet_NaN() : sums[index(Sum::loss)] / num_tokens;
  field(Control::trained_tokens) = num_tokens;
  field(Control::grad_norm) = norm;
  field(Control::clip_coef) = clip;
  field(Control::bias1) = 1.0 - whole_power(beta1, field(Control::updates));
  field(Control::bias2) = 1.0 - whole_power(beta2, field(Control::updates));
}

}  // namespace trireme::ops
