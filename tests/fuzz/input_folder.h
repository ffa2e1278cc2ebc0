// Where a fuzz target puts its input, for readers that take files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "support/temp_folder.h"

namespace trireme::fuzz {

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A folder of the process, removed at its end.
class InputFolder {
 public:
  /// Writes `text` and returns the path of the file.
  std::filesystem::path put(const std::string& name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  test::TempFolder folder_;
};

}  // namespace trireme::fuzz
