#include "base/error.h"

#include <cerrno>
#include <cstring>

namespace trireme {

ConfigError::ConfigError(std::string_view field, std::string_view value, std::string_view remedy)
    : std::runtime_error(fmt::format("{} = {}: {}", field, value, remedy)) {}

namespace detail {
void throw_bug(std::source_location where, const std::string& message) {
  throw BugError(fmt::format("{}:{}: {} (this is a bug in trireme)", where.file_name(),
                             where.line(), message));
}
}  // namespace detail

void throw_errno(std::string_view call, std::string_view object) {
  const int code = errno;
  throw DeviceError(fmt::format("{}('{}'): {}", call, object, std::strerror(code)));
}

}  // namespace trireme
