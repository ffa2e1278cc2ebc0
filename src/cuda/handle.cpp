#include "cuda/handle.h"

#include "base/error.h"

namespace trireme::cuda {

std::string to_string(std::source_location where) {
  std::string_view file = where.file_name();
  const size_t at = file.rfind("src/cuda/");
  if (at != std::string_view::npos) file.remove_prefix(at);
  return fmt::format("{}:{}", file, where.line());
}

void throw_cuda(cudaError_t error, std::string_view call, std::source_location where) {
  throw DeviceError(fmt::format("{}: {} ({}), at {}", call, cudaGetErrorString(error),
                                cudaGetErrorName(error), to_string(where)));
}

}  // namespace trireme::cuda
