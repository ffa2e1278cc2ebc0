// Files, blocking and complete: a call does all it was asked or throws. Failed system calls are
// DeviceErrors that name the call, the path and the reason; a file that ends too early is a
// DataError.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// An open regular file. Movable; closes itself.
class File {
 public:
  /// For reading. Follows symbolic links; anything but a regular file is a DataError.
  static File open(const std::filesystem::path& path);
  /// A new file for writing; an existing one is a DeviceError.
  static File create(const std::filesystem::path& path);
  /// An existing file, to write parts of it.
  static File open_for_writing(const std::filesystem::path& path);

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  int64_t size() const;

  /// Exactly `bytes` from `offset`.
  void read_at(void* data, int64_t bytes, int64_t offset) const;
  /// All of `bytes` at `offset`.
  void write_at(const void* data, int64_t bytes, int64_t offset);
  /// Cuts the file, or appends zeros that take no room on the disk.
  void resize(int64_t bytes);
  /// fsync.
  void sync();
  /// Reports errors that the destructor would hide.
  void close();

 private:
  File(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}

  int fd_ = -1;
  std::filesystem::path path_;
};

/// The whole file; a DataError when it holds more than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes);

/// Writes a new file and fsyncs it.
void write_new_file(const std::filesystem::path& path, std::string_view text);

/// Replaces or makes the file so that a reader, or a machine that lost power, sees the old text or
/// the new one: writes PATH.tmp, fsyncs, renames, fsyncs the folder.
void replace_file(const std::filesystem::path& path, std::string_view text);

/// rename, which replaces a file (or an empty folder) at `to`. Both in one file system.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// fsync of a folder: makes the names in it durable.
void sync_folder(const std::filesystem::path& folder);

/// mkdir -p.
void make_folders(const std::filesystem::path& folder);

/// Names of all entries of a folder, in no order; none when there is no such folder.
std::vector<std::string> list_folder(const std::filesystem::path& folder);

/// rm -rf. Does not follow symbolic links.
void remove_tree(const std::filesystem::path& path);

/// Bytes an ordinary user may still write to the file system of `folder`.
int64_t free_bytes(const std::filesystem::path& folder);

}  // namespace trireme
