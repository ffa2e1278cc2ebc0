// From plain-data arguments to typed rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor_view.h"
#include "ops/op.h"

namespace trireme::cpu {

/// Calls body(float{}) for f32 and body(uint16_t{}) for bf16 elements.
template <typename Body>
void with_element(DType dtype, const Body& body) {
  if (dtype == DType::bf16) {
    body(uint16_t{});
  } else {
    body(float{});
  }
}

/// A matrix of T elements.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  explicit Rows(const TensorView& view) : data(static_cast<T*>(view.data)), stride(view.stride) {}
  T* operator[](int64_t row) const { return data + row * stride; }
};

/// The view without its first `count` rows, or columns.
inline TensorView rows_from(TensorView view, int64_t count) {
  view.data = static_cast<std::byte*>(view.data) + count * view.stride * size_of(view.dtype);
  view.rows -= count;
  return view;
}
inline TensorView columns_from(TensorView view, int64_t count) {
  view.data = static_cast<std::byte*>(view.data) + count * size_of(view.dtype);
  view.cols -= count;
  return view;
}

template <typename T>
T* data_of(const TensorView& view) {
  return static_cast<T*>(view.data);
}

}  // namespace trireme::cpu
