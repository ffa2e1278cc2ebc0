// Where the time goes between the start of the process and the end of its first step.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::train {

/// Phases of the host thread, one after the other, which add up to the time that the user waits.
/// What other threads do meanwhile shows only where the host thread waits for it.
class StartTimes {
 public:
  using Clock = std::chrono::steady_clock;

  /// `start`: of the process.
  explicit StartTimes(Clock::time_point start = process_start()) : last_(start) {}

  /// All since the end before belongs to `phase`; a phase may have several parts.
  void end(std::string_view phase, Clock::time_point now = Clock::now());
  /// "Started in 4.8 s: device 2.1, weights 0.9, the rest 0.1": phases of 0.05 s and more, in their
  /// order.
  std::string text() const;

  /// By the kernel, to 10 ms. Where it does not tell: now.
  static Clock::time_point process_start();

 private:
  Clock::time_point last_;
  std::vector<std::pair<std::string, double>> phases_;  // seconds
};

}  // namespace trireme::train
