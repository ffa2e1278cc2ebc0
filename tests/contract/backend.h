// A backend as the op suite sees it. A new backend adds rows to backend_rows() and passes the
// suite.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "ops/op.h"

namespace trireme::contract {

/// Memory and execution of one device.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Device memory, 64-byte aligned, freed with the backend.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  /// Gives the call the workspace its sizing rule asks for (and no more, filled with NaN), runs it
  /// and waits for it.
  virtual void run(ops::OpCall call) = 0;
};

/// One row of the suite: a backend and a compute dtype.
struct BackendRow {
  std::string name;
  DType dtype;
  /// Threads: how many the backend uses, where it has such a thing.
  std::function<std::unique_ptr<Backend>(int num_threads)> make;
};

inline void PrintTo(const BackendRow& row, std::ostream* out) { *out << row.name; }

/// The CPU's rows, or the GPU's when the tests run on CUDA (support/backends.h).
std::vector<BackendRow> backend_rows();
std::vector<BackendRow> cuda_rows();

}  // namespace trireme::contract
