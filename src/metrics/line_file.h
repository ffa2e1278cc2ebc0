// A file of JSON lines of a run, each of which says its step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "metrics/appended_file.h"

namespace trireme::metrics {

/// The text after `"key": ` in a line of ours, to the end of the line; empty when the key is
/// absent.
std::string_view value_of(std::string_view line, std::string_view key);
std::optional<int64_t> integer_of(std::string_view line, std::string_view key);
/// NaN when the key is absent.
double real_of(std::string_view line, std::string_view key);

/// A line that stays, and its step.
using KeptLine = std::function<void(std::string_view line, int64_t step)>;

/// Removes the lines of steps after `step` (`step_key` says a line's step) and a torn last line: in
/// a new file that takes the old one's place, so that a kill leaves one or the other. No file:
/// nothing to do. Throws DataError `path:line: ...` on a line that is not ours, DeviceError when
/// writing fails.
void cut_back(const std::filesystem::path& path, std::string_view step_key, int64_t step,
              const KeptLine& kept = {});

/// Each line goes out in one write, so a reader never sees half of one. Errors: DeviceError.
class LineFile {
 public:
  /// Opens `path` for the steps after `resumed_step`: cut back to it, or, when that is 0, as a new
  /// file; an earlier run's is then kept beside it with ".old" after its name.
  LineFile(const std::filesystem::path& path, std::string_view step_key, int64_t resumed_step,
           const KeptLine& kept = {});

  void write(std::string_view line) { file_.append(line); }  // which ends with a newline
  /// Blocks until all lines would survive a power cut.
  void sync() { file_.sync(); }

 private:
  AppendedFile file_;
};

}  // namespace trireme::metrics
