// TensorBoard's file format: records of protocol buffers.
//
//   record   u64 length, u32 masked crc32c of the length, bytes, u32 masked crc32c of the bytes
//   Event    1 wall_time (double), 2 step, 3 file_version, 5 Summary, 7 SessionLog
//
// Integers are little-endian. From TensorFlow's record_writer.h, event.proto and summary.proto.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::metrics {

/// CRC-32C (Castagnoli) of RFC 3720.
uint32_t crc32c(std::string_view bytes);
/// As records hold it: rotated by 15 bits, plus 0xa282ead8.
uint32_t masked_crc32c(std::string_view bytes);

/// `event` as a record.
std::string event_record(std::string_view event);

struct EventTime {
  double wall_seconds = 0;  // since 1970
  int64_t step = 0;
};

/// The first event of a file.
std::string version_event(double wall_seconds);
/// Says that what earlier files of the folder hold of `step` and later steps is void.
std::string restart_event(const EventTime& time);
using Scalar = std::pair<std::string_view, double>;  // tag, value
std::string scalars_event(const EventTime& time, std::span<const Scalar> scalars);
/// Shown under "Text".
std::string text_event(const EventTime& time, std::string_view tag, std::string_view text);

}  // namespace trireme::metrics
