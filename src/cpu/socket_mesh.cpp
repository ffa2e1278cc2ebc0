#include "cpu/socket_mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.h"

namespace trireme::cpu {

using store::Clock;
using store::Digest;
using store::Fd;

struct SocketMesh::Hello {
  uint32_t magic = 0;
  int32_t group = 0;
  int32_t from = 0;
  int32_t unused = 0;
  Digest nonce{};
  Digest proof{};
};

namespace {

constexpr uint32_t kHelloMagic = 0x48524d54;  // "TMRH"
constexpr size_t kMaxStrangers = 64;
constexpr auto kGreetingTime = std::chrono::seconds(5);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// Tells hosts apart by boot, and networks on one host by namespace.
std::string host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 128> space{};
  const ssize_t size = readlink("/proc/self/ns/net", space.data(), space.size());
  if (boot.empty() || size <= 0) return store::to_hex(store::random_digest());
  return boot + "/" + std::string(space.data(), static_cast<size_t>(size));
}

sockaddr_un abstract_address(const std::string& name, socklen_t* size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  check(name.size() < sizeof address.sun_path - 1, "local socket name '{}' is too long", name);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Fd listen_locally(const std::string& name) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t size = 0;
  const sockaddr_un address = abstract_address(name, &size);
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    throw_errno("listen", name);
  }
  return fd;
}

Fd connect_locally(const std::string& name, Clock::time_point deadline) {
  socklen_t size = 0;
  const sockaddr_un address = abstract_address(name, &size);
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) throw_errno("socket", name);
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    // EAGAIN: the listener's queue is full.
    if (errno != EAGAIN && errno != EINTR) return Fd();
    if (Clock::now() >= deadline) return Fd();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return fd;
}

Digest digest_from_hex(std::string_view text) {
  Digest digest{};
  check(text.size() == 2 * digest.size(), "a nonce of {} digits", text.size());
  for (size_t i = 0; i < digest.size(); ++i) {
    const std::string pair(text.substr(2 * i, 2));
    digest[i] = static_cast<std::byte>(std::strtoul(pair.c_str(), nullptr, 16));
  }
  return digest;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

SocketMesh::SocketMesh(comm::Store& store, int rank, int world_size, const std::string& host,
                       std::chrono::milliseconds timeout)
    : rank_(rank), timeout_(timeout), peers_(static_cast<size_t>(world_size)) {
  if (rank == 0) store.set("comm/key", store::make_token());
  key_ = store.get("comm/key", timeout);
  exchange_addresses(store, host);
}

void SocketMesh::exchange_addresses(comm::Store& store, const std::string& host) {
  const auto key_of = [](std::string_view what, size_t rank) {
    return fmt::format("comm/{}/{}", what, rank);
  };
  const auto me = static_cast<size_t>(rank_);
  Peer& self = peers_[me];
  self.host_id = host_id();
  self.nonce = store::random_digest();
  self.local_name = "trireme-" + store::make_token().substr(0, 32);
  store.set(key_of("host", me), self.host_id);
  bool one_host = true;
  for (size_t r = 0; r < peers_.size(); ++r) {
    peers_[r].host_id = store.get(key_of("host", r), timeout_);
    one_host = one_host && peers_[r].host_id == self.host_id;
  }
  local_listener_ = listen_locally(self.local_name);
  if (!one_host) {
    listener_ = store::listen_on({host, 0}, SOMAXCONN);
    self.endpoint = {host, store::bound_port(listener_)};
  }
  store.set(key_of("address", me),
            fmt::format("{}\n{}\n{}\n{}", self.local_name, store::to_hex(self.nonce),
                        self.endpoint.host, self.endpoint.port));
  for (size_t r = 0; r < peers_.size(); ++r) {
    const auto lines = split_lines(store.get(key_of("address", r), timeout_));
    check(lines.size() == 4, "address of rank {} has {} lines", r, lines.size());
    peers_[r].local_name = lines[0];
    peers_[r].nonce = digest_from_hex(lines[1]);
    peers_[r].endpoint = {lines[2], std::atoi(lines[3].c_str())};
  }
}

Digest SocketMesh::hello_proof(const Hello& hello, int to) const {
  return store::proof(key_, "mesh hello",
                      {bytes_of(hello.group), bytes_of(hello.from), bytes_of(hello.nonce),
                       bytes_of(to), bytes_of(peers_[static_cast<size_t>(to)].nonce)});
}

Fd SocketMesh::open_to(const Peer& peer) const {
  if (peer.host_id == peers_[static_cast<size_t>(rank_)].host_id) {
    return connect_locally(peer.local_name, deadline_);
  }
  return store::connect_to(peer.endpoint, deadline_);
}

Fd SocketMesh::call(int group, int to, Digest* nonce) const {
  Fd fd = open_to(peers_[static_cast<size_t>(to)]);
  Hello hello{.magic = kHelloMagic, .group = group, .from = rank_};
  hello.nonce = store::random_digest();
  hello.proof = hello_proof(hello, to);
  *nonce = hello.nonce;
  const std::string problem =
      fd.valid() ? store::send_all(fd.get(), bytes_of(hello), deadline_) : "nobody listens";
  if (!problem.empty()) {
    throw CommError(fmt::format("group {}: cannot connect to rank {}: {}", group, to, problem));
  }
  return fd;
}

/// Reads and answers the greeting of a connection that has bytes waiting; a stranger is dropped.
void SocketMesh::greet(Fd fd) {
  Hello hello;
  const std::string problem =
      store::receive_all(fd.get(), std::as_writable_bytes(std::span(&hello, 1)), Clock::now());
  if (!problem.empty() || hello.magic != kHelloMagic || hello.from <= rank_ ||
      hello.from >= static_cast<int>(peers_.size())) {
    return;
  }
  if (!store::equal(hello.proof, hello_proof(hello, rank_))) return;
  const Digest answer = store::proof(key_, "mesh welcome", {bytes_of(hello.nonce)});
  if (!store::send_all(fd.get(), bytes_of(answer), deadline_).empty()) return;
  accepted_[{hello.group, hello.from}] = std::move(fd);
}

/// Accepts until the connection of `from` for `group` is there; keeps those of later groups.
void SocketMesh::accept_until(int group, int from) {
  while (accepted_.find({group, from}) == accepted_.end()) {
    std::vector<pollfd> entries{{local_listener_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Stranger& s : strangers_) entries.push_back({s.fd.get(), POLLIN, 0});
    const auto wake = std::min(deadline_, Clock::now() + kGreetingTime);
    if (poll(entries.data(), entries.size(), store::poll_timeout(wake)) < 0 && errno != EINTR) {
      throw_errno("poll", "listening sockets");
    }
    if (Clock::now() >= deadline_) {
      throw CommError(fmt::format("group {}: rank {} did not connect within {} ms", group, from,
                                  timeout_.count()));
    }
    std::vector<Stranger> waiting;
    for (size_t k = 0; k < strangers_.size(); ++k) {
      if (entries[k + 2].revents != 0) {
        greet(std::move(strangers_[k].fd));
      } else if (Clock::now() < strangers_[k].deadline) {
        waiting.push_back(std::move(strangers_[k]));
      }
    }
    strangers_ = std::move(waiting);
    for (const size_t k : {0, 1}) {
      if (entries[k].revents == 0) continue;
      Fd fd(accept4(entries[k].fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.valid()) continue;
      if (strangers_.size() >= kMaxStrangers) strangers_.erase(strangers_.begin());
      strangers_.push_back({std::move(fd), Clock::now() + kGreetingTime});
    }
  }
}

std::vector<Fd> SocketMesh::connect_group(int group, const std::vector<int>& ranks) {
  deadline_ = Clock::now() + timeout_;
  std::vector<Fd> sockets(ranks.size());
  std::vector<Digest> nonces(ranks.size());
  // Every rank calls all lower ones before it waits for anybody, so the waits cannot form a ring.
  for (size_t k = 0; k < ranks.size(); ++k) {
    if (ranks[k] < rank_) sockets[k] = call(group, ranks[k], &nonces[k]);
  }
  for (size_t k = 0; k < ranks.size(); ++k) {
    if (ranks[k] <= rank_) continue;
    accept_until(group, ranks[k]);
    const auto found = accepted_.find({group, ranks[k]});
    sockets[k] = std::move(found->second);
    accepted_.erase(found);
  }
  for (size_t k = 0; k < ranks.size(); ++k) {
    if (ranks[k] >= rank_) continue;
    Digest answer{};
    const std::string problem = store::receive_all(
        sockets[k].get(), std::as_writable_bytes(std::span(&answer, 1)), deadline_);
    const Digest expected = store::proof(key_, "mesh welcome", {bytes_of(nonces[k])});
    if (!problem.empty() || !store::equal(answer, expected)) {
      throw CommError(fmt::format("group {}: rank {} did not answer: {}", group, ranks[k],
                                  problem.empty() ? "wrong proof" : problem));
    }
  }
  return sockets;
}

}  // namespace trireme::cpu
