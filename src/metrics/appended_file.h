// A file that grows at its end, in whole pieces.
#pragma once

#include <filesystem>
#include <string_view>

namespace trireme::metrics {

/// Errors: DeviceError naming the file.
class AppendedFile {
 public:
  enum class Existing { kept, refused };  // refused: EEXIST is an error like any other
  AppendedFile() = default;
  explicit AppendedFile(std::filesystem::path path, Existing existing = Existing::kept);
  AppendedFile(AppendedFile&& other) noexcept;
  AppendedFile& operator=(AppendedFile&& other) noexcept;
  ~AppendedFile();

  /// In one write, so that a reader never sees half of it.
  void append(std::string_view text);
  /// Blocks until all of it would survive a power cut.
  void sync();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace trireme::metrics
