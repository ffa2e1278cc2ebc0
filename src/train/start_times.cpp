#include "train/start_times.h"

#include <fmt/ranges.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace trireme::train {

void StartTimes::end(std::string_view phase, Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  const auto known = std::ranges::find(phases_, phase, [](const auto& each) { return each.first; });
  if (known != phases_.end()) {
    known->second += seconds;
  } else {
    phases_.emplace_back(phase, seconds);
  }
}

std::string StartTimes::text() const {
  constexpr double kShown = 0.05;
  double total = 0;
  double rest = 0;
  std::vector<std::string> parts;
  for (const auto& [phase, seconds] : phases_) {
    total += seconds;
    if (seconds < kShown) {
      rest += seconds;
    } else {
      parts.push_back(fmt::format("{} {:.1f}", phase, seconds));
    }
  }
  if (rest >= kShown) parts.push_back(fmt::format("the rest {:.1f}", rest));
  std::string text = fmt::format("Started in {:.1f} s", total);
  if (!parts.empty()) text += fmt::format(": {}", fmt::join(parts, ", "));
  return text;
}

StartTimes::Clock::time_point StartTimes::process_start() {
  const Clock::time_point now = Clock::now();
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');  // the second field may hold anything
  timespec since_boot{};
  if (name_end == std::string::npos || clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return now;
  constexpr size_t kStartTime = 19;  // field 22, counted from the third; proc(5)
  std::istringstream fields(line.substr(name_end + 1));
  const std::vector<std::string> values{std::istream_iterator<std::string>(fields), {}};
  if (values.size() <= kStartTime) return now;
  const double started =
      std::stod(values[kStartTime]) / static_cast<double>(sysconf(_SC_CLK_TCK));
  const double age = static_cast<double>(since_boot.tv_sec) +
                     static_cast<double>(since_boot.tv_nsec) * 1e-9 - started;
  return now - std::chrono::duration_cast<Clock::duration>(
                   std::chrono::duration<double>(std::max(0.0, age)));
}

}  // namespace trireme::train
