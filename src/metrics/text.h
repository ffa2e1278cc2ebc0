// How numbers and tables are written: exact strings that people and scripts read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "metrics/record.h"

namespace trireme::metrics {

/// The shortest text that reads back as the same double, as Python's json writes it: "0.1", "1.0",
/// "5e-05", "NaN", "Infinity", "-Infinity".
std::string json_number(double value);
/// Rounded to `decimals` places, as Python prints the result: "2.3457", "0.5", "nan".
std::string rounded(double value, int decimals);
/// `digits` significant digits, as Python prints the result: "5e-05", "1.23457", "12.0".
std::string significant(double value, int digits);
/// "1,234,567".
std::string thousands(int64_t value);
/// "00:07", "12:34", "1:02:03"; "?" when not finite.
std::string duration(double seconds);
/// "512", "10.2k", "3.41M".
std::string short_count(double value);

/// "***** Running training *****" and the lines after it, in Hugging Face Trainer's words.
std::string training_banner(const RunFacts& facts);
/// "***** Running Evaluation *****" and its two lines.
std::string evaluation_banner(int64_t num_examples, int64_t batch_size);

/// Planned memory of one owner ("weights", "gradient shards", "activations", ...) in one space.
struct MemoryRow {
  std::string owner;
  int64_t bytes = 0;
  std::string space;  // "device", "pinned"
};
/// The table of planned memory by owner, rows in the given order, then one total a space.
std::string memory_table(const std::string& title, std::span<const MemoryRow> rows);

}  // namespace trireme::metrics
