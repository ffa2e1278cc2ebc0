#include "ops/control.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace trireme::ops {

void step_control(const double* sums, const double* schedule, int64_t schedule_size,
                  double max_grad_norm, double beta1, double beta2, double* control) {
  check(schedule_size > 0, "step_control: the schedule is empty");
  const auto field = [control](Control which) -> double& { return control[index(which)]; };
  const double num_tokens = sums[index(Sum::trained_tokens)];
  const bool empty = !(num_tokens > 0);
  const double inv_tokens = empty ? 0.0 : 1.0 / num_tokens;
  const double norm = std::sqrt(sums[index(Sum::squares)]) * inv_tokens;
  const bool apply = !empty && std::isfinite(norm);

  double clip = 1.0;
  if (max_grad_norm > 0) {
    const double wanted = max_grad_norm / (norm + 1e-6);
    clip = wanted > 1.0 ? 1.0 : wanted;  // NaN stays NaN
  }
  const auto last = static_cast<double>(schedule_size - 1);
  const auto step = static_cast<int64_t>(std::min(field(Control::updates), last));

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
  field(Control::bias1) = 1.0 - std::pow(beta1, field(Control::updates));
  field(Control::bias2) = 1.0 - std::pow(beta2, field(Control::updates));
}

}  // namespace trireme::ops
