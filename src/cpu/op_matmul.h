// Matrix products by oneDNN, prepared once a shape.
#pragma once

#include <cstdint>
#include <memory>

#include "base/dtype.h"

namespace trireme::cpu {

/// c(m, n) law= a(m, k) · b(k, n) (+ bias(n)). Strides in elements; a row-major matrix has column
/// stride 1, a transposed one row stride 1.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_row = 0, a_column = 0;
  int64_t b_row = 0, b_column = 0;
  int64_t c_row = 0;
  DType input = DType::f32;   // of a, b and bias
  DType output = DType::f32;  // of c
  bool bias = false;
  bool accumulate = false;
  bool operator==(const Product&) const = default;
};

struct ProductData {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* c = nullptr;
};

/// Prepared products of one rank; the least recently used are dropped beyond a limit.
class MatmulCache {
 public:
  explicit MatmulCache(int num_threads);
  ~MatmulCache();

  /// Runs with m, n, k > 0. `workspace` of fewer bytes than the product needs (a row count whose
  /// need the sizing rule did not foresee) is replaced by memory that the cache keeps.
  void run(const Product& product, const ProductData& data, void* workspace,
           int64_t workspace_bytes);
  void prepare(const Product& product);
  int64_t size() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Bytes of scratch oneDNN asks for with this number of threads.
int64_t product_scratch_bytes(const Product& product, int num_threads);

}  // namespace trireme::cpu
