// Element types and their exact conversions.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme {

enum class DType : uint8_t { f32, bf16, f16, f64, i64, i32, i16, u8 };

/// Bytes of one element.
int64_t size_of(DType dtype);
/// "f32", "bf16", ...
std::string_view name_of(DType dtype);
/// The inverse of name_of; nullopt for anything else.
std::optional<DType> parse_dtype(std::string_view name);

// constexpr, so that kernels may call them too.

/// Round to nearest even; NaN stays NaN.
constexpr uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
constexpr float f32_from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

float f32_from_f16(uint16_t bits);
/// Round to nearest even; overflow gives infinity.
uint16_t f16_from_f32(float value);

/// An fp32 master split into the bf16 weight and a 16-bit remainder (docs/numerics.md): the weight
/// is (bits + 0x8000) >> 16, so every finite fp32 comes back exactly.
struct SplitMaster {
  uint16_t value;      // the bf16 weight
  int16_t remainder;   // low 16 bits of the fp32
};
constexpr SplitMaster split_master(float master) {
  const auto bits = std::bit_cast<uint32_t>(master);
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<int16_t>(bits & 0xffffu)};
}
constexpr float join_master(uint16_t value, int16_t remainder) {
  const auto low = static_cast<uint16_t>(remainder);
  const uint32_t high = static_cast<uint32_t>(value) - (low >> 15);
  return std::bit_cast<float>((high << 16) | low);
}

}  // namespace trireme
