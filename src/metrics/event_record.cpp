#include "metrics/event_record.h"

#include <array>
#include <bit>

namespace trireme::metrics {
namespace {

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

// Protocol buffers: each field is a key (number * 8 + kind of wire) and a value. ---------------

std::string varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text + static_cast<char>(value);
}

std::string number_field(uint64_t field, int64_t value) {
  return varint(field << 3) + varint(static_cast<uint64_t>(value));
}
std::string double_field(uint64_t field, double value) {
  return varint(field << 3 | 1) + little_endian(std::bit_cast<uint64_t>(value), 8);
}
std::string float_field(uint64_t field, float value) {
  return varint(field << 3 | 5) + little_endian(std::bit_cast<uint32_t>(value), 4);
}
std::string bytes_field(uint64_t field, std::string_view bytes) {
  return varint(field << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

std::string at(const EventTime& time) {
  return double_field(1, time.wall_seconds) + number_field(2, time.step);
}

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

std::string event_record(std::string_view event) {
  const std::string length = little_endian(event.size(), 8);
  return length + little_endian(masked_crc32c(length), 4) + std::string(event) +
         little_endian(masked_crc32c(event), 4);
}

std::string version_event(double wall_seconds) {
  return double_field(1, wall_seconds) + bytes_field(3, "brain.Event:2");
}

std::string restart_event(const EventTime& time) {
  constexpr int64_t kStart = 1;
  return at(time) + bytes_field(7, number_field(1, kStart));
}

std::string scalars_event(const EventTime& time, std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
  }
  return at(time) + bytes_field(5, summary);
}

std::string text_event(const EventTime& time, std::string_view tag, std::string_view text) {
  constexpr int64_t kString = 7;  // DT_STRING
  const std::string shape = bytes_field(2, number_field(1, 1));
  const std::string tensor =
      number_field(1, kString) + bytes_field(2, shape) + bytes_field(8, text);
  const std::string plugin = bytes_field(1, bytes_field(1, "text"));
  const std::string value = bytes_field(1, tag) + bytes_field(8, tensor) + bytes_field(9, plugin);
  return at(time) + bytes_field(5, bytes_field(1, value));
}

}  // namespace trireme::metrics
