// Typed access to the keys of one JSON object of a Hugging Face folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace trireme::model {

/// A key that is absent or null gives the fallback. A value of the wrong kind or out of range is a
/// DataError "FILE: key = value: ...", as is a missing key asked for without fallback.
class ConfigKeys {
 public:
  /// `object` must outlive this; `prefix` ("rope_scaling.") goes before keys in messages.
  ConfigKeys(const Json& object, std::string file, std::string prefix = "");

  bool has(std::string_view key) const;
  /// Like has, but a null counts as well.
  bool contains(std::string_view key) const { return object_.contains(std::string(key)); }
  int64_t positive(std::string_view key) const;
  int64_t positive(std::string_view key, int64_t fallback) const;
  double positive_number(std::string_view key) const;
  double positive_number(std::string_view key, double fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  /// The value as it is; Json null when absent.
  const Json& raw(std::string_view key) const;
  /// Keys of a nested object.
  ConfigKeys nested(std::string_view key) const;

  /// ConfigError "prefix.key = value (FILE): remedy".
  [[noreturn]] void unsupported(std::string_view key, std::string_view remedy) const;
  /// DataError "FILE: prefix.key = value: message".
  [[noreturn]] void wrong(std::string_view key, std::string_view message) const;

 private:
  const Json& required(std::string_view key) const;

  const Json& object_;
  std::string file_;
  std::string prefix_;
};

}  // namespace trireme::model
