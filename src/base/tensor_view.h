// A borrowed matrix: what operations and collectives see of a buffer.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"

namespace trireme {

/// `rows` × `cols` elements, rows `stride` elements apart. A vector has rows 1. Owns nothing.
/// An absent optional operand has data == nullptr. A view with zero rows may have any pointer.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  bool present() const { return data != nullptr; }
  int64_t size() const { return rows * cols; }
  /// Typed pointer; `T` must have the element's size.
  template <typename T>
  T* as() const {
    check(static_cast<int64_t>(sizeof(T)) == size_of(dtype), "a {} view read as {} bytes",
          name_of(dtype), sizeof(T));
    return static_cast<T*>(data);
  }
};

/// A contiguous matrix.
inline TensorView matrix(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}
inline TensorView vector(void* data, DType dtype, int64_t size) {
  return {data, dtype, 1, size, size};
}

}  // namespace trireme
