#include "contract/call_under_test.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ops/signature.h"

namespace trireme::contract {

namespace {

constexpr int64_t kGuard = 64;  // bytes around an operand
constexpr std::byte kGuardByte{0xa5};

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof(T));
}

double decoded(const std::byte* from, DType dtype) {
  const auto as = [from]<typename T>(T value) {
    std::memcpy(&value, from, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(as(float{}));
    case DType::bf16:
      return static_cast<double>(f32_from_bf16(as(uint16_t{})));
    case DType::f64:
      return as(double{});
    case DType::i32:
      return as(int32_t{});
    case DType::i16:
      return as(int16_t{});
    default:
      throw BugError("a dtype the suite does not read");
  }
}

}  // namespace

std::vector<std::byte> encoded(const Tensor& tensor, DType dtype) {
  std::vector<std::byte> bytes;
  for (const double v : tensor.values) {
    if (dtype == DType::f32) append(bytes, static_cast<float>(v));
    if (dtype == DType::bf16) append(bytes, bf16_from_f32(static_cast<float>(v)));
    if (dtype == DType::f64) append(bytes, v);
    if (dtype == DType::i32) append(bytes, static_cast<int32_t>(v));
    if (dtype == DType::i16) append(bytes, static_cast<int16_t>(v));
  }
  return bytes;
}

void CallUnderTest::set_heads(const Heads& heads) {
  call_.attributes.heads = heads.heads;
  call_.attributes.kv_heads = heads.kv_heads;
  call_.attributes.head_dim = heads.head_dim;
}

int CallUnderTest::place(int64_t rows, int64_t cols, DType dtype, int64_t extra,
                         const std::vector<std::byte>& dense) {
  const int64_t element = size_of(dtype);
  const int64_t stride = cols + extra;
  Storage storage;
  storage.bytes = rows * stride * element + 2 * kGuard;
  storage.before.assign(static_cast<size_t>(storage.bytes), kGuardByte);
  for (int64_t r = 0; r < rows && cols > 0; ++r) {
    std::memcpy(storage.before.data() + kGuard + r * stride * element,
                dense.data() + r * cols * element, static_cast<size_t>(cols * element));
  }
  storage.device = static_cast<std::byte*>(backend_.allocate(storage.bytes));
  backend_.upload(storage.device, storage.before.data(), storage.bytes);
  const int index = call_.num_args++;
  call_.args[static_cast<size_t>(index)] = {storage.device + kGuard, dtype, rows, cols, stride};
  storage_.push_back(std::move(storage));
  return index;
}

int CallUnderTest::input(const Tensor& tensor, DType dtype, int64_t extra) {
  return place(tensor.rows, tensor.cols, dtype, extra, encoded(tensor, dtype));
}

int CallUnderTest::input(const Ints& values) {
  return bytes_input(values.data(), DType::i32, static_cast<int64_t>(values.size()));
}

int CallUnderTest::bytes_input(const void* data, DType dtype, int64_t count) {
  std::vector<std::byte> dense(static_cast<size_t>(count * size_of(dtype)));
  if (count > 0) std::memcpy(dense.data(), data, dense.size());
  return place(1, count, dtype, 0, dense);
}

int CallUnderTest::output(int64_t rows, int64_t cols, DType dtype, int64_t extra) {
  const auto bytes = static_cast<size_t>(rows * cols * size_of(dtype));
  return place(rows, cols, dtype, extra, std::vector<std::byte>(bytes, std::byte{0xff}));
}

int CallUnderTest::absent() {
  storage_.emplace_back();
  return call_.num_args++;
}

int CallUnderTest::alias(int other) {
  storage_.emplace_back();
  call_.args[static_cast<size_t>(call_.num_args)] = call_.args[static_cast<size_t>(other)];
  return call_.num_args++;
}

void CallUnderTest::run() {
  backend_.run(call_);
  for (int i = 0; i < call_.num_args; ++i) {
    if (storage_[static_cast<size_t>(i)].device != nullptr) expect_untouched(i);
  }
}

void CallUnderTest::expect_untouched(int arg) const {
  const Storage& storage = storage_[static_cast<size_t>(arg)];
  const TensorView& view = call_.args[static_cast<size_t>(arg)];
  std::vector<std::byte> after(storage.before.size());
  backend_.download(after.data(), storage.device, storage.bytes);
  bool shared = false;
  for (int i = 0; i < call_.num_args; ++i) {
    shared |= i != arg && call_.args[static_cast<size_t>(i)].data == view.data;
  }
  const auto operands = ops::signature(call_.kind);
  const auto& operand = operands[static_cast<size_t>(arg)];
  const bool writable = operand.access != ops::Access::read || shared;
  const int64_t element = size_of(view.dtype);
  for (int64_t at = 0; at < storage.bytes; ++at) {
    const int64_t inside = at - kGuard;
    const bool operand_byte = inside >= 0 && inside < view.rows * view.stride * element &&
                              inside % (view.stride * element) < view.cols * element;
    if (writable && operand_byte) continue;
    const auto i = static_cast<size_t>(at);
    ASSERT_EQ(after[i], storage.before[i])
        << ops::name_of(call_.kind) << " changed byte " << inside << " of " << operand.name;
  }
}

std::vector<std::byte> CallUnderTest::bytes(int arg) {
  const TensorView& view = call_.args[static_cast<size_t>(arg)];
  const int64_t element = size_of(view.dtype);
  std::vector<std::byte> strided(static_cast<size_t>(view.rows * view.stride * element));
  if (!strided.empty()) {
    backend_.download(strided.data(), view.data, static_cast<int64_t>(strided.size()));
  }
  std::vector<std::byte> dense;
  for (int64_t r = 0; r < view.rows; ++r) {
    const auto* row = strided.data() + r * view.stride * element;
    dense.insert(dense.end(), row, row + view.cols * element);
  }
  return dense;
}

Tensor CallUnderTest::read(int arg) {
  const TensorView& view = call_.args[static_cast<size_t>(arg)];
  const auto dense = bytes(arg);
  Tensor tensor(view.rows, view.cols);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.at(i) = decoded(dense.data() + i * size_of(view.dtype), view.dtype);
  }
  return tensor;
}

}  // namespace trireme::contract
