// Where a machine keeps the CUDA libraries: the system's, or those that Python's wheels brought.
// Folders are searched; nothing is run or opened.
#pragma once

#include <compare>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::accel {

/// Up to three numbers of a version, from the left; {} is unknown and lower than any other.
struct Version {
  std::vector<int> numbers;
  auto operator<=>(const Version&) const = default;
  bool operator==(const Version&) const = default;
};
/// Of "9.19.0.56"; stops at the first thing that is no number.
Version parse_version(std::string_view text);
std::string to_string(const Version& version);

/// The places a search starts from. `root` is put before absolute folders of the system.
struct SearchEnvironment {
  std::string root;
  std::string path;          // PATH, to find python3
  std::string virtual_env;   // VIRTUAL_ENV
  std::string conda_prefix;  // CONDA_PREFIX
  std::string cuda_home;     // CUDA_HOME
  std::string library_path;  // LD_LIBRARY_PATH
  std::string home;          // HOME, for packages of the user
};
SearchEnvironment environment_of_process();

/// A library by its soname, and the wheel that carries it ("nvidia_cudnn_cu13").
struct LibraryName {
  std::string soname;
  std::string wheel;
};

struct FoundLibrary {
  std::filesystem::path path;
  Version version;  // as the file or the wheel's record says; may be unknown
};

/// Existing folders that may hold CUDA libraries, in the order of preference at equal versions:
/// LD_LIBRARY_PATH, the virtual environment, conda, the python3 of PATH, the user's packages,
/// CUDA_HOME, /usr/local/cuda*, the system's library folders.
std::vector<std::filesystem::path> library_folders(const SearchEnvironment& environment);

/// The newest file of that name; the first of equals. nullopt when no folder has one.
std::optional<FoundLibrary> find_library(const LibraryName& library,
                                         const std::vector<std::filesystem::path>& folders);

}  // namespace trireme::accel
