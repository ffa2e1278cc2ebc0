// The three kinds of error (docs/tour.md, "Errors").
//
//   ConfigError, DataError  the user's to fix: field, value, remedy, or file:line; exit code 2, one
//                           line, no stack
//   DeviceError, CommError  the world's: what was called, what it said, on which rank; exit code 1
//   check()                 our bug: always compiled in, throws BugError with file and line
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trireme {

/// A setting that cannot be used. `what()` is one sentence: field, value and remedy.
class ConfigError : public std::runtime_error {
 public:
  ConfigError(std::string_view field, std::string_view value, std::string_view remedy);
  /// A sentence that already names field, value and remedy (or lists several contradictions).
  explicit ConfigError(const std::string& sentence) : std::runtime_error(sentence) {}
};

/// A file, row or tensor that cannot be used. `what()` starts with `path:line` or `path`.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A device or operating-system call that failed: call text, library text.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A collective, store or connection that failed or timed out: group, sequence, peer rank.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An invariant of ours that does not hold.
class BugError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void throw_bug(std::source_location where, const std::string& message);
}  // namespace detail

/// Format string that remembers where it was written.
template <typename... Args>
struct LocatedFormat {
  fmt::format_string<Args...> format;
  std::source_location where;
  template <typename Text>
  consteval LocatedFormat(const Text& text,
                          std::source_location at = std::source_location::current())
      : format(text), where(at) {}
};

/// Throws BugError with file, line and message when `condition` is false. Always on.
template <typename... Args>
inline void check(bool condition, LocatedFormat<std::type_identity_t<Args>...> message,
                  Args&&... args) {
  if (!condition) [[unlikely]] {
    detail::throw_bug(message.where,
                      fmt::format(message.format, std::forward<Args>(args)...));
  }
}

/// DeviceError for a failed system call: "open('x'): No such file or directory". Reads errno.
[[noreturn]] void throw_errno(std::string_view call, std::string_view object);

}  // namespace trireme
