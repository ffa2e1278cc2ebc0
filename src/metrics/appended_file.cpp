#include "metrics/appended_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace trireme::metrics {

AppendedFile::AppendedFile(std::filesystem::path path, Existing existing) : path_(std::move(path)) {
  const int exclusive = existing == Existing::refused ? O_EXCL : 0;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | exclusive, 0644);
  if (fd_ < 0) throw_errno("open", path_.string());
}

AppendedFile::AppendedFile(AppendedFile&& other) noexcept { *this = std::move(other); }

AppendedFile& AppendedFile::operator=(AppendedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

AppendedFile::~AppendedFile() {
  if (fd_ >= 0) ::close(fd_);
}

void AppendedFile::append(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno("write", path_.string());
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void AppendedFile::sync() {
  if (::fdatasync(fd_) != 0) throw_errno("fdatasync", path_.string());
}

}  // namespace trireme::metrics
