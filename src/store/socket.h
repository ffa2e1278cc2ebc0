// Small pieces of TCP (and local sockets) with a bound on every wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace trireme::store {

using Clock = std::chrono::steady_clock;

/// An owned file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct Endpoint {
  std::string host;
  int port = 0;
  bool operator==(const Endpoint&) const = default;
};

/// "host:port" of an IPv4 address or name, or "[host]:port". Throws ConfigError naming `field`.
Endpoint parse_endpoint(std::string_view field, std::string_view text);
std::string to_string(const Endpoint& endpoint);

/// A listening, non-blocking socket on exactly that interface; port 0 takes a free one.
/// Throws CommError naming host and port ("address already in use" among others).
Fd listen_on(const Endpoint& endpoint, int backlog);
/// The port a socket is bound to.
int bound_port(const Fd& socket);
/// The address by which this end of a connection is known to its peer's network.
std::string local_host(const Fd& socket);

/// Connects, trying again while nobody listens, until the deadline. Non-blocking socket without
/// delay. Throws CommError.
Fd connect_to(const Endpoint& endpoint, Clock::time_point deadline);
/// One try; an invalid Fd and a reason when it fails.
Fd try_connect(const Endpoint& endpoint, Clock::time_point deadline, std::string* reason);

/// Waits until `fd` is ready for `events` (poll); false at the deadline.
bool wait_ready(int fd, short events, Clock::time_point deadline);

/// Send or receive all bytes of a non-blocking socket, or say why not: "closed", "timed out", or
/// the text of errno. Empty = done.
std::string send_all(int fd, std::span<const std::byte> bytes, Clock::time_point deadline);
std::string receive_all(int fd, std::span<std::byte> bytes, Clock::time_point deadline);

/// The largest wait that poll() should make before `deadline`, at least 0, at most a minute.
int poll_timeout(Clock::time_point deadline);

}  // namespace trireme::store
