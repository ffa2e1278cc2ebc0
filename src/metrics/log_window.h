// The steps between two lines of a log, summed up: no average of averages.
#pragma once

#include <cstdint>
#include <limits>

#include "metrics/record.h"

namespace trireme::metrics {

struct LogWindow {
  double loss_sum = 0;
  int64_t trained_tokens = 0;
  int64_t input_tokens = 0;
  double seconds = 0;

  void add(const StepRecord& record) {
    if (!record.skipped) {
      loss_sum += record.loss * static_cast<double>(record.trained_tokens);
      trained_tokens += record.trained_tokens;
    }
    input_tokens += record.input_tokens;
    seconds += record.step_seconds;
  }
  /// Of all trained tokens; NaN when there are none.
  double loss() const {
    return trained_tokens > 0 ? loss_sum / static_cast<double>(trained_tokens)
                              : std::numeric_limits<double>::quiet_NaN();
  }
  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(input_tokens) / seconds : 0;
  }
};

}  // namespace trireme::metrics
