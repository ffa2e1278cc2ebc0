// JSON that keeps the order of keys. Reading is strict (RFC 8259), bounded in size and depth, and
// refuses duplicate keys; as Python does, it takes and gives bare NaN, Infinity and -Infinity.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trireme {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int64_t max_bytes = int64_t{64} << 20;
  int max_depth = 64;  // nested objects and arrays
};

/// Throws DataError "origin:line: what is wrong". Integers that fit are integers, others doubles.
Json parse_json(std::string_view text, std::string_view origin, const JsonLimits& limits = {});

/// parse_json of a file; DeviceError when it cannot be read.
Json read_json(const std::filesystem::path& path, const JsonLimits& limits = {});

/// On one line, or with `indent` >= 0 spaces a level. Broken UTF-8 becomes U+FFFD.
std::string dump_json(const Json& value, int indent = -1);

/// Receives a document as events, for documents too large to keep. Strings live until the return.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void begin_object() = 0;
  virtual void key(std::string_view name) = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void text(std::string_view value) = 0;
  /// null, boolean, integer or double.
  virtual void scalar(const Json& value) = 0;
};

/// The same reading rules. A DataError thrown by `events` gets "origin:line: " before it.
void parse_json_events(std::string_view text, std::string_view origin, const JsonLimits& limits,
                       JsonEvents& events);

}  // namespace trireme
