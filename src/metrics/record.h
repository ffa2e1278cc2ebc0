// What a run says about itself, and the contract of everything that listens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::metrics {

/// Known before step 0; printed as the banner.
struct RunFacts {
  int64_t num_examples = 0;
  int64_t num_train_epochs = 0;  // epochs entered: fractions rounded up
  int64_t per_device_batch_size = 0;
  int64_t total_batch_size = 0;  // micro-batch × accumulation × data ranks
  int64_t gradient_accumulation_steps = 0;
  int64_t total_steps = 0;
  int64_t num_trainable_parameters = 0;
  int64_t steps_per_epoch = 0;  // optimizer steps
  int64_t resumed_step = 0;     // the checkpoint's step; 0: a fresh run
  /// Forward and backward of one token, as Hugging Face counts: 6 a weight outside the embedding.
  double flops_per_token = 0;
  /// Further lines, (name, value): device, ranks, ZeRO stage, sequence length, ...
  std::vector<std::pair<std::string, std::string>> more = {};
};

/// One optimizer step, over the whole world. Numbers of the control block (ops/control.h) as they
/// are: NaN and infinity are reported, never replaced.
struct StepRecord {
  int64_t step = 0;      // 1 for the first; skipped steps count
  double epoch = 0;      // epochs done after this step
  double loss = 0;       // loss sum / trained tokens; NaN when there are none
  double grad_norm = 0;  // before clipping
  double clip_coef = 1;
  double learning_rate = 0;    // the one this step used
  int64_t trained_tokens = 0;  // labels that count, in this step
  int64_t input_tokens = 0;    // tokens computed, padding excluded, in this step
  int64_t samples = 0;         // rows of data in this step
  double step_seconds = 0;
  int64_t skipped_steps = 0;  // since the run began
  bool skipped = false;       // this step left the weights as they were
  bool ends_epoch = false;

  double tokens_per_second() const {
    return step_seconds > 0 ? static_cast<double>(input_tokens) / step_seconds : 0;
  }
};

/// A line of the log: what the steps since the line before came to.
struct LogRecord {
  int64_t step = 0;  // the last of them, whose epoch, norm and rate these are
  double epoch = 0;
  double loss = 0;  // of all their trained tokens: no average of averages; NaN for none
  double grad_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  int64_t input_tokens = 0;  // since the run began, before a resume too
};

struct EvalRecord {
  int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  double seconds = 0;
  int64_t samples = 0;
  int64_t batches = 0;  // micro-batches of one rank
};

/// What the run came to. Speeds are of this process: work done before a resume has no time here.
struct Summary {
  double seconds = 0;
  double samples_per_second = 0;
  double steps_per_second = 0;
  double tokens_per_second = 0;
  /// Loss sum / trained tokens over all steps that were not skipped, those before a resume
  /// included.
  double loss = 0;
  int64_t skipped_steps = 0;  // those that `loss` leaves out
  double epoch = 0;
};

/// A listener. Calls come from one thread, in order: begin once, steps in order, then finish.
/// Errors: DeviceError naming the file.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void begin(const RunFacts& facts) = 0;
  virtual void step(const StepRecord& record) = 0;
  /// The line that a step ends with; comes before step() of that step.
  virtual void log(const LogRecord&) {}
  virtual void evaluation(const EvalRecord& record) = 0;
  /// Blocks until everything told so far would survive a power cut.
  virtual void sync() = 0;
  virtual void finish(const Summary& summary) = 0;
};

}  // namespace trireme::metrics
