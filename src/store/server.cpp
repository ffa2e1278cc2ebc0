#include "store/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "store/memory_store.h"
#include "store/thread.h"

namespace trireme::store {
namespace {

constexpr size_t kReadSize = 64u << 10;

template <typename T>
std::string_view text_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

struct Server::Client {
  Fd fd;
  Digest nonce{};
  bool proven = false;
  bool closing = false;  // after the output is written
  bool dead = false;
  Clock::time_point deadline;  // of the proof
  std::string input, output;
  std::optional<std::string> awaited;  // key of a pending get
  Clock::time_point give_up;           // of the pending get

  size_t input_limit() const { return proven ? 4 + kMaxFrame : sizeof(Proof); }
};

Server::Server(const ServerOptions& options)
    : options_(options),
      job_(sha256(options.identity.job)),
      listener_(listen_on(options.endpoint, SOMAXCONN)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      endpoint_{options.endpoint.host, bound_port(listener_)} {
  check(options.identity.token.size() >= 32, "a store without a token");
  if (!stop_.valid()) throw_errno("eventfd", "store server");
  thread_ = start_thread("store", [this] { serve(); });
}

Server::~Server() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);  // cannot fail: the counter starts at 0
  thread_.join();
}

void Server::serve() {
  for (;;) {
    wait_for_events();
    pollfd stopped{stop_.get(), POLLIN, 0};
    if (poll(&stopped, 1, 0) > 0) return;
    expire();
    std::erase_if(clients_, [](const ClientPtr& client) { return client->dead; });
  }
}

void Server::wait_for_events() {
  std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  auto wake = Clock::now() + std::chrono::minutes(1);
  for (const ClientPtr& client : clients_) {
    short events = client->output.empty() ? 0 : POLLOUT;
    if (client->input.size() < client->input_limit() && !client->closing) events |= POLLIN;
    entries.push_back({client->fd.get(), events, 0});
    if (!client->proven) wake = std::min(wake, client->deadline);
    if (client->awaited) wake = std::min(wake, client->give_up);
  }
  if (poll(entries.data(), entries.size(), poll_timeout(wake)) < 0) return;  // EINTR or ENOMEM
  const size_t known = entries.size() - 2;
  for (size_t k = 0; k < known; ++k) {
    if (entries[k + 2].revents != 0) handle(*clients_[k], entries[k + 2].revents);
  }
  if (entries[1].revents != 0) accept_stranger();
}

size_t Server::count(bool proven) const {
  return static_cast<size_t>(std::count_if(
      clients_.begin(), clients_.end(),
      [&](const ClientPtr& client) { return !client->dead && client->proven == proven; }));
}

void Server::accept_stranger() {
  Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    // Out of descriptors: make room instead of turning in circles.
    if (errno != EMFILE && errno != ENFILE) return;
  }
  if (!fd.valid() || count(false) >= options_.max_strangers) {
    const auto oldest = std::find_if(clients_.begin(), clients_.end(), [](const ClientPtr& client) {
      return !client->proven && !client->dead;
    });
    if (oldest != clients_.end()) {
      (*oldest)->dead = true;
      (*oldest)->fd.reset();
    }
    if (!fd.valid()) return;
  }
  auto client = std::make_unique<Client>();
  client->fd = std::move(fd);
  client->nonce = random_digest();
  client->deadline = Clock::now() + options_.handshake_time;
  const Greeting greeting{.nonce = client->nonce};
  client->output = text_of(greeting);
  write_to(*client);
  clients_.push_back(std::move(client));
}

void Server::handle(Client& client, short events) {
  if (client.dead) return;
  if ((events & POLLOUT) != 0) write_to(client);
  if ((events & POLLIN) != 0) {
    read_from(client);
  } else if ((events & (POLLHUP | POLLERR)) != 0) {
    client.dead = true;
  }
  if (!client.proven && !client.dead) check_proof(client);
  if (client.proven && !client.dead) answer_requests(client);
}

void Server::read_from(Client& client) {
  char bytes[kReadSize];
  const size_t room = client.input_limit() - client.input.size();
  const ssize_t got = recv(client.fd.get(), bytes, std::min(room, kReadSize), 0);
  if (got > 0) {
    client.input.append(bytes, static_cast<size_t>(got));
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    client.dead = true;
  }
}

void Server::write_to(Client& client) {
  const ssize_t sent =
      send(client.fd.get(), client.output.data(), client.output.size(), MSG_NOSIGNAL);
  if (sent > 0) {
    client.output.erase(0, static_cast<size_t>(sent));
  } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    client.dead = true;
  }
  if (client.output.empty() && client.closing) client.dead = true;
}

void Server::check_proof(Client& client) {
  if (client.closing || client.input.size() < sizeof(Proof)) return;
  Proof hello;
  std::memcpy(&hello, client.input.data(), sizeof hello);
  client.input.clear();
  if (!equal(hello.mac, client_mac(options_.identity.token, client.nonce, hello))) {
    client.dead = true;
    return;
  }
  Verdict verdict = Verdict::accepted;
  if (!equal(hello.job, job_)) {
    verdict = Verdict::other_job;
  } else if (hello.epoch != options_.identity.epoch) {
    verdict = Verdict::other_epoch;
  } else if (count(true) >= options_.max_clients) {
    verdict = Verdict::full;
  }
  const Welcome welcome{verdict,
                        server_mac(options_.identity.token, client.nonce, hello.nonce, verdict)};
  client.output += text_of(welcome);
  client.proven = verdict == Verdict::accepted;
  client.closing = !client.proven;
  write_to(client);
}

void Server::answer_requests(Client& client) {
  while (!client.dead && !client.closing && client.output.empty() && !client.awaited &&
         client.input.size() >= 4) {
    const uint32_t size = read_u32(client.input.data());
    if (size > kMaxFrame) {
      client.closing = true;
      reply(client, {FrameKind::failed, fmt::format("a frame of {} bytes", size), ""});
      return;
    }
    if (client.input.size() < 4 + size) return;
    const auto request = decode(std::string_view(client.input).substr(4, size));
    client.input.erase(0, 4 + size);
    if (!request) {
      client.closing = true;
      reply(client, {FrameKind::failed, "a malformed request", ""});
      return;
    }
    const Frame frame = answer(*request, client);
    if (!client.awaited) reply(client, frame);
  }
}

Frame Server::answer(const Frame& request, Client& client) {
  const auto found = values_.find(request.first);
  switch (request.kind) {
    case FrameKind::set: {
      const Frame frame = store_value(request.first, request.second);
      if (frame.kind == FrameKind::done) key_appeared(request.first);
      return frame;
    }
    case FrameKind::get: {
      if (found != values_.end()) return {FrameKind::value, found->second, ""};
      const auto wait = parse_number(request.second);
      if (!wait) return {FrameKind::failed, "get: the time to wait is no number", ""};
      if (*wait > 0) {
        client.awaited = request.first;
        client.give_up = Clock::now() + std::chrono::milliseconds(std::min<int64_t>(*wait, 60'000));
      }
      return {FrameKind::absent, "", ""};
    }
    case FrameKind::add: {
      const auto amount = parse_number(request.second);
      if (!amount) return {FrameKind::failed, "add: the amount is no number", ""};
      try {
        const int64_t sum =
            add_decimal(request.first, found == values_.end() ? nullptr : &found->second, *amount);
        const Frame frame = store_value(request.first, std::to_string(sum));
        if (frame.kind != FrameKind::done) return frame;
        key_appeared(request.first);
        return {FrameKind::value, std::to_string(sum), ""};
      } catch (const CommError& error) {
        return {FrameKind::failed, error.what(), ""};
      }
    }
    default:
      return {FrameKind::failed, "no request", ""};
  }
}

Frame Server::store_value(const std::string& key, std::string value) {
  const auto found = values_.find(key);
  const size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  const size_t after = key.size() + value.size();
  if (bytes_ - before + after > options_.max_bytes ||
      (found == values_.end() && values_.size() >= options_.max_keys)) {
    return {FrameKind::failed, "the store is full", ""};
  }
  bytes_ = bytes_ - before + after;
  values_.insert_or_assign(key, std::move(value));
  return {FrameKind::done, "", ""};
}

void Server::key_appeared(const std::string& key) {
  for (const ClientPtr& client : clients_) {
    if (client->dead || client->awaited != key) continue;
    client->awaited.reset();
    reply(*client, {FrameKind::value, values_.find(key)->second, ""});
  }
}

void Server::reply(Client& client, const Frame& frame) {
  client.output += encode(frame);
  write_to(client);
}

void Server::expire() {
  const auto now = Clock::now();
  for (const ClientPtr& client : clients_) {
    if (!client->proven && now >= client->deadline) client->dead = true;
    if (client->awaited && !client->dead && now >= client->give_up) {
      client->awaited.reset();
      reply(*client, {FrameKind::absent, "", ""});
    }
    if (client->proven && !client->dead) answer_requests(*client);  // that came while it waited
  }
}

}  // namespace trireme::store
