// What a person sees: the banner, a progress line redrawn in place on a terminal, and a line in
// Hugging Face Trainer's form for each line of the log.
//
//   {'loss': 6.9312, 'grad_norm': 1.5234, 'learning_rate': 5e-05, 'epoch': 0.12, 'step': 10,
//    'tokens_per_second': 10234.5, 'time_left': '03:51'}                          (one line)
//    12%|█▊            | 12/100 [00:31<03:51, 2.60s/it, loss 6.93, norm 1.52, lr 5e-05, 10.2k
//    tok/s]
//
// A skipped step gets a line of its own.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "metrics/record.h"

namespace trireme::metrics {

/// Of the machine's steadily growing clock.
double steady_seconds();

struct ConsoleOptions {
  int line_fd = 1;                                 // banner and lines
  int bar_fd = 2;                                  // the progress line, when this is a terminal
  bool unicode = true;                             // block characters in the bar; else '#'
  std::function<double()> clock = steady_seconds;  // tests turn their own
};

/// Output that cannot be written (a closed pipe) is dropped: a run outlives its terminal.
/// The descriptors are not owned.
class Console : public Sink {
 public:
  explicit Console(ConsoleOptions options);
  /// Leaves the cursor on a fresh line, so that an error message does not start inside the bar.
  ~Console() override;
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void begin(const RunFacts& facts) override;
  void step(const StepRecord& record) override;
  void log(const LogRecord& record) override;
  void evaluation(const EvalRecord& record) override;
  void sync() override {}
  void finish(const Summary& summary) override;

  /// Prints `text` (whole lines) above the progress line.
  void print(std::string_view text);

 private:
  void draw_bar();
  void erase_bar();
  double seconds_left(int64_t step) const;
  std::string bar_text(int64_t columns) const;
  std::string state_text(bool with_rate) const;

  ConsoleOptions options_;
  bool terminal_;
  RunFacts facts_;
  double started_ = 0;
  double last_drawn_ = 0;
  double last_printed_ = 0;
  StepRecord last_;
  size_t shown_columns_ = 0;  // of the progress line now on the terminal
};

}  // namespace trireme::metrics
