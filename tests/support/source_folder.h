// Where the repository's test data lie: the source tree, or the folder that TRIREME_SOURCE_DIR
// names where the tests run on another machine.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace trireme::testing {

inline std::filesystem::path source_folder() {
  const char* folder = std::getenv("TRIREME_SOURCE_DIR");
  return folder == nullptr ? TRIREME_SOURCE_DIR : folder;
}

}  // namespace trireme::testing
