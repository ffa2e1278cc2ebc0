// The connections between the processes of a world: one stream for each pair of ranks and group,
// so that groups never wait for each other and a call needs no thread but its own.
//
// Ranks of one host meet over local sockets, others over TCP; each connection proves on both sides
// that it knows the job's session key, which only members of the authenticated store can read.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "store/proof.h"
#include "store/socket.h"

namespace trireme::cpu {

class SocketMesh {
 public:
  /// Exchanges addresses through the store (collective over the world). `host` is the interface on
  /// which ranks of other hosts reach this one; no port is opened when all share one host.
  SocketMesh(comm::Store& store, int rank, int world_size, const std::string& host,
             std::chrono::milliseconds timeout);

  /// One connected non-blocking socket for each member of `ranks`, in that order; none for this
  /// rank itself. Collective over `ranks`. `group` tells calls apart and is the same on all.
  std::vector<store::Fd> connect_group(int group, const std::vector<int>& ranks);

 private:
  struct Peer {
    std::string host_id;     // equal on one host (and network namespace)
    std::string local_name;  // abstract local socket
    store::Endpoint endpoint;
    store::Digest nonce{};
  };
  struct Hello;
  struct Stranger {
    store::Fd fd;
    store::Clock::time_point deadline;
  };

  void exchange_addresses(comm::Store& store, const std::string& host);
  store::Fd open_to(const Peer& peer) const;
  store::Fd call(int group, int to, store::Digest* nonce) const;
  void accept_until(int group, int from);
  void greet(store::Fd fd);
  store::Digest hello_proof(const Hello& hello, int to) const;

  const int rank_;
  const std::chrono::milliseconds timeout_;
  std::string key_;
  std::vector<Peer> peers_;
  store::Fd local_listener_;
  store::Fd listener_;
  std::vector<Stranger> strangers_;                    // accepted, not greeted yet
  std::map<std::pair<int, int>, store::Fd> accepted_;  // by (group, from)
  store::Clock::time_point deadline_{};
};

}  // namespace trireme::cpu
