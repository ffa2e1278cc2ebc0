#include "base/convert.h"

#include <cstring>

#include "base/error.h"

namespace trireme {

namespace {

template <typename From, typename To, typename Convert>
void each(const void* from, int64_t count, void* to, Convert convert) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, source + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const To result = convert(value);
    std::memcpy(target + i * static_cast<int64_t>(sizeof(To)), &result, sizeof(To));
  }
}

/// f32_from_f16 without a branch, so that loops of it vectorize.
float widen_f16(uint16_t bits) {
  const auto sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const auto magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;  // exact, subnormals included
  const uint32_t special =
      (bits & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : std::bit_cast<uint32_t>(scaled);
  return std::bit_cast<float>(special | sign);
}

}  // namespace

void convert_to_f32(DType dtype, const void* from, int64_t count, float* to) {
  switch (dtype) {
    case DType::f32:
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::bf16:
      return each<uint16_t, float>(from, count, to, [](uint16_t x) { return f32_from_bf16(x); });
    case DType::f16:
      return each<uint16_t, float>(from, count, to, widen_f16);
    default:
      check(false, "no conversion from {} to f32", name_of(dtype));
  }
}

void convert_from_f32(DType dtype, const float* from, int64_t count, void* to) {
  switch (dtype) {
    case DType::f32:
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::bf16:
      return each<float, uint16_t>(from, count, to, bf16_from_f32);
    case DType::f16:
      return each<float, uint16_t>(from, count, to, f16_from_f32);
    default:
      check(false, "no conversion from f32 to {}", name_of(dtype));
  }
}

}  // namespace trireme
