// A short training whose results are all kept, so that layouts can be compared.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/dataset.h"
#include "data/step_plan.h"
#include "device/backend.h"
#include "model/graph.h"
#include "train/session.h"

namespace trireme::train {

using Tensors = std::map<std::string, std::vector<float>>;  // by parameter name, whole tensors

struct TrialOptions {
  config::RunConfig config;
  model::ModelGraph model;
  const data::Dataset* dataset = nullptr;
  int ranks = 1;
  int64_t first_step = 0;   // the source's state is that of this step
  int64_t steps = 0;        // 0: all of the run
  bool gradients = false;   // collect the gradients of the first step
  bool final_state = true;  // collect masters and moments at the end
  /// Weights to start from; one per rank, made on the rank's thread.
  std::function<std::unique_ptr<StateSource>()> source;
  /// The host waits for a step when the next one is enqueued, as a run does; else at once.
  bool runs_ahead = false;
  const data::Dataset* evaluation = nullptr;  // before_step may evaluate; batches of two packs
  /// Called on every rank before a step is enqueued (evaluate, measure, ...).
  std::function<void(Session&, int rank, int64_t step)> before_step;
  /// Called on every rank when the host knows what a step decided.
  std::function<void(Session&, int rank, int64_t step, const ControlValues&)> after_step;
  /// Micro-batches that are empty, whatever the data say.
  std::function<bool(int data_rank, int64_t step, int64_t micro_batch)> empty;
};

struct TrialResult {
  std::vector<ControlValues> steps;  // every rank's are checked to be equal
  Tensors gradients;                 // of the first step, divided by its trained tokens
  Tensors masters, exp_avg, exp_avg_sq;
  Tensors exported;         // weights as export_weights gives them
  ControlValues control{};  // as a checkpoint would keep it
  plan::ArenaBytes planned{};
  std::array<int64_t, device::kNumSpaces> allocated{};
};

/// What the ranks of one trial have in common.
class Trial {
 public:
  /// `options` outlives this.
  explicit Trial(const TrialOptions& options) : options_(options) {}

  /// The whole training of one rank, on a thread of its own. Collective over options.ranks.
  void run_rank(int rank, device::Backend& backend);
  /// When every rank is done.
  TrialResult take_result() { return std::move(result_); }

 private:
  friend class TrialRank;

  const TrialOptions& options_;
  std::mutex mutex_;
  TrialResult result_;
  int ranks_with_gradients_ = 0;
};

/// Runs `body(rank)` on as many threads and rethrows the first error.
void on_ranks(int ranks, const std::function<void(int rank)>& body);

/// Which packs of the data set each data rank sees at each step.
data::StepPlan step_plan(const TrialOptions& options);

/// What a rank evaluates in before_step; `token_multiple` of its backend.
std::vector<ops::Extent> evaluation_extents(const TrialOptions& options, int rank,
                                            int64_t token_multiple);

/// Largest |a - b| / (max |b| + floor x the largest |b| of all tensors) over all tensors; infinity
/// when the names differ or something is not finite. A floor above 0 is for tensors that are sums
/// which cancel, and nothing but rounding.
double relative_difference(const Tensors& a, const Tensors& b, double floor = 0);

}  // namespace trireme::train
