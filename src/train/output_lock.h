// Two runs must not write to one output_dir: the second would cut the logs of the first and mix
// its checkpoints with its own.
#pragma once

#include <string>

namespace trireme::train {

/// Holds `output_dir`, which it makes, until it is destroyed or the process ends, however it ends.
/// An flock of the folder itself: leaves no file, and a file system that has no such locks is
/// taken as free.
class OutputLock {
 public:
  /// Waits up to three seconds for the ranks of a killed run to end. ConfigError when another run
  /// still holds the folder, or it cannot be made.
  explicit OutputLock(const std::string& output_dir);
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;
  ~OutputLock();

 private:
  int fd_ = -1;
};

}  // namespace trireme::train
