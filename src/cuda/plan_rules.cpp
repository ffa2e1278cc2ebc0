#include "cuda/plan_rules.h"

namespace trireme::cuda {

namespace {

constexpr double kTera = 1e12;
constexpr double kProductRate = 680 * kTera;

/// FLOP/s of cuDNN 9.19 within steps of an H200 at its power limit, causal.
struct AttentionRates {
  double forward, gradient, repeating_gradient;
};

AttentionRates rates_of(int64_t head_dim, int64_t longest) {
  constexpr int64_t kLong = 16384;
  if (head_dim < 128) return {365 * kTera, 310 * kTera, 240 * kTera};
  if (longest >= kLong) return {540 * kTera, 460 * kTera, 400 * kTera};
  return {450 * kTera, 365 * kTera, 285 * kTera};
}

}  // namespace

int64_t memory_besides(int64_t world_size) {
  constexpr int64_t kAlone = int64_t{560} << 20;
  constexpr int64_t kTogether = int64_t{1400} << 20;
  return world_size > 1 ? kTogether : kAlone;
}

double repeat_cost(const StepShape& shape) {
  const AttentionRates rates = rates_of(shape.head_dim, shape.longest);
  const double products = 6 * shape.parameters / kProductRate;
  // Scores and their values: two products of the visible half a token; five in the gradient.
  const double one = static_cast<double>(shape.layers * shape.heads * shape.head_dim) *
                     static_cast<double>(shape.longest);
  const double forward = 2 * one / rates.forward;
  const double gradient = 5 * one / rates.gradient;
  return (5 * one / rates.repeating_gradient - gradient) / (products + forward + gradient);
}

bool repeats_cheaply(const StepShape& shape) {
  constexpr double kMostCost = 0.05;
  constexpr double kMostBytes = double{int64_t{2} << 30};
  // The gradient of every score, in bf16.
  const auto length = static_cast<double>(shape.longest);
  const double workspace = 2 * static_cast<double>(shape.heads) * length * length;
  return workspace <= kMostBytes && repeat_cost(shape) < kMostCost;
}

}  // namespace trireme::cuda
