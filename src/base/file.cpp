#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace trireme {

namespace {

// Linux moves at most 2 GiB - 4 KiB in one call.
constexpr int64_t kLargestCall = int64_t{1} << 30;

int retry_open(const std::filesystem::path& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) throw_errno("open", path.string());
  return fd;
}

[[noreturn]] void throw_code(std::string_view call, const std::filesystem::path& path,
                             const std::error_code& code) {
  throw DeviceError(fmt::format("{}('{}'): {}", call, path.string(), code.message()));
}

}  // namespace

File File::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer before it is refused.
  File file(retry_open(path, O_RDONLY | O_NONBLOCK, 0), path);
  struct stat status {};
  if (::fstat(file.fd_, &status) != 0) throw_errno("fstat", path.string());
  if (!S_ISREG(status.st_mode)) {
    throw DataError(fmt::format("{}: not a regular file", path.string()));
  }
  return file;
}

File File::create(const std::filesystem::path& path) {
  return File(retry_open(path, O_WRONLY | O_CREAT | O_EXCL, 0644), path);
}

File File::open_for_writing(const std::filesystem::path& path) {
  return File(retry_open(path, O_WRONLY, 0), path);
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

int64_t File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) throw_errno("fstat", path_.string());
  return status.st_size;
}

void File::read_at(void* data, int64_t bytes, int64_t offset) const {
  auto* to = static_cast<std::byte*>(data);
  int64_t done = 0;
  while (done < bytes) {
    const auto part = static_cast<size_t>(std::min(bytes - done, kLargestCall));
    const ssize_t got = ::pread(fd_, to + done, part, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("pread", path_.string());
    if (got == 0) {
      throw DataError(
          fmt::format("{}: the file ends at byte {} but {} bytes from byte {} were "
                      "needed (truncated?)",
                      path_.string(), offset + done, bytes, offset));
    }
    done += got;
  }
}

void File::write_at(const void* data, int64_t bytes, int64_t offset) {
  const auto* from = static_cast<const std::byte*>(data);
  int64_t done = 0;
  while (done < bytes) {
    const auto part = static_cast<size_t>(std::min(bytes - done, kLargestCall));
    const ssize_t put = ::pwrite(fd_, from + done, part, offset + done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_errno("pwrite", path_.string());
    if (put == 0) {
      throw DeviceError(fmt::format("pwrite('{}'): wrote nothing of {} bytes at byte {}",
                                    path_.string(), bytes - done, offset + done));
    }
    done += put;
  }
}

void File::resize(int64_t bytes) {
  if (::ftruncate(fd_, bytes) != 0) throw_errno("ftruncate", path_.string());
}

void File::sync() {
  if (::fsync(fd_) != 0) throw_errno("fsync", path_.string());
}

void File::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) throw_errno("close", path_.string());
}

std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes) {
  const File file = File::open(path);
  const int64_t bytes = file.size();
  if (bytes > max_bytes) {
    throw DataError(fmt::format("{}: {}, more than the {} allowed for such a file", path.string(),
                                human_bytes(bytes), human_bytes(max_bytes)));
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read_at(text.data(), bytes, 0);
  return text;
}

void write_new_file(const std::filesystem::path& path, std::string_view text) {
  File file = File::create(path);
  file.write_at(text.data(), static_cast<int64_t>(text.size()), 0);
  file.sync();
  file.close();
}

void replace_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  remove_tree(temporary);
  try {
    write_new_file(temporary, text);
  } catch (const DeviceError&) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  rename_path(temporary, path);
  sync_folder(path.has_parent_path() ? path.parent_path() : ".");
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw_errno("rename", fmt::format("{}' to '{}", from.string(), to.string()));
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = retry_open(folder, O_RDONLY | O_DIRECTORY, 0);
  const int result = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  errno = code;
  if (result != 0) throw_errno("fsync", folder.string());
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) throw_code("mkdir", folder, code);
}

std::vector<std::string> list_folder(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (std::filesystem::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    names.push_back(entry->path().filename().string());
  }
  if (code && code != std::errc::no_such_file_or_directory) throw_code("readdir", folder, code);
  return names;
}

void remove_tree(const std::filesystem::path& path) {
  std::error_code code;
  std::filesystem::remove_all(path, code);
  if (code) throw_code("remove", path, code);
}

int64_t free_bytes(const std::filesystem::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) throw_errno("statvfs", folder.string());
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

}  // namespace trireme
