// The key-value store of one job, served over TCP by one thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/protocol.h"
#include "store/socket.h"

namespace trireme::store {

/// Who may talk to whom: the same token, job and epoch. The epoch is the number of the job's
/// restart; a process left over from an earlier one is refused.
struct JobIdentity {
  std::string token;
  std::string job;
  uint64_t epoch = 0;
};

struct ServerOptions {
  /// The interface to bind; port 0 takes a free one.
  Endpoint endpoint{"127.0.0.1", 0};
  JobIdentity identity;
  size_t max_clients = 4096;
  /// Connections that have not proven themselves: of more the oldest is dropped, and each has this
  /// long. So strangers can neither crowd members out nor keep descriptors.
  size_t max_strangers = 64;
  std::chrono::milliseconds handshake_time = std::chrono::seconds(5);
  size_t max_keys = 1u << 16;
  size_t max_bytes = 64u << 20;
};

class Server {
 public:
  /// Throws CommError when the endpoint cannot be bound.
  explicit Server(const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Where clients reach it.
  Endpoint endpoint() const { return endpoint_; }

 private:
  struct Client;
  using ClientPtr = std::unique_ptr<Client>;

  void serve();
  void wait_for_events();
  void accept_stranger();
  void handle(Client& client, short events);
  void read_from(Client& client);
  void write_to(Client& client);
  void check_proof(Client& client);
  void answer_requests(Client& client);
  Frame answer(const Frame& request, Client& client);
  Frame store_value(const std::string& key, std::string value);
  void key_appeared(const std::string& key);
  void expire();
  void reply(Client& client, const Frame& frame);
  size_t count(bool proven) const;

  const ServerOptions options_;
  const Digest job_;
  Fd listener_;
  Fd stop_;
  Endpoint endpoint_;
  std::vector<ClientPtr> clients_;
  std::map<std::string, std::string, std::less<>> values_;
  size_t bytes_ = 0;
  std::thread thread_;
};

}  // namespace trireme::store
