#include "accel/cuda_loader.h"

#include <dlfcn.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <vector>

#include "accel/library_search.h"
#include "base/error.h"

namespace trireme::accel {

namespace {

namespace fs = std::filesystem;

constexpr int kDriverNeeded = 13000;  // CUDA 13.0
constexpr char kDriverText[] = "CUDA 13.0 (driver 580 or newer)";
constexpr char kModule[] = "libtrireme_cuda.so";

[[noreturn]] void refuse(const std::string& what, const std::string& remedy) {
  throw ConfigError(fmt::format("device cuda: {}; {}, or pass --device cpu", what, remedy));
}

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

/// The driver's library: NVIDIA's container runtimes mount it outside the loader's folders.
void* open_driver() {
  for (const char* name : {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1",
                           "/usr/local/nvidia/lib/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}

/// Read when the driver starts. With fewer queues than streams, streams of one device wait for each
/// other, and collectives of two communicators can then deadlock.
void set_driver_environment() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); }

CudaSight start_driver(void* library) {
  CudaSight driver;
  if (library == nullptr) {
    driver.why_not = "no NVIDIA driver (libcuda.so.1) is installed";
    return driver;
  }
  const auto init = symbol<int (*)(unsigned)>(library, "cuInit");
  const auto version = symbol<int (*)(int*)>(library, "cuDriverGetVersion");
  const auto count = symbol<int (*)(int*)>(library, "cuDeviceGetCount");
  const auto name = symbol<int (*)(int, const char**)>(library, "cuGetErrorName");
  if (init == nullptr || version == nullptr || count == nullptr || name == nullptr) {
    driver.why_not = "libcuda.so.1 is no complete NVIDIA driver";
    return driver;
  }
  int result = init(0);
  if (result == 0) result = version(&driver.driver_version);
  if (result == 0) result = count(&driver.num_devices);
  if (result != 0) {
    const char* text = nullptr;
    (void)name(result, &text);
    driver.num_devices = 0;
    driver.why_not = fmt::format("the NVIDIA driver does not start: {} ({})",
                                 text == nullptr ? "error" : text, result);
  } else if (driver.num_devices == 0) {
    driver.why_not = "the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES?)";
  }
  return driver;
}

/// Makes the primary context of a GPU, which CUDA's runtime then takes. What goes wrong here goes
/// wrong again, with words, where a backend is opened.
void start_context(void* library, int device) {
  const auto get = symbol<int (*)(int*, int)>(library, "cuDeviceGet");
  const auto retain = symbol<int (*)(void**, int)>(library, "cuDevicePrimaryCtxRetain");
  int handle = 0;
  void* context = nullptr;
  if (get == nullptr || retain == nullptr || get(&handle, device) != 0) return;
  (void)retain(&context, handle);
}

/// Loading a library by its path satisfies the module's need for its soname, wherever the file
/// lies.
void* load(const NeededLibrary& needed, const std::vector<fs::path>& folders) {
  const std::optional<FoundLibrary> found = find_library(needed.name, folders);
  const std::string file = found ? found->path.string() : needed.name.soname;
  void* library = dlopen(file.c_str(), RTLD_LAZY | RTLD_GLOBAL);
  if (library != nullptr) return library;
  const char* reason = dlerror();
  refuse(fmt::format("{} ({}) cannot be loaded: {}", needed.product, needed.name.soname,
                     reason == nullptr ? "unknown reason" : reason),
         fmt::format("install it with pip install {}", needed.package));
}

void check_cudnn(void* library) {
  constexpr size_t kNeeded = 91900;
  const auto version = symbol<size_t (*)()>(library, "cudnnGetVersion");
  const size_t found = version == nullptr ? 0 : version();
  if (found >= kNeeded) return;
  refuse(fmt::format("cuDNN {}.{}.{} is too old, 9.19 is needed", found / 10000, found / 100 % 100,
                     found % 100),
         "update it with pip install --upgrade nvidia-cudnn-cu13");
}

fs::path find_module() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> folders = {program.parent_path(),
                                   program.parent_path().parent_path() / "lib"};
  // Programs of the build tree lie some folders below it.
  fs::path above = program.parent_path();
  for (int i = 0; i < 2; ++i) folders.push_back(above = above.parent_path());
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / kModule, error)) return folder / kModule;
  }
  refuse(fmt::format("{} is not beside {}", kModule, program.string()),
         "take a build made where the CUDA 13 compiler is installed");
}

const device::BackendModule& open_module(const fs::path& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* reason = dlerror();
    refuse(fmt::format("{} cannot be loaded: {}", path.string(), reason == nullptr ? "" : reason),
           "install the CUDA 13 libraries it names");
  }
  const auto function = symbol<device::BackendModuleFunction>(library, device::kBackendSymbol);
  const device::BackendModule* module = function == nullptr ? nullptr : function();
  if (module == nullptr || module->abi != device::kBackendAbi ||
      std::string_view(module->version) != TRIREME_VERSION) {
    refuse(fmt::format("{} is of another version of trireme", path.string()),
           "install both files from one build");
  }
  return *module;
}

struct OpenedLibraries {
  const device::BackendModule* module = nullptr;
  device::ModuleLibraries libraries;
};

OpenedLibraries open_libraries() {
  const fs::path module = find_module();
  const std::vector<fs::path> folders = library_folders(environment_of_process());
  const std::vector<NeededLibrary> needed = needed_libraries();
  load(needed[0], folders);
  load(needed[1], folders);
  check_cudnn(load(needed[2], folders));
  const std::optional<FoundLibrary> nccl = find_library(needed[3].name, folders);
  OpenedLibraries opened;
  opened.libraries.collectives = nccl ? nccl->path.string() : needed[3].name.soname;
  opened.module = &open_module(module);
  return opened;
}

/// The driver takes a second or more to start, and its context as long: libraries load beside it.
std::unique_ptr<device::BackendMaker> open_cuda(const CudaStart& start) {
  void* library = open_driver();
  if (library == nullptr && !start.required) return nullptr;
  auto starting = std::async(std::launch::async, [&] {
    const CudaSight driver = start_driver(library);
    if (driver.num_devices > 0 && start.local_rank >= 0) {
      start_context(library, start.local_rank % driver.num_devices);
    }
    return driver;
  });
  OpenedLibraries opened;
  std::exception_ptr missing;
  try {
    if (library != nullptr) opened = open_libraries();
  } catch (const ConfigError&) {
    missing = std::current_exception();
  }
  const CudaSight driver = starting.get();
  if (driver.num_devices == 0 && !start.required) return nullptr;
  if (!driver.why_not.empty()) {
    refuse(driver.why_not, fmt::format("install a driver for {}", kDriverText));
  }
  if (driver.driver_version < kDriverNeeded) {
    refuse(fmt::format("the NVIDIA driver is for CUDA {}.{}", driver.driver_version / 1000,
                       driver.driver_version % 1000 / 10),
           fmt::format("install a driver for {}", kDriverText));
  }
  if (missing) std::rethrow_exception(missing);
  return std::unique_ptr<device::BackendMaker>(opened.module->make(opened.libraries));
}

}  // namespace

std::vector<NeededLibrary> needed_libraries() {
  return {{{"libnvrtc.so.13", "nvidia_cuda_nvrtc"}, "NVRTC", "nvidia-cuda-nvrtc"},
          {{"libcublasLt.so.13", "nvidia_cublas"}, "cuBLASLt", "nvidia-cublas"},
          {{"libcudnn.so.9", "nvidia_cudnn_cu13"}, "cuDNN 9", "nvidia-cudnn-cu13"},
          {{"libnccl.so.2", "nvidia_nccl_cu13"}, "NCCL", "nvidia-nccl-cu13"}};
}

CudaSight look_for_cuda() {
  set_driver_environment();
  return start_driver(open_driver());
}

std::future<std::unique_ptr<device::BackendMaker>> start_cuda(const CudaStart& start) {
  set_driver_environment();  // while this is the only thread that looks at the environment
  return std::async(std::launch::async, [start] { return open_cuda(start); });
}

std::unique_ptr<device::BackendMaker> load_cuda() { return start_cuda({}).get(); }

}  // namespace trireme::accel
