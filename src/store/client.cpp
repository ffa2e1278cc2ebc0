#include "store/client.h"

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/error.h"

namespace trireme::store {
namespace {

// A waiting get asks anew after so long, so that other threads get their turn.
constexpr auto kTurn = std::chrono::milliseconds(200);

constexpr int kTries = 3;

/// The server ended the connection during the handshake.
class Dropped : public CommError {
 public:
  using CommError::CommError;
};

template <typename T>
std::span<std::byte> writable_bytes(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

Client::Client(const ClientOptions& options) : options_(options) {
  const auto deadline = Clock::now() + options.connect_timeout;
  for (int tries = 1;; ++tries) {
    Fd fd = connect_to(options.endpoint, deadline);
    try {
      shake_hands(fd, deadline);
      fd_ = std::move(fd);
      return;
    } catch (const Dropped& error) {
      // A server crowded by strangers drops its oldest; one that refuses does it every time.
      if (tries == kTries) throw Refused(error.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(20 * tries));
    }
  }
}

void Client::shake_hands(const Fd& fd, Clock::time_point deadline) const {
  const std::string where = fmt::format("store at {}", to_string(options_.endpoint));
  const auto expect = [&](const std::string& problem, std::string_view meaning) {
    if (problem.empty()) return;
    if (problem == "closed") throw Dropped(fmt::format("{}: refused: {}", where, meaning));
    throw CommError(fmt::format("{}: {}", where, problem));
  };
  Greeting greeting;
  expect(receive_all(fd.get(), writable_bytes(greeting), deadline), "it closed the connection");
  if (greeting.magic != kStoreMagic) {
    throw Refused(fmt::format("{}: something else than a trireme store answers", where));
  }
  Proof hello;
  hello.nonce = random_digest();
  hello.job = sha256(options_.identity.job);
  hello.epoch = options_.identity.epoch;
  hello.mac = client_mac(options_.identity.token, greeting.nonce, hello);
  Welcome welcome;
  constexpr std::string_view kToken = "its token is not this job's";
  expect(send_all(fd.get(), std::as_bytes(std::span(&hello, 1)), deadline), kToken);
  expect(receive_all(fd.get(), writable_bytes(welcome), deadline), kToken);
  if (!equal(welcome.mac,
             server_mac(options_.identity.token, greeting.nonce, hello.nonce, welcome.verdict))) {
    throw Refused(fmt::format("{}: it does not know this job's token", where));
  }
  switch (welcome.verdict) {
    case Verdict::accepted:
      return;
    case Verdict::other_job:
      throw Refused(fmt::format("{}: it serves another job", where));
    case Verdict::other_epoch:
      throw Refused(fmt::format("{}: it serves another epoch of the job than {}", where,
                                options_.identity.epoch));
    case Verdict::full:
      throw Refused(fmt::format("{}: it has too many clients", where));
  }
  throw Refused(fmt::format("{}: unknown verdict", where));
}

void Client::lose(const std::string& why) {
  lost_ = fmt::format("store at {}: {}", to_string(options_.endpoint), why);
  fd_.reset();
  throw CommError(lost_);
}

Frame Client::ask(FrameKind kind, std::string_view key, std::string_view second,
                  std::chrono::milliseconds patience) {
  check(key.size() <= kMaxKey && second.size() <= kMaxValue,
        "store: key of {} and value of {} bytes", key.size(), second.size());
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) throw CommError(lost_);
  const auto deadline = Clock::now() + options_.answer_timeout + patience;
  const std::string request = encode({kind, std::string(key), std::string(second)});
  std::string problem =
      send_all(fd_.get(), std::as_bytes(std::span(request.data(), request.size())), deadline);
  char prefix[4];
  if (problem.empty()) problem = receive_all(fd_.get(), writable_bytes(prefix), deadline);
  if (!problem.empty()) lose(problem);
  const uint32_t size = read_u32(prefix);
  if (size > kMaxFrame) lose(fmt::format("it sent a frame of {} bytes", size));
  std::string body(size, '\0');
  problem =
      receive_all(fd_.get(), std::as_writable_bytes(std::span(body.data(), body.size())), deadline);
  if (!problem.empty()) lose(problem);
  const auto frame = decode(body);
  if (!frame) lose("it sent a malformed answer");
  if (frame->kind == FrameKind::failed) {
    throw CommError(fmt::format("store: key '{}': {}", key, frame->first));
  }
  return *frame;
}

void Client::set(std::string_view key, std::string_view value) {
  ask(FrameKind::set, key, value, {});
}

std::string Client::get(std::string_view key, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    const auto wait = std::clamp(left, std::chrono::milliseconds(0), kTurn);
    const Frame frame = ask(FrameKind::get, key, std::to_string(wait.count()), wait);
    if (frame.kind == FrameKind::value) return frame.first;
    if (Clock::now() >= deadline) {
      throw CommError(
          fmt::format("store: key '{}' did not appear within {} ms", key, timeout.count()));
    }
  }
}

std::optional<std::string> Client::try_get(std::string_view key) {
  const Frame frame = ask(FrameKind::get, key, "0", {});
  if (frame.kind != FrameKind::value) return std::nullopt;
  return frame.first;
}

int64_t Client::add(std::string_view key, int64_t amount) {
  const Frame frame = ask(FrameKind::add, key, std::to_string(amount), {});
  int64_t sum = 0;
  std::from_chars(frame.first.data(), frame.first.data() + frame.first.size(), sum);
  return sum;
}

}  // namespace trireme::store
