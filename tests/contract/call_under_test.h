// Builds one operation call on a backend from reference tensors, runs it and reads it back.
#pragma once

#include <cstddef>
#include <vector>

#include "contract/backend.h"
#include "contract/reference.h"
#include "contract/tensor.h"

namespace trireme::contract {

class CallUnderTest {
 public:
  CallUnderTest(Backend& backend, ops::OpKind kind, DType dtype, ops::Law law = ops::Law::set)
      : backend_(backend) {
    call_.kind = kind;
    call_.dtype = dtype;
    call_.law = law;
  }

  ops::Attributes& attributes() { return call_.attributes; }
  void set_heads(const Heads& heads);

  /// Arguments in signature order; each returns its index. `extra` elements separate the rows.
  int input(const Tensor& tensor, DType dtype, int64_t extra = 0);
  int input(const Ints& values);
  /// An output that holds NaN (or 0xff bytes) before the call.
  int output(int64_t rows, int64_t cols, DType dtype, int64_t extra = 0);
  /// An output under Law::add, or an updated operand: holds `tensor` before the call.
  int update(const Tensor& tensor, DType dtype, int64_t extra = 0) {
    return input(tensor, dtype, extra);
  }
  int bytes_input(const void* data, DType dtype, int64_t count);
  int absent();
  /// The storage of argument `other` once more.
  int alias(int other);

  /// Runs the call; fails the test if a byte outside an operand changed, or an operand that the
  /// signature calls read-only.
  void run();

  Tensor read(int arg);
  std::vector<std::byte> bytes(int arg);
  const ops::OpCall& call() const { return call_; }

 private:
  struct Storage {
    int64_t bytes = 0;  // with guards
    std::byte* device = nullptr;
    std::vector<std::byte> before;
  };
  int place(int64_t rows, int64_t cols, DType dtype, int64_t extra,
            const std::vector<std::byte>& dense);
  void expect_untouched(int arg) const;

  Backend& backend_;
  ops::OpCall call_;
  std::vector<Storage> storage_;
};

/// Elements of `dtype` as bytes.
std::vector<std::byte> encoded(const Tensor& tensor, DType dtype);

}  // namespace trireme::contract
