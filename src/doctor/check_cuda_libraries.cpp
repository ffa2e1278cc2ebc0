#include <dlfcn.h>
#include <fmt/format.h>

#include "accel/library_search.h"
#include "doctor/checks.h"

namespace trireme::doctor {
namespace {

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

/// The numbers of 91900 or 130200 as these libraries write it.
std::string decimal_version(int64_t code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

/// What the loaded library says of itself; empty when it does not.
std::string version_of(void* library) {
  if (const auto ask = symbol<int (*)(int*, int*)>(library, "nvrtcVersion")) {
    int major = 0, minor = 0;
    return ask(&major, &minor) == 0 ? fmt::format("{}.{}", major, minor) : "";
  }
  for (const char* name : {"cublasLtGetVersion", "cudnnGetVersion"}) {
    if (const auto ask = symbol<size_t (*)()>(library, name)) {
      return decimal_version(static_cast<int64_t>(ask()));
    }
  }
  if (const auto ask = symbol<int (*)(int*)>(library, "ncclGetVersion")) {
    int code = 0;
    return ask(&code) == 0 ? decimal_version(code) : "";
  }
  return "";
}

Finding check_library(const accel::NeededLibrary& needed, const std::filesystem::path& path) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return {Verdict::bad, needed.product, reason == nullptr ? path.string() : reason,
            fmt::format("pip install --force-reinstall {}", needed.package)};
  }
  const std::string version = version_of(library);
  return {Verdict::good, needed.product,
          fmt::format("{}{}", version.empty() ? "" : version + ", ", path.string()), ""};
}

}  // namespace

Findings check_cuda_libraries(const std::vector<std::filesystem::path>& folders, bool wanted) {
  Findings findings;
  for (const accel::NeededLibrary& needed : accel::needed_libraries()) {
    if (const auto found = accel::find_library(needed.name, folders)) {
      findings.push_back(check_library(needed, found->path));
      // Without GPUs nobody loads it.
      if (!wanted && findings.back().verdict == Verdict::bad) findings.pop_back();
    } else if (wanted) {
      findings.push_back({Verdict::bad, needed.product,
                          fmt::format("{} is not installed", needed.name.soname),
                          fmt::format("pip install {}", needed.package)});
    }
  }
  return findings;
}

}  // namespace trireme::doctor
