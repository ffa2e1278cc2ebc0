#include "model/config_keys.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace trireme::model {

namespace {

const Json kNull;

int64_t as_positive(const ConfigKeys& keys, std::string_view key, const Json& value) {
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= INT32_MAX;
  if (!fits || value.get<int64_t>() <= 0) keys.wrong(key, "a positive whole number is needed");
  return value.get<int64_t>();
}

double as_positive_number(const ConfigKeys& keys, std::string_view key, const Json& value) {
  if (!value.is_number()) keys.wrong(key, "a number is needed");
  const auto number = value.get<double>();
  if (!(number > 0) || !std::isfinite(number)) keys.wrong(key, "a positive number is needed");
  return number;
}

}  // namespace

ConfigKeys::ConfigKeys(const Json& object, std::string file, std::string prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {
  if (!object_.is_object()) {
    throw DataError(
        fmt::format("{}: {} is not a JSON object", file_,
                    prefix_.empty() ? "the file" : prefix_.substr(0, prefix_.size() - 1)));
  }
}

const Json& ConfigKeys::raw(std::string_view key) const {
  const auto found = object_.find(std::string(key));
  return found == object_.end() ? kNull : *found;
}

bool ConfigKeys::has(std::string_view key) const { return !raw(key).is_null(); }

const Json& ConfigKeys::required(std::string_view key) const {
  const Json& value = raw(key);
  if (value.is_null())
    throw DataError(fmt::format("{}: key '{}{}' is missing", file_, prefix_, key));
  return value;
}

int64_t ConfigKeys::positive(std::string_view key) const {
  return as_positive(*this, key, required(key));
}

int64_t ConfigKeys::positive(std::string_view key, int64_t fallback) const {
  return has(key) ? as_positive(*this, key, raw(key)) : fallback;
}

double ConfigKeys::positive_number(std::string_view key) const {
  return as_positive_number(*this, key, required(key));
}

double ConfigKeys::positive_number(std::string_view key, double fallback) const {
  return has(key) ? as_positive_number(*this, key, raw(key)) : fallback;
}

bool ConfigKeys::boolean(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!raw(key).is_boolean()) wrong(key, "true or false is needed");
  return raw(key).get<bool>();
}

std::string ConfigKeys::text(std::string_view key, std::string_view fallback) const {
  if (!has(key)) return std::string(fallback);
  if (!raw(key).is_string()) wrong(key, "a string is needed");
  return raw(key).get<std::string>();
}

ConfigKeys ConfigKeys::nested(std::string_view key) const {
  return {required(key), file_, fmt::format("{}{}.", prefix_, key)};
}

void ConfigKeys::unsupported(std::string_view key, std::string_view remedy) const {
  throw ConfigError(fmt::format("{}{}", prefix_, key),
                    fmt::format("{} ({})", printable(dump_json(raw(key))), file_), remedy);
}

void ConfigKeys::wrong(std::string_view key, std::string_view message) const {
  throw DataError(fmt::format("{}: {}{} = {}: {}", file_, prefix_, key,
                              printable(dump_json(raw(key))), message));
}

}  // namespace trireme::model
