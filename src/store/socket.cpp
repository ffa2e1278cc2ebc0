#include "store/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"

namespace trireme::store {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const Endpoint& endpoint, bool passive, std::string* reason) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const std::string port = std::to_string(endpoint.port);
  const int code = getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &list);
  if (code != 0) *reason = gai_strerror(code);
  return {code == 0 ? list : nullptr, &freeaddrinfo};
}

void set_option(int fd, int level, int option, int value) {
  // A socket that refuses a tuning option still works.
  (void)setsockopt(fd, level, option, &value, sizeof value);
}

// A vanished host is noticed within about 20 seconds, also where nobody writes.
void tune_connection(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace

int Fd::release() { return std::exchange(fd_, -1); }

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Endpoint parse_endpoint(std::string_view field, std::string_view text) {
  const auto colon = text.rfind(':');
  Endpoint endpoint;
  if (colon != std::string_view::npos) {
    std::string_view host = text.substr(0, colon);
    const std::string_view port = text.substr(colon + 1);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
    }
    endpoint.host = host;
    const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
    const bool number = code == std::errc() && end == port.data() + port.size();
    if (number && endpoint.port > 0 && endpoint.port < 65536 && !host.empty()) return endpoint;
  }
  throw ConfigError(field, text, "give host:port");
}

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", endpoint.host, v6 ? "]" : "", endpoint.port);
}

Fd listen_on(const Endpoint& endpoint, int backlog) {
  std::string reason;
  const AddressList list = resolve(endpoint, true, &reason);
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    Fd fd(socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                 info->ai_protocol));
    if (fd.valid()) {
      set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (bind(fd.get(), info->ai_addr, info->ai_addrlen) == 0 && listen(fd.get(), backlog) == 0) {
        return fd;
      }
    }
    reason = std::strerror(errno);
  }
  throw CommError(fmt::format("cannot listen on {}: {}", to_string(endpoint), reason));
}

int bound_port(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw_errno("getsockname", "listening socket");
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string local_host(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[NI_MAXHOST] = {};
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    throw_errno("getsockname", "connection");
  }
  return host;
}

int poll_timeout(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

bool wait_ready(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, poll_timeout(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_errno("poll", "socket");
    if (Clock::now() >= deadline) return false;
  }
}

Fd try_connect(const Endpoint& endpoint, Clock::time_point deadline, std::string* reason) {
  const AddressList list = resolve(endpoint, false, reason);
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    Fd fd(socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                 info->ai_protocol));
    if (!fd.valid()) {
      *reason = std::strerror(errno);
      continue;
    }
    int code = connect(fd.get(), info->ai_addr, info->ai_addrlen) == 0 ? 0 : errno;
    if (code == EINPROGRESS) {
      socklen_t size = sizeof code;
      if (!wait_ready(fd.get(), POLLOUT, deadline)) {
        code = ETIMEDOUT;
      } else if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &size) != 0) {
        code = errno;
      }
    }
    if (code == 0) {
      tune_connection(fd.get());
      return fd;
    }
    *reason = std::strerror(code);
  }
  return Fd();
}

Fd connect_to(const Endpoint& endpoint, Clock::time_point deadline) {
  std::string reason = "timed out";
  for (auto pause = std::chrono::milliseconds(5);;
       pause = std::min(pause * 2, std::chrono::milliseconds(200))) {
    Fd fd = try_connect(endpoint, deadline, &reason);
    if (fd.valid()) return fd;
    if (Clock::now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
  }
  throw CommError(fmt::format("cannot connect to {}: {}", to_string(endpoint), reason));
}

std::string send_all(int fd, std::span<const std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd, POLLOUT, deadline)) return "timed out";
    } else if (errno != EINTR) {
      return errno == EPIPE || errno == ECONNRESET ? "closed" : std::strerror(errno);
    }
  }
  return {};
}

std::string receive_all(int fd, std::span<std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return "closed";
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd, POLLIN, deadline)) return "timed out";
    } else if (errno != EINTR) {
      return errno == ECONNRESET ? "closed" : std::strerror(errno);
    }
  }
  return {};
}

}  // namespace trireme::store
