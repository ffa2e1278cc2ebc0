#include "accel/library_search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace trireme::accel {

namespace {

namespace fs = std::filesystem;

/// Existing folders, each once.
class Folders {
 public:
  void add(const fs::path& folder) {
    std::error_code error;
    if (folder.empty() || !fs::is_directory(folder, error)) return;
    if (std::find(list_.begin(), list_.end(), folder) == list_.end()) list_.push_back(folder);
  }
  /// Children of `parent` whose names start so, newest name first.
  static std::vector<fs::path> children(const fs::path& parent, std::string_view prefix) {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
      if (at->path().filename().string().starts_with(prefix)) found.push_back(at->path());
    }
    std::sort(found.rbegin(), found.rend());
    return found;
  }
  /// What wheels put under a folder of packages.
  void add_packages(const fs::path& packages) {
    for (const fs::path& wheel : children(packages / "nvidia", "")) add(wheel / "lib");
  }
  /// The packages of the Python installed under `prefix`.
  void add_python(const fs::path& prefix) {
    for (const char* library : {"lib", "lib64"}) {
      for (const fs::path& python : children(prefix / library, "python3")) {
        add_packages(python / "site-packages");
        add_packages(python / "dist-packages");
      }
    }
  }
  std::vector<fs::path> take() { return std::move(list_); }

 private:
  std::vector<fs::path> list_;
};

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(':'), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

/// The folder that holds bin/python3, first as PATH names it (a virtual environment's own packages)
/// and then where its links lead.
void add_python_of_path(const SearchEnvironment& environment, Folders* folders) {
  std::error_code error;
  for (const std::string& folder : split(environment.path)) {
    const fs::path python = fs::path(folder) / "python3";
    if (!fs::exists(python, error)) continue;
    folders->add_python(python.parent_path().parent_path());
    const fs::path real = fs::canonical(python, error);
    if (!error) folders->add_python(real.parent_path().parent_path());
    return;
  }
}

/// The version that the wheel's record beside `nvidia/` states.
Version version_of_wheel(const fs::path& library, std::string_view wheel) {
  const fs::path packages = library.parent_path().parent_path().parent_path().parent_path();
  const std::string prefix = std::string(wheel) + "-";
  for (const fs::path& record : Folders::children(packages, prefix)) {
    if (record.extension() != ".dist-info") continue;
    return parse_version(record.filename().string().substr(prefix.size()));
  }
  return {};
}

/// The version in the name of the file that the soname links to.
Version version_of_file(const fs::path& library) {
  std::error_code error;
  const std::string name = fs::canonical(library, error).filename().string();
  const size_t at = name.find(".so.");
  if (error || at == std::string::npos) return {};
  Version version = parse_version(std::string_view(name).substr(at + 4));
  // The major number alone is the soname's and tells nothing.
  return version.numbers.size() > 1 ? version : Version{};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Version parse_version(std::string_view text) {
  Version version;
  while (version.numbers.size() < 3 && !text.empty()) {
    int number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (code != std::errc()) break;
    version.numbers.push_back(number);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty() || text.front() != '.') break;
    text.remove_prefix(1);
  }
  return version;
}

std::string to_string(const Version& version) {
  if (version.numbers.empty()) return "unknown";
  return fmt::format("{}", fmt::join(version.numbers, "."));
}

SearchEnvironment environment_of_process() {
  SearchEnvironment environment;
  environment.path = variable("PATH");
  environment.virtual_env = variable("VIRTUAL_ENV");
  environment.conda_prefix = variable("CONDA_PREFIX");
  environment.cuda_home = variable("CUDA_HOME");
  environment.library_path = variable("LD_LIBRARY_PATH");
  environment.home = variable("HOME");
  return environment;
}

std::vector<fs::path> library_folders(const SearchEnvironment& environment) {
  Folders folders;
  for (const std::string& folder : split(environment.library_path)) folders.add(folder);
  if (!environment.virtual_env.empty()) folders.add_python(environment.virtual_env);
  if (!environment.conda_prefix.empty()) {
    folders.add_python(environment.conda_prefix);
    folders.add(fs::path(environment.conda_prefix) / "lib");
  }
  add_python_of_path(environment, &folders);
  if (!environment.home.empty()) folders.add_python(fs::path(environment.home) / ".local");
  const std::string& root = environment.root;
  folders.add_python(root + "/usr/local");
  const auto add_toolkit = [&](const fs::path& toolkit) {
    folders.add(toolkit / "lib64");
    folders.add(toolkit / "targets/x86_64-linux/lib");
    folders.add(toolkit / "targets/sbsa-linux/lib");
  };
  if (!environment.cuda_home.empty()) add_toolkit(environment.cuda_home);
  for (const fs::path& toolkit : Folders::children(root + "/usr/local", "cuda")) {
    add_toolkit(toolkit);
  }
  for (const char* folder : {"/usr/local/lib", "/usr/lib/x86_64-linux-gnu",
                             "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
    folders.add(root + folder);
  }
  return folders.take();
}

std::optional<FoundLibrary> find_library(const LibraryName& library,
                                         const std::vector<fs::path>& folders) {
  std::optional<FoundLibrary> best;
  std::error_code error;
  for (const fs::path& folder : folders) {
    const fs::path path = folder / library.soname;
    if (!fs::exists(path, error)) continue;
    Version version = version_of_wheel(path, library.wheel);
    if (version.numbers.empty()) version = version_of_file(path);
    if (!best || version > best->version) best = FoundLibrary{path, version};
  }
  return best;
}

}  // namespace trireme::accel
