// The collectives of one rank's GPU: one NCCL communicator a group, work in the order of streams.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "cuda/comm_kernels.h"
#include "cuda/comm_peers.h"
#include "cuda/handle.h"
#include "cuda/nccl_api.h"

namespace trireme::cuda {

struct NcclWorld {
  int rank = 0;
  int world_size = 1;
  int device = 0;                // of CUDA; current on the constructing thread
  comm::Store* store = nullptr;  // may be null in a world of one
  std::string prefix = "cuda";   // of the keys; the same on all ranks, new for every world
  std::string library;           // of NCCL; not loaded in a world of one
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(2);
  bool wire_sums = false;  // sums with a wire type will come: ranks connect in pairs at once
};

/// Buffers lie in memory that the GPU sees. Differences from the reduction law of comm.h: sums are
/// taken in NCCL's order, which is the same whenever the layout and NCCL's choices are; an adding
/// reduce_scatter is (out + g_rank) + the others, and overwrites share `rank` of `send`. Sums with
/// a wire type keep the law: NCCL carries their bytes alone.
///
/// The ranks of a group must make the same calls (the hashes of programs are compared before the
/// first step): differences are not noticed, they hang until the timeout.
class NcclCommunicator final : public comm::Communicator {
 public:
  /// Collective over the world: meets the others, makes group 0.
  explicit NcclCommunicator(const NcclWorld& world);
  /// close(). No work may be in flight.
  ~NcclCommunicator() override;

  int rank() const override { return world_.rank; }
  int world_size() const override { return world_.world_size; }
  int add_group(const std::vector<int>& ranks) override;
  int group_size(int group) const override;
  int group_rank(int group) const override;
  /// enqueue() on a stream of the group's own, and wait.
  void run(const comm::CommCall& call) override;
  /// Ends NCCL's kernels that wait and tells the other ranks why. Bounded in time.
  void abort(const std::string& reason) override;
  comm::Traffic traffic(int group) const override;

  /// Launches the call; the host does not wait for it. Calls of one group must use one stream, or
  /// streams that wait for each other.
  void enqueue(const comm::CommCall& call, cudaStream_t stream);
  /// Lets NCCL reach the buffer from other GPUs without copies; before it is first used.
  void register_buffer(void* base, int64_t bytes);
  /// Ends the communicators, waiting for the other ranks to do the same, at most half a minute.
  /// Buffers may be freed afterwards. No later call works.
  void close();

  /// An error that NCCL noticed by itself. Any thread.
  std::optional<std::string> failure();
  const std::vector<int>& ranks_of(int group) const { return at(group).ranks; }
  PeerWatch& peers() { return peers_; }
  /// Null in a world of one.
  const NcclApi* api() const { return api_ ? &*api_ : nullptr; }

 private:
  struct Group {
    std::vector<int> ranks;
    int rank = -1;  // this rank's place
    std::atomic<ncclComm_t> comm{nullptr};
    std::string name;
    std::vector<void*> registrations;
    std::unique_ptr<StreamHandle> stream;  // of run()
    std::atomic<int64_t> calls{0};
    std::atomic<int64_t> messages{0};
    std::atomic<int64_t> bytes{0};
    int size() const { return static_cast<int>(ranks.size()); }
  };
  struct Buffer {
    void* base = nullptr;
    int64_t bytes = 0;
  };

  Group& at(int group) const;
  void meet();
  ncclComm_t connect(int handle, Group& group, bool small);
  void warm_up(int handle);
  void register_with(Group& group, const Buffer& buffer);
  void check_call(const comm::CommCall& call, const Group& group) const;
  void count(const comm::CommCall& call, Group& group);
  void run_alone(const comm::CommCall& call, cudaStream_t stream);
  ncclResult_t scatter_apart(const comm::CommCall& call, const comm::CommPiece& piece,
                             const Group& group, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t launch_piece(const comm::CommCall& call, const comm::CommPiece& piece,
                            const Group& group, ncclComm_t comm, cudaStream_t stream);
  void sum_over_wire(const comm::CommCall& call, Group& group, cudaStream_t stream);
  ncclResult_t exchange_places(const WirePlaces& out, const WirePlaces& in, int64_t count,
                               ncclComm_t comm, cudaStream_t stream);
  ncclResult_t hand_out_sums(const comm::CommCall& call, const Group& group, ncclComm_t comm,
                             cudaStream_t stream);
  /// Calls `launches` with the group's communicator; what it launches starts as one.
  template <typename Launches>
  void launch_together(std::string_view name, Group& group, const Launches& launches) {
    const std::lock_guard launching(launch_mutex_);
    throw_if_aborted();
    ncclComm_t comm = group.comm.load();
    require(api_->group_start(), "ncclGroupStart", group, comm);
    const ncclResult_t result = launches(comm);
    const ncclResult_t ended = api_->group_end();
    require(result, name, group, comm);
    require(ended, name, group, comm);
  }
  void throw_if_aborted() const;
  void require(ncclResult_t result, std::string_view call, const Group& group,
               ncclComm_t comm) const;

  const NcclWorld world_;
  std::optional<NcclApi> api_;
  PeerWatch peers_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<Buffer> buffers_;

  std::timed_mutex launch_mutex_;  // held while NCCL is called to launch
  mutable std::mutex state_mutex_;
  std::atomic<bool> aborted_{false};
  std::string reason_;  // under state_mutex_
  bool closed_ = false;
};

/// "all_gather 17 of group 1 (3 pieces, 12.0 MiB)".
std::string describe(comm::CommKind kind, int32_t group, int64_t number, size_t pieces,
                     int64_t bytes);

}  // namespace trireme::cuda
