// What every device promises (device/device.h), and its collectives (comm/comm.h) in the order of
// streams: on the CPU, or on this machine's GPUs (support/backends.h).
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <thread>

#include "base/error.h"
#include "support/backends.h"
#include "support/rig.h"

namespace trireme::testing {
namespace {

using comm::CommCall;
using comm::CommKind;
using comm::CommPiece;
using device::Device;
using device::Space;
using device::StreamKind;

/// Small ones, and all GPUs of this machine.
std::vector<int> world_sizes() {
  std::vector<int> sizes;
  for (int size = 1; size <= std::min(max_ranks(), 4); ++size) sizes.push_back(size);
  if (on_cuda() && max_ranks() > 4) sizes.push_back(max_ranks());
  return sizes;
}

/// Device memory of one test, with typed copies to and from it.
class Memory {
 public:
  Memory(Device& device, int64_t bytes)
      : device_(device), bytes_(bytes), base_(device.allocate(Space::device, bytes)) {}

  template <typename T>
  T* put(const std::vector<T>& values) {
    T* at = reinterpret_cast<T*>(base_ + used_);
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    used_ += (bytes + 255) / 256 * 256 + 256;
    check(used_ <= bytes_, "too many values");
    device_.copy(StreamKind::compute, at, values.data(), bytes);
    device_.drain();
    return at;
  }
  template <typename T>
  std::vector<T> get(const T* at, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    device_.copy(StreamKind::compute, values.data(), at, count * static_cast<int64_t>(sizeof(T)));
    device_.drain();
    return values;
  }

 private:
  Device& device_;
  int64_t bytes_;
  std::byte* base_;
  int64_t used_ = 0;
};

void add_one(void* counter, int64_t amount) {
  *static_cast<std::atomic<int64_t>*>(counter) += amount;
}

TEST(DeviceContract, ArenasAreAlignedZeroedAndCounted) {
  TestWorld world(1);
  const auto backend = world.open(0);
  Device& device = backend->device();
  for (const Space space : {Space::device, Space::pinned}) {
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{5000}, int64_t{3} << 20}) {
      std::byte* arena = device.allocate(space, bytes);
      ASSERT_NE(arena, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(arena) % 4096, 0u);
      std::vector<std::byte> seen(static_cast<size_t>(bytes), std::byte{1});
      device.copy(StreamKind::copy_out, seen.data(), arena, bytes);
      device.drain();
      EXPECT_TRUE(
          std::all_of(seen.begin(), seen.end(), [](std::byte b) { return b == std::byte{}; }));
    }
    EXPECT_EQ(device.allocated(space), 5001 + (3 << 20));
  }
}

TEST(DeviceContract, StreamsAreOrderedByEvents) {
  TestWorld world(1);
  const auto backend = world.open(0);
  Device& device = backend->device();
  std::byte* there = device.allocate(Space::device, 1 << 20);
  std::byte* here = device.allocate(Space::pinned, 1 << 20);
  device.create_events(4);
  device.wait(StreamKind::compute, 3);  // never recorded: no wait
  for (int round = 1; round <= 50; ++round) {
    const auto byte = static_cast<uint8_t>(round);
    device.wait(StreamKind::copy_in, 1);  // the last round's copy out
    device.fill(StreamKind::copy_in, there, byte, 1 << 20);
    device.record(StreamKind::copy_in, 0);
    device.wait(StreamKind::copy_out, 0);
    device.copy(StreamKind::copy_out, here, there, 1 << 20);
    device.record(StreamKind::copy_out, 1);
    if (round % 10 == 0) {
      device.synchronize(1);
      EXPECT_EQ(std::to_integer<int>(here[0]), round);
      EXPECT_EQ(std::to_integer<int>(here[(1 << 20) - 1]), round);
    }
  }
  device.drain();
}

TEST(DeviceContract, HostCallsRunInOrderHoweverMany) {
  TestWorld world(1);
  const auto backend = world.open(0);
  Device& device = backend->device();
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 5000; ++i) device.call(StreamKind::copy_in, {&add_one, &sum, i});
  device.create_events(1);
  device.record(StreamKind::copy_in, 0);
  device.synchronize(0);
  EXPECT_EQ(sum, 5000 * 4999 / 2);
}

TEST(DeviceContract, PinnedMemoryCanBeFilled) {
  TestWorld world(1);
  const auto backend = world.open(0);
  Device& device = backend->device();
  std::byte* here = device.allocate(Space::pinned, 1000);
  device.fill(StreamKind::copy_out, here + 10, 0xff, 100);
  device.drain();
  EXPECT_EQ(here[9], std::byte{0});
  EXPECT_EQ(here[10], std::byte{0xff});
  EXPECT_EQ(here[109], std::byte{0xff});
  EXPECT_EQ(here[110], std::byte{0});
}

/// What a host call uses is gone soon after the error is thrown.
TEST(DeviceContract, AnErrorIsThrownWhenTheHostCallThatHasBegunIsOver) {
  TestWorld world(1);
  const auto backend = world.open(0);
  Device& device = backend->device();
  struct Call {
    std::atomic<bool> begun{false}, over{false};
  };
  const auto slow = [](void* context, int64_t) {
    auto& call = *static_cast<Call*>(context);
    call.begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    call.over = true;
  };
  Call first, second;
  device.create_events(1);
  device.call(StreamKind::copy_in, {slow, &first, 0});
  device.call(StreamKind::copy_in, {slow, &second, 0});
  while (!first.begun) std::this_thread::yield();
  ops::OpCall failing;  // without operands
  failing.kind = ops::OpKind::zero;
  device.launch(StreamKind::compute, failing);
  device.record(StreamKind::compute, 0);
  EXPECT_THROW(device.synchronize(0), BugError);
  EXPECT_TRUE(first.over);
  EXPECT_FALSE(second.begun);
}

TEST(DeviceContract, TheFirstErrorIsThrownByTheNextWaitAndTheRestIsDropped) {
  TestWorld world(1);
  const auto backend = world.open(0);
  Device& device = backend->device();
  const auto refuse = [](void*, int64_t) { throw DataError("file:7: no such row"); };
  std::atomic<int64_t> sum{0};
  device.create_events(1);
  device.call(StreamKind::copy_in, {refuse, nullptr, 0});
  device.call(StreamKind::copy_in, {&add_one, &sum, 1});
  device.record(StreamKind::copy_in, 0);
  EXPECT_THROW(device.synchronize(0), DataError);
  device.call(StreamKind::copy_out, {&add_one, &sum, 1});
  EXPECT_THROW(device.drain(), DataError);
  EXPECT_EQ(sum, 0);
}

/// Ranks that are threads of one process wait for each other here: the driver may make a thread
/// that allocates or frees wait for the work of every GPU, and so for a collective that waits for
/// it. Who fails does not keep the others.
class Meeting {
 public:
  explicit Meeting(int ranks) : barrier_(ranks) {}
  void wait() { barrier_.arrive_and_wait(); }
  void leave() { barrier_.arrive_and_drop(); }

 private:
  std::barrier<> barrier_;
};

class MeetingGuest {
 public:
  explicit MeetingGuest(Meeting& meeting) : meeting_(meeting) {}
  ~MeetingGuest() { meeting_.leave(); }

 private:
  Meeting& meeting_;
};

/// A world of ranks, each with its device, memory and group of everyone.
template <typename Body>
void each_rank(int size, const Body& body, int64_t bytes = 8 << 20) {
  constexpr int64_t kWorkspace = 64 << 20;
  TestWorld world(size);
  Meeting meeting(size);
  on_ranks(size, [&](int rank) {
    const MeetingGuest guest(meeting);
    const auto backend = world.open(rank);
    std::vector<int> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    const int group = backend->communicator().add_group(all);
    Memory memory(backend->device(), bytes);
    std::byte* const workspace = backend->device().allocate(Space::device, kWorkspace);
    const auto run = [&](CommKind kind, DType dtype, std::span<const CommPiece> pieces,
                         ops::Law law = ops::Law::set, int root = 0,
                         std::optional<DType> wire = {}) {
      CommCall call;
      call.kind = kind;
      call.group = group;
      call.dtype = dtype;
      call.wire = wire;
      call.law = law;
      call.root = root;
      call.pieces = pieces;
      call.workspace = workspace;
      call.workspace_bytes = backend->comm_sizing().workspace_bytes(call, size);
      check(call.workspace_bytes <= kWorkspace, "too much is staged");
      backend->device().launch(StreamKind::comm_dp, call);
      backend->device().drain();
    };
    meeting.wait();
    body(rank, memory, run);
    meeting.wait();
  });
}

/// Small whole numbers, so that sums are exact in any order.
template <typename T>
std::vector<T> numbers(int64_t count, int64_t rank, int64_t seed) {
  std::vector<T> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = static_cast<T>((i * 7 + rank * 13 + seed) % 31);
  }
  return values;
}

TEST(DeviceCollectives, AllGatherCarriesBytes) {
  for (const int size : world_sizes()) {
    each_rank(size, [&](int rank, Memory& memory, const auto& run) {
      // Two pieces and an empty one; the second gathers in place.
      const int64_t a = 1000;
      const int64_t b = 77;
      const int16_t* from = memory.put(numbers<int16_t>(a, rank, 1));
      int16_t* to = memory.put(std::vector<int16_t>(static_cast<size_t>(a * size)));
      std::vector<int16_t> whole(static_cast<size_t>(b * size));
      const auto own = numbers<int16_t>(b, rank, 2);
      std::copy(own.begin(), own.end(), whole.begin() + rank * b);
      int16_t* in_place = memory.put(whole);
      const CommPiece pieces[] = {{from, to, a}, {in_place + rank * b, in_place, b}, {from, to, 0}};
      run(CommKind::all_gather, DType::i16, pieces);
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(memory.get(to + r * a, a), numbers<int16_t>(a, r, 1));
        EXPECT_EQ(memory.get(in_place + r * b, b), numbers<int16_t>(b, r, 2));
      }
    });
  }
}

/// The sum over ranks of share `rank` of numbers<T>(count * size, r, seed).
template <typename T>
std::vector<T> share_sum(int64_t count, int size, int rank, int64_t seed) {
  std::vector<T> sum(static_cast<size_t>(count));
  for (int r = 0; r < size; ++r) {
    const auto theirs = numbers<T>(count * size, r, seed);
    for (int64_t i = 0; i < count; ++i) {
      sum[static_cast<size_t>(i)] += theirs[static_cast<size_t>(rank * count + i)];
    }
  }
  return sum;
}

TEST(DeviceCollectives, ReduceScatterSetsAndAdds) {
  for (const int size : world_sizes()) {
    each_rank(size, [&](int rank, Memory& memory, const auto& run) {
      const int64_t count = 12345;
      const auto mine = numbers<float>(count * size, rank, 3);
      float* from = memory.put(mine);
      float* to = memory.put(std::vector<float>(static_cast<size_t>(count), 1000.0f));
      const CommPiece piece[] = {{from, to, count}};
      run(CommKind::reduce_scatter, DType::f32, piece);
      auto expected = share_sum<float>(count, size, rank, 3);
      EXPECT_EQ(memory.get(to, count), expected);
      run(CommKind::reduce_scatter, DType::f32, piece, ops::Law::add);
      for (float& x : expected) x *= 2;
      EXPECT_EQ(memory.get(to, count), expected);
      for (int r = 0; r < size; ++r) {
        if (r == rank) continue;
        const auto at = mine.begin() + r * count;
        EXPECT_EQ(memory.get(from + r * count, count), std::vector<float>(at, at + count));
      }
      // In place.
      float* both = memory.put(mine);
      const CommPiece in_place[] = {{both, both + rank * count, count}};
      run(CommKind::reduce_scatter, DType::f32, in_place);
      EXPECT_EQ(memory.get(both + rank * count, count), share_sum<float>(count, size, rank, 3));
    });
  }
}

TEST(DeviceCollectives, ReduceScatterAddsToUnalignedShares) {
  for (const int size : world_sizes()) {
    each_rank(size, [&](int rank, Memory& memory, const auto& run) {
      const int64_t count = 1001;
      double* from = memory.put(numbers<double>(count * size + 1, rank, 4)) + 1;
      double* to = memory.put(std::vector<double>(static_cast<size_t>(count + 1), 0.5)) + 1;
      std::vector<double> expected(static_cast<size_t>(count), 0.5);
      for (int r = 0; r < size; ++r) {
        const auto theirs = numbers<double>(count * size + 1, r, 4);
        for (int64_t i = 0; i < count; ++i) {
          expected[static_cast<size_t>(i)] += theirs[static_cast<size_t>(1 + rank * count + i)];
        }
      }
      const CommPiece piece[] = {{from, to, count}};
      run(CommKind::reduce_scatter, DType::f64, piece, ops::Law::add);
      EXPECT_EQ(memory.get(to, count), expected);
    });
  }
}

TEST(DeviceCollectives, AllReduceSumsEveryType) {
  for (const int size : world_sizes()) {
    each_rank(size, [&](int rank, Memory& memory, const auto& run) {
      const auto check_type = [&]<typename T>(DType dtype, T) {
        const int64_t count = 3000;
        const auto mine = numbers<T>(count, rank, 5);
        T* from = memory.put(mine);
        T* to = memory.put(std::vector<T>(static_cast<size_t>(count)));
        std::vector<T> expected(static_cast<size_t>(count));
        for (int r = 0; r < size; ++r) {
          const auto theirs = numbers<T>(count, r, 5);
          for (size_t i = 0; i < expected.size(); ++i) expected[i] += theirs[i];
        }
        const CommPiece pieces[] = {{from, to, count}};
        run(CommKind::all_reduce, dtype, pieces);
        EXPECT_EQ(memory.get(to, count), expected);
        EXPECT_EQ(memory.get(from, count), mine);
        const CommPiece in_place[] = {{from, from, count}};
        run(CommKind::all_reduce, dtype, in_place);
        EXPECT_EQ(memory.get(from, count), expected);
      };
      check_type(DType::f32, float{});
      check_type(DType::f64, double{});
      if (on_cuda()) check_type(DType::i32, int32_t{});
    });
  }
}

TEST(DeviceCollectives, AllReduceOfBf16) {
  for (const int size : world_sizes()) {
    each_rank(size, [&](int rank, Memory& memory, const auto& run) {
      const int64_t count = 501;
      std::vector<uint16_t> mine;
      std::vector<uint16_t> expected;
      for (int64_t i = 0; i < count; ++i) {
        mine.push_back(bf16_from_f32(static_cast<float>(i % 16 + rank)));
        expected.push_back(
            bf16_from_f32(static_cast<float>(size * (i % 16) + size * (size - 1) / 2)));
      }
      uint16_t* values = memory.put(mine);
      const CommPiece pieces[] = {{values, values, count}};
      run(CommKind::all_reduce, DType::bf16, pieces);
      EXPECT_EQ(memory.get(values, count), expected);
    });
  }
}

/// Numbers that bf16 does not hold: what is rounded, and in which order it is added, shows.
std::vector<float> fractions(int64_t count, int64_t rank, int64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number = (i * 7919 + rank * 104729 + seed * 15485863) % 1000003;
    values[static_cast<size_t>(i)] = static_cast<float>(number - 500001) / 4096.0f;
  }
  return values;
}

/// (add ? before : 0) + ((g0 + g1) + ...) of elements [begin, begin + count), the g rounded to
/// bf16.
std::vector<float> wire_sum(const std::vector<std::vector<float>>& ranks, int64_t begin,
                            int64_t count, const std::vector<float>* before = nullptr) {
  std::vector<float> sums;
  for (int64_t i = 0; i < count; ++i) {
    const auto part = [&](size_t r) {
      return f32_from_bf16(bf16_from_f32(ranks[r][static_cast<size_t>(begin + i)]));
    };
    float sum = part(0);
    for (size_t r = 1; r < ranks.size(); ++r) sum += part(r);
    sums.push_back(before == nullptr ? sum : (*before)[static_cast<size_t>(i)] + sum);
  }
  return sums;
}

std::vector<std::vector<float>> fractions_of(int size, int64_t count, int64_t seed) {
  std::vector<std::vector<float>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(fractions(count, r, seed));
  return ranks;
}

/// Aligned shares and ragged ones, beside each other in one call, also apart and in place.
TEST(DeviceCollectives, ReduceScatterOfWhatTravelsAsBf16) {
  for (const int size : world_sizes()) {
    each_rank(size, [&](int rank, Memory& memory, const auto& run) {
      for (const ops::Law law : {ops::Law::set, ops::Law::add}) {
        for (const bool in_place : {false, true}) {
          const int64_t counts[] = {4096, 1, 0, 333, 12347};
          const int64_t gaps[] = {0, 0, 0, 3, 8};
          std::vector<CommPiece> pieces;
          std::vector<std::vector<float>> expected;
          for (int p = 0; p < 5; ++p) {
            const int64_t stride = counts[p] + gaps[p];
            const auto all = fractions_of(size, stride * size, p);
            const auto old = fractions(counts[p], rank, 10 + p);
            float* from = memory.put(all[static_cast<size_t>(rank)]);
            float* to = in_place ? from + rank * stride : memory.put(old);
            const auto own = all[static_cast<size_t>(rank)].begin() + rank * stride;
            const std::vector<float> before =
                in_place ? std::vector<float>(own, own + counts[p]) : old;
            pieces.push_back({from, to, counts[p], stride});
            expected.push_back(
                wire_sum(all, rank * stride, counts[p], law == ops::Law::add ? &before : nullptr));
          }
          run(CommKind::reduce_scatter, DType::f32, pieces, law, 0, DType::bf16);
          for (size_t p = 0; p < pieces.size(); ++p) {
            const auto* to = static_cast<const float*>(pieces[p].recv);
            EXPECT_EQ(memory.get(to, pieces[p].count), expected[p]) << "piece " << p;
          }
        }
      }
    });
  }
}

/// Counts that no number of ranks divides, and fewer elements than ranks.
TEST(DeviceCollectives, AllReduceOfWhatTravelsAsBf16) {
  for (const int size : world_sizes()) {
    each_rank(size, [&](int rank, Memory& memory, const auto& run) {
      for (const bool in_place : {false, true}) {
        const int64_t counts[] = {12347, 0, 1, 64, 30};
        std::vector<CommPiece> pieces;
        for (int p = 0; p < 5; ++p) {
          float* from = memory.put(fractions(counts[p], rank, p));
          float* to = in_place ? from : memory.put(fractions(counts[p], rank, 10 + p));
          pieces.push_back({from, to, counts[p]});
        }
        run(CommKind::all_reduce, DType::f32, pieces, ops::Law::set, 0, DType::bf16);
        for (int p = 0; p < 5; ++p) {
          const CommPiece& piece = pieces[static_cast<size_t>(p)];
          EXPECT_EQ(memory.get(static_cast<const float*>(piece.recv), piece.count),
                    wire_sum(fractions_of(size, piece.count, p), 0, piece.count))
              << "piece " << p;
        }
      }
    });
  }
}

/// More than the staging on a GPU holds.
TEST(DeviceCollectives, SumsThatTravelAsBf16RunInRounds) {
  if (max_ranks() < 2) GTEST_SKIP() << "needs two ranks";
  constexpr int64_t kFew = 1003;
  constexpr int64_t kMany = (int64_t{17} << 20) + 5;
  each_rank(
      2,
      [&](int rank, Memory& memory, const auto& run) {
        const auto few = fractions_of(2, 2 * kFew, 1);
        const auto many = fractions_of(2, 2 * kMany, 2);
        const auto mine = static_cast<size_t>(rank);
        float* small = memory.put(few[mine]);
        float* large = memory.put(many[mine]);
        const CommPiece pieces[] = {{small, small + rank * kFew, kFew},
                                    {large, large + rank * kMany, kMany}};
        run(CommKind::reduce_scatter, DType::f32, pieces, ops::Law::set, 0, DType::bf16);
        EXPECT_EQ(memory.get(small + rank * kFew, kFew), wire_sum(few, rank * kFew, kFew));
        EXPECT_TRUE(memory.get(large + rank * kMany, kMany) == wire_sum(many, rank * kMany, kMany));
      },
      256 << 20);
}

TEST(DeviceCollectives, BroadcastFromEveryRoot) {
  for (const int size : world_sizes()) {
    each_rank(size, [&](int rank, Memory& memory, const auto& run) {
      for (int root = 0; root < size; ++root) {
        float* values = memory.put(numbers<float>(99, rank, 6));
        const CommPiece pieces[] = {{values, values, 99}};
        run(CommKind::broadcast, DType::f32, pieces, ops::Law::set, root);
        EXPECT_EQ(memory.get(values, 99), numbers<float>(99, root, 6));
      }
    });
  }
}

TEST(DeviceCollectives, SendsMeetReceives) {
  for (const int size : world_sizes()) {
    if (size < 2) continue;
    each_rank(size, [&](int rank, Memory& memory, const auto& run) {
      float* values = memory.put(numbers<float>(4096, rank, 7));
      const CommPiece pieces[] = {{values, values, 4096}};
      if (rank == 0) run(CommKind::send, DType::f32, pieces, ops::Law::set, 1);
      if (rank == 1) {
        run(CommKind::recv, DType::f32, pieces, ops::Law::set, 0);
        EXPECT_EQ(memory.get(values, 4096), numbers<float>(4096, 0, 7));
      }
    });
  }
}

TEST(DeviceCollectives, AFailedRankFreesTheOthers) {
  if (max_ranks() < 2) GTEST_SKIP() << "needs two ranks";
  TestWorld world(2);
  Meeting meeting(2);
  std::vector<std::string> words(2);
  on_ranks(2, [&](int rank) {
    const MeetingGuest guest(meeting);
    const auto backend = world.open(rank);
    Device& device = backend->device();
    const int group = backend->communicator().add_group({0, 1});
    Memory memory(device, 8 << 20);
    float* values = memory.put(numbers<float>(100, rank, 8));
    std::byte* const workspace = device.allocate(Space::device, 4096);
    meeting.wait();
    const CommPiece pieces[] = {{values, values, 100}};
    CommCall call;
    call.kind = CommKind::all_reduce;
    call.group = group;
    call.pieces = pieces;
    call.workspace = workspace;
    call.workspace_bytes = backend->comm_sizing().workspace_bytes(call, 2);
    const auto refuse = [](void*, int64_t) { throw DataError("file:9: broken row"); };
    try {
      if (rank == 0) {
        device.call(StreamKind::copy_in, {refuse, nullptr, 0});
      } else {
        device.launch(StreamKind::comm_dp, call);
      }
      device.drain();
    } catch (const std::exception& error) {
      words[static_cast<size_t>(rank)] = error.what();
    }
  });
  EXPECT_EQ(words[0], "file:9: broken row");
  // The survivor says whose fault it was.
  EXPECT_NE(words[1].find("file:9: broken row"), std::string::npos) << words[1];
}

}  // namespace
}  // namespace trireme::testing
