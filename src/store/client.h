// The store seen from a process of the job.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "comm/comm.h"
#include "store/server.h"

namespace trireme::store {

/// The server would not have this client: wrong token, job or epoch.
class Refused : public CommError {
 public:
  using CommError::CommError;
};

struct ClientOptions {
  Endpoint endpoint;
  JobIdentity identity;
  /// Until the server listens and both sides have proven themselves.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  /// For one answer, beside what a get may wait.
  std::chrono::milliseconds answer_timeout = std::chrono::seconds(10);
};

/// Thread-safe. After a lost or silent server every call throws CommError at once.
class Client final : public comm::Store {
 public:
  /// Throws Refused, or CommError when nobody answers in time.
  explicit Client(const ClientOptions& options);

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> try_get(std::string_view key) override;
  int64_t add(std::string_view key, int64_t amount) override;

  /// The address by which this process reaches the server: the interface that peers can reach too.
  std::string local_host() const { return store::local_host(fd_); }

 private:
  void shake_hands(const Fd& fd, Clock::time_point deadline) const;
  Frame ask(FrameKind kind, std::string_view key, std::string_view second,
            std::chrono::milliseconds patience);
  [[noreturn]] void lose(const std::string& why);

  const ClientOptions options_;
  std::mutex mutex_;  // one question at a time
  Fd fd_;
  std::string lost_;  // why, once it is
};

}  // namespace trireme::store
