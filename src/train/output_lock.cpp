#include "train/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/file.h"

namespace trireme::train {

OutputLock::OutputLock(const std::string& output_dir) {
  using Clock = std::chrono::steady_clock;
  try {
    make_folders(output_dir);
  } catch (const DeviceError& error) {
    throw ConfigError("output_dir", output_dir, fmt::format("{}; give another one", error.what()));
  }
  fd_ = ::open(output_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) throw_errno("open", output_dir);
  const auto deadline = Clock::now() + std::chrono::seconds(3);
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;
    if (Clock::now() > deadline) {
      ::close(fd_);
      throw ConfigError("output_dir", output_dir,
                        "another run is writing to it; wait for its end, or give another folder");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

OutputLock::~OutputLock() { ::close(fd_); }

}  // namespace trireme::train
