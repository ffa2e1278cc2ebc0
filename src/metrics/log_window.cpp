#include "metrics/log_window.h"

#include <limits>

namespace trireme::metrics {

bool LogWindow::due(const StepRecord& record) const {
  if (pace_.first_step && record.step == 1) return true;
  if (pace_.strategy == config::Strategy::epoch) return record.ends_epoch;
  return pace_.strategy == config::Strategy::steps && record.step % pace_.steps == 0;
}

std::optional<LogRecord> LogWindow::add(const StepRecord& record) {
  if (!record.skipped) {
    loss_sum_ += record.loss * static_cast<double>(record.trained_tokens);
    trained_tokens_ += record.trained_tokens;
  }
  input_tokens_ += record.input_tokens;
  all_tokens_ += record.input_tokens;
  seconds_ += record.step_seconds;
  if (!due(record)) return std::nullopt;
  const LogRecord line = {
      .step = record.step,
      .epoch = record.epoch,
      .loss = trained_tokens_ > 0 ? loss_sum_ / static_cast<double>(trained_tokens_)
                                  : std::numeric_limits<double>::quiet_NaN(),
      .grad_norm = record.grad_norm,
      .learning_rate = record.learning_rate,
      .tokens_per_second = seconds_ > 0 ? static_cast<double>(input_tokens_) / seconds_ : 0,
      .input_tokens = all_tokens_,
  };
  loss_sum_ = seconds_ = 0;
  trained_tokens_ = input_tokens_ = 0;
  return line;
}

}  // namespace trireme::metrics
