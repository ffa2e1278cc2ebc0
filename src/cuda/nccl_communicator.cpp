#include "cuda/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "cuda/comm_bounded.h"
#include "cuda/comm_sizing.h"
#include "cuda/memory.h"

namespace trireme::cuda {

namespace {

using comm::CommCall;
using comm::CommKind;
using comm::CommPiece;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kEndLimit{30};

ncclDataType_t summed_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f64:
      return ncclFloat64;
    case DType::i32:
      return ncclInt32;
    default:
      check(false, "collective sums of {}", name_of(dtype));
      return ncclNumTypes;
  }
}

/// Elements of `send` on this rank, in shares of `count`.
int64_t bytes_of(const CommCall& call, const CommPiece& piece) {
  return piece.count * size_of(call.dtype);
}

void copy_if_apart(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0 || to == from) return;
  TRIREME_CUDA(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
}

}  // namespace

std::string describe(CommKind kind, int32_t group, int64_t number, size_t pieces, int64_t bytes) {
  return fmt::format("{} {} of group {} ({} {}, {})", comm::name_of(kind), number, group, pieces,
                     pieces == 1 ? "piece" : "pieces", human_bytes(bytes));
}

NcclCommunicator::NcclCommunicator(const NcclWorld& world)
    : world_(world), peers_(world.store, world.prefix, world.rank) {
  check(world.rank >= 0 && world.rank < world.world_size, "rank {} of {}", world.rank,
        world.world_size);
  if (world.world_size > 1) {
    check(world.store != nullptr, "ranks that meet need a store");
    api_ = load_nccl(world.library);
    meet();
  }
  std::vector<int> all(static_cast<size_t>(world.world_size));
  for (size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int>(r);
  add_group(all);
}

NcclCommunicator::~NcclCommunicator() { close(); }

/// NCCL would wait for an absent rank without saying so.
void NcclCommunicator::meet() {
  peers_.beat();
  comm::Store& store = *world_.store;
  const std::string arrived = world_.prefix + "/arrived";
  const std::string met = world_.prefix + "/met";
  if (store.add(arrived, 1) == world_.world_size) store.set(met, "1");
  try {
    store.get(met, world_.connect_timeout);
  } catch (const CommError& error) {
    throw CommError(fmt::format("rank {}: {} of {} ranks came within {} s ({})", world_.rank,
                                store.add(arrived, 0), world_.world_size,
                                world_.connect_timeout.count() / 1000, error.what()));
  }
}

NcclCommunicator::Group& NcclCommunicator::at(int group) const {
  check(group >= 0 && static_cast<size_t>(group) < groups_.size(), "no group {}", group);
  return *groups_[static_cast<size_t>(group)];
}

int NcclCommunicator::group_size(int group) const { return at(group).size(); }
int NcclCommunicator::group_rank(int group) const { return at(group).rank; }

int NcclCommunicator::add_group(const std::vector<int>& ranks) {
  throw_if_aborted();
  const int handle = static_cast<int>(groups_.size());
  auto group = std::make_unique<Group>();
  group->ranks = ranks;
  const auto self = std::find(ranks.begin(), ranks.end(), world_.rank);
  group->rank = self == ranks.end() ? -1 : static_cast<int>(self - ranks.begin());
  group->name = fmt::format("trireme.{}", handle);
  if (group->rank >= 0) group->stream = std::make_unique<StreamHandle>(0);
  Group& added = *group;
  {
    const std::lock_guard lock(state_mutex_);
    groups_.push_back(std::move(group));
  }
  if (added.rank >= 0 && added.size() > 1) {
    // Group 0 carries a few numbers a step: two blocks spare memory and multiprocessors.
    added.comm = connect(handle, added, handle == 0);
    for (const Buffer& buffer : buffers_) register_with(added, buffer);
    warm_up(handle);
  }
  return handle;
}

ncclComm_t NcclCommunicator::connect(int handle, Group& group, bool small) {
  const std::string key = fmt::format("{}/nccl/{}", world_.prefix, handle);
  ncclUniqueId id;
  if (group.rank == 0) {
    require(api_->get_unique_id(&id), "ncclGetUniqueId", group, nullptr);
    world_.store->set(key, {id.internal, sizeof(id.internal)});
  } else {
    const std::string text = world_.store->get(key, world_.connect_timeout);
    check(text.size() == sizeof(id.internal), "the id of group {} has {} bytes", handle,
          text.size());
    std::memcpy(id.internal, text.data(), text.size());
  }
  struct Init {
    NcclApi api;
    std::string name;
    ncclComm_t comm = nullptr;
    ncclResult_t result = ncclInternalError;
    cudaError_t device = cudaSuccess;
    std::string text;
  };
  const auto init = std::make_shared<Init>();
  init->api = *api_;
  init->name = group.name;
  const auto work = [init, id, small, device = world_.device, size = group.size(),
                     rank = group.rank] {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.commName = init->name.c_str();
    if (small) {
      config.minCTAs = 1;
      config.maxCTAs = 2;
    }
    init->device = cudaSetDevice(device);
    init->result = init->api.init_rank(&init->comm, size, id, rank, &config);
    if (init->result != ncclSuccess) init->text = init->api.last_error(nullptr);
  };
  if (!run_bounded(work, world_.connect_timeout)) {
    throw CommError(
        fmt::format("rank {}: ncclCommInitRankConfig of group {} ({} ranks) did not "
                    "end within {} s",
                    world_.rank, handle, group.size(), world_.connect_timeout.count() / 1000));
  }
  cuda::require(init->device, "cudaSetDevice");
  if (init->result != ncclSuccess) {
    throw CommError(fmt::format("rank {}: ncclCommInitRankConfig of group {}: {} ({})", world_.rank,
                                handle, api_->error_string(init->result), init->text));
  }
  return init->comm;
}

/// NCCL connects its channels, and the driver loads its kernels, at the first use: now, not in the
/// middle of a step. Group 0 only sums.
void NcclCommunicator::warm_up(int handle) {
  Group& group = at(handle);
  constexpr int64_t kElements = 64 << 10;
  constexpr int64_t kBytes = kElements * 4;
  const Arena arena(device::Space::device, kBytes * (2 * group.size() + 1));
  std::byte* const own = arena.base();
  std::byte* const all = own + kBytes;
  std::byte* const staging = all + kBytes * group.size();
  const auto use = [&](CommKind kind, DType dtype, int64_t num, const void* send, void* recv,
                       std::optional<DType> wire = {}) {
    const CommPiece piece{send, recv, num};
    CommCall call;
    call.kind = kind;
    call.group = handle;
    call.dtype = dtype;
    call.wire = wire;
    call.pieces = {&piece, 1};
    call.workspace = staging;
    call.workspace_bytes = kBytes * group.size();
    run(call);
  };
  use(CommKind::all_reduce, DType::f64, 3, own, own);
  if (handle > 0) {
    for (const int64_t num : {int64_t{64}, kElements}) {
      use(CommKind::all_gather, DType::f32, num, own, all);
      use(CommKind::reduce_scatter, DType::f32, num, all, own);
      use(CommKind::all_reduce, DType::f32, num, own, own);
      if (world_.wire_sums) use(CommKind::reduce_scatter, DType::f32, num, all, own, DType::bf16);
    }
  }
  group.calls = group.messages = group.bytes = 0;
}

void NcclCommunicator::register_buffer(void* base, int64_t bytes) {
  if (bytes == 0 || !api_) return;
  buffers_.push_back({base, bytes});
  for (const auto& group : groups_) {
    if (group->comm.load() != nullptr) register_with(*group, buffers_.back());
  }
}

void NcclCommunicator::register_with(Group& group, const Buffer& buffer) {
  void* registration = nullptr;
  require(api_->register_buffer(group.comm, buffer.base, static_cast<size_t>(buffer.bytes),
                                &registration),
          "ncclCommRegister", group, group.comm);
  group.registrations.push_back(registration);
}

void NcclCommunicator::throw_if_aborted() const {
  if (!aborted_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(state_mutex_);
  throw CommError(reason_);
}

void NcclCommunicator::require(ncclResult_t result, std::string_view call, const Group& group,
                               ncclComm_t comm) const {
  if (result == ncclSuccess) return;
  const char* detail = api_->last_error(comm);
  throw CommError(fmt::format("rank {}: {} of {} ({} ranks): {} ({})", world_.rank, call,
                              group.name, group.size(), api_->error_string(result),
                              detail == nullptr ? "" : detail));
}

void NcclCommunicator::check_call(const CommCall& call, const Group& group) const {
  check(!closed_, "a collective after the end");
  check(group.rank >= 0, "rank {} is not in group {}", world_.rank, call.group);
  const bool names_rank = call.kind == CommKind::broadcast || call.kind == CommKind::send ||
                          call.kind == CommKind::recv;
  check(!names_rank || (call.root >= 0 && call.root < group.size()), "{}: no group rank {}",
        comm::name_of(call.kind), call.root);
  if (comm::sums(call.kind)) (void)summed_type(call.dtype);
  comm::check_wire(call);
  const int64_t needed = CommSizing().workspace_bytes(call, group.size());
  check(call.workspace_bytes >= needed, "{}: workspace of {} bytes, {} needed",
        comm::name_of(call.kind), call.workspace_bytes, needed);
  for (const CommPiece& piece : call.pieces) check(piece.count >= 0, "{} elements", piece.count);
}

void NcclCommunicator::count(const CommCall& call, Group& group) {
  int64_t bytes = 0;
  int64_t raw_bytes = 0;  // of contributions to sums
  for (const CommPiece& piece : call.pieces) {
    bytes += bytes_of(call, piece);
    raw_bytes += piece.count * size_of(call.wire_type());
  }
  ++group.calls;
  if (bytes == 0) return;
  const int64_t others = group.size() - 1;
  switch (call.kind) {
    case CommKind::all_gather:
    case CommKind::reduce_scatter:
      group.messages += others;
      group.bytes += others * raw_bytes;
      return;
    case CommKind::all_reduce:
      group.messages += 2 * others;
      group.bytes += others * (raw_bytes + bytes) / group.size();
      return;
    case CommKind::broadcast:
      if (group.rank != call.root) return;
      group.messages += others;
      group.bytes += others * bytes;
      return;
    case CommKind::send:
      group.messages += 1;
      group.bytes += bytes;
      return;
    case CommKind::recv:
      return;
  }
}

void NcclCommunicator::run_alone(const CommCall& call, cudaStream_t stream) {
  check(call.kind != CommKind::send && call.kind != CommKind::recv, "{} in a group of one",
        comm::name_of(call.kind));
  if (call.kind == CommKind::broadcast) return;
  for (const CommPiece& piece : call.pieces) {
    if (call.kind == CommKind::reduce_scatter && call.law == ops::Law::add) {
      add_elements(call.dtype, piece.recv, piece.send, piece.count, stream);
    } else {
      copy_if_apart(piece.recv, piece.send, bytes_of(call, piece), stream);
    }
  }
}

/// Shares that lie apart: one reduction to each owner, grouped by the caller.
ncclResult_t NcclCommunicator::scatter_apart(const CommCall& call, const CommPiece& piece,
                                             const Group& group, ncclComm_t comm,
                                             cudaStream_t stream) {
  ncclResult_t result = ncclSuccess;
  for (int owner = 0; owner < group.size() && result == ncclSuccess; ++owner) {
    const auto* share = static_cast<const std::byte*>(piece.send) +
                        owner * piece.share_stride() * size_of(call.dtype);
    result = api_->reduce(share, piece.recv, static_cast<size_t>(piece.count),
                          summed_type(call.dtype), ncclSum, owner, comm, stream);
  }
  return result;
}

ncclResult_t NcclCommunicator::launch_piece(const CommCall& call, const CommPiece& piece,
                                            const Group& group, ncclComm_t comm,
                                            cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(bytes_of(call, piece));
  const auto num = static_cast<size_t>(piece.count);
  switch (call.kind) {
    case CommKind::all_gather:
      return api_->all_gather(piece.send, piece.recv, bytes, ncclInt8, comm, stream);
    case CommKind::reduce_scatter:
      if (piece.share_stride() != piece.count) return scatter_apart(call, piece, group, comm, stream);
      return api_->reduce_scatter(piece.send, piece.recv, num, summed_type(call.dtype), ncclSum,
                                  comm, stream);
    case CommKind::all_reduce:
      return api_->all_reduce(piece.send, piece.recv, num, summed_type(call.dtype), ncclSum, comm,
                              stream);
    case CommKind::broadcast: {
      const void* from = group.rank == call.root && piece.send != nullptr ? piece.send : piece.recv;
      return api_->broadcast(from, piece.recv, bytes, ncclInt8, call.root, comm, stream);
    }
    case CommKind::send:
      return api_->send(piece.send, bytes, ncclInt8, call.root, comm, stream);
    case CommKind::recv:
      return api_->recv(piece.recv, bytes, ncclInt8, call.root, comm, stream);
  }
  return ncclInvalidArgument;
}

void NcclCommunicator::enqueue(const CommCall& call, cudaStream_t stream) {
  Group& group = at(call.group);
  check_call(call, group);
  count(call, group);
  if (call.wire) return sum_over_wire(call, group, stream);
  if (group.size() == 1) return run_alone(call, stream);
  if (call.kind == CommKind::reduce_scatter && call.law == ops::Law::add) {
    for (const CommPiece& piece : call.pieces) {
      // Added to what this rank sends to itself, `out` needs no second place.
      auto* own = static_cast<std::byte*>(const_cast<void*>(piece.send)) +
                  group.rank * piece.share_stride() * size_of(call.dtype);
      add_elements(call.dtype, own, piece.recv, piece.count, stream);
    }
  }
  launch_together(comm::name_of(call.kind), group, [&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    for (const CommPiece& piece : call.pieces) {
      if (piece.count == 0 || result != ncclSuccess) continue;
      result = launch_piece(call, piece, group, comm, stream);
    }
    return result;
  });
}

void NcclCommunicator::run(const CommCall& call) {
  Group& group = at(call.group);
  check(group.rank >= 0, "rank {} is not in group {}", world_.rank, call.group);
  throw_if_aborted();
  TRIREME_CUDA(cudaSetDevice(world_.device));
  cudaStream_t stream = group.stream->get();
  enqueue(call, stream);
  const EventHandle done;
  TRIREME_CUDA(cudaEventRecord(done.get(), stream));
  const auto start = std::chrono::steady_clock::now();
  auto next_look = start + milliseconds(100);
  while (true) {
    const cudaError_t state = cudaEventQuery(done.get());
    // Aborted kernels end too, and mean nothing.
    throw_if_aborted();
    if (state == cudaSuccess) return;
    (void)cudaGetLastError();  // "not ready" stays behind as an error otherwise
    if (state != cudaErrorNotReady) cuda::require(state, "cudaEventQuery");
    const auto now = std::chrono::steady_clock::now();
    if (now > next_look) {
      next_look = now + milliseconds(100);
      auto reason = failure();
      if (!reason) reason = peers_.published();
      if (reason) abort(*reason);
    }
    if (now - start > world_.timeout) {
      abort(fmt::format("rank {}: {} of {} did not end within {} s", world_.rank,
                        comm::name_of(call.kind), group.name, world_.timeout.count() / 1000));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

std::optional<std::string> NcclCommunicator::failure() {
  if (!api_) return std::nullopt;
  const std::lock_guard lock(state_mutex_);
  for (const auto& group : groups_) {
    ncclComm_t comm = group->comm.load();
    if (comm == nullptr) continue;
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = api_->get_async_error(comm, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) continue;
    const char* detail = api_->last_error(comm);
    return fmt::format("NCCL, {} ({} ranks): {} ({})", group->name, group->size(),
                       api_->error_string(state), detail == nullptr ? "" : detail);
  }
  return std::nullopt;
}

void NcclCommunicator::abort(const std::string& reason) {
  std::vector<ncclComm_t> comms;
  {
    const std::lock_guard lock(state_mutex_);
    if (aborted_ || closed_) return;
    reason_ = reason;
    aborted_.store(true, std::memory_order_release);
    for (const auto& group : groups_) {
      if (ncclComm_t comm = group->comm.exchange(nullptr)) comms.push_back(comm);
    }
  }
  peers_.publish(reason);
  if (comms.empty()) return;
  // A host thread may be inside NCCL, waiting for room in a stream that waits for a peer. Freeing
  // its communicator comes after it is out; revoking lets it out.
  bool alone = launch_mutex_.try_lock_for(seconds(2));
  if (!alone && api_->revoke != nullptr) {
    run_bounded(
        [comms, api = *api_, device = world_.device] {
          (void)cudaSetDevice(device);
          for (ncclComm_t comm : comms) (void)api.revoke(comm, NCCL_REVOKE_DEFAULT);
        },
        kEndLimit);
    alone = launch_mutex_.try_lock_for(kEndLimit);
  }
  // All at once: each first lets its own kernels go, then frees memory, which waits for the kernels
  // of all.
  run_bounded(
      [comms, end = api_->abort, device = world_.device] {
        std::vector<std::thread> threads;
        for (ncclComm_t comm : comms) {
          threads.emplace_back([=] {
            (void)cudaSetDevice(device);
            (void)end(comm);
          });
        }
        for (std::thread& thread : threads) thread.join();
      },
      kEndLimit);
  if (alone) launch_mutex_.unlock();
}

void NcclCommunicator::close() {
  {
    const std::lock_guard lock(state_mutex_);
    if (closed_) return;
    closed_ = true;
  }
  if (!api_ || aborted_) return;
  struct End {
    ncclComm_t comm;
    std::vector<void*> registrations;
  };
  std::vector<End> ends;
  {
    const std::lock_guard lock(state_mutex_);
    for (const auto& group : groups_) {
      if (ncclComm_t comm = group->comm.exchange(nullptr)) {
        ends.push_back({comm, std::move(group->registrations)});
      }
    }
  }
  run_bounded(
      [ends, api = *api_, device = world_.device] {
        (void)cudaSetDevice(device);
        for (const End& end : ends) {
          for (void* registration : end.registrations) {
            (void)api.deregister_buffer(end.comm, registration);
          }
          (void)api.destroy(end.comm);
        }
      },
      kEndLimit);
}

comm::Traffic NcclCommunicator::traffic(int group) const {
  const Group& g = at(group);
  return {g.calls, g.messages, g.bytes};
}

}  // namespace trireme::cuda
