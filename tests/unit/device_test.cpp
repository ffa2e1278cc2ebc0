// The CPU device: order within a stream, streams side by side, events, errors; and the null device.
#include "cpu/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "cpu/inproc.h"
#include "null/device.h"

namespace trireme {
namespace {

using device::HostCall;
using device::Space;
using device::StreamKind;

/// A gate that host calls wait at.
class Gate {
 public:
  void open() {
    open_ = true;
    open_.notify_all();
  }
  bool is_open() const { return open_; }
  HostCall wait_call() {
    return {[](void* self, int64_t) { static_cast<Gate*>(self)->open_.wait(false); }, this, 0};
  }
  HostCall open_call() {
    return {[](void* self, int64_t) { static_cast<Gate*>(self)->open(); }, this, 0};
  }

 private:
  std::atomic<bool> open_{false};
};

/// Notes in which order numbers come.
struct Journal {
  std::vector<int64_t> numbers;
  HostCall note(int64_t number) {
    return {[](void* self, int64_t n) { static_cast<Journal*>(self)->numbers.push_back(n); }, this,
            number};
  }
};

class CpuDevice : public testing::Test {
 protected:
  cpu::Device& make(const cpu::DeviceOptions& options = {}) {
    communicator_ = cpu::InProcessWorld(1).join(0);
    device_ = std::make_unique<cpu::Device>(
        [this](StreamKind, const ops::OpCall& call) {
          if (call.kind == ops::OpKind::zero) throw BugError("the operation failed");
          ++num_ops_;
        },
        *communicator_, options);
    return *device_;
  }

  std::atomic<int> num_ops_{0};
  std::unique_ptr<comm::Communicator> communicator_;
  std::unique_ptr<cpu::Device> device_;
};

TEST_F(CpuDevice, RunsAStreamInOrderThroughAFullQueue) {
  cpu::DeviceOptions options;
  options.queue_items = 4;
  cpu::Device& device = make(options);
  Journal journal;
  for (int i = 0; i < 1000; ++i) device.call(StreamKind::compute, journal.note(i));
  device.drain();
  ASSERT_EQ(journal.numbers.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(journal.numbers[static_cast<size_t>(i)], i);
}

TEST_F(CpuDevice, RunsStreamsSideBySide) {
  cpu::Device& device = make();
  // Each stream waits for the next one's opening: only all together can end.
  std::array<Gate, device::kNumStreams> gates;
  for (size_t k = 0; k + 1 < gates.size(); ++k) {
    device.call(static_cast<StreamKind>(k), gates[k + 1].wait_call());
    device.call(static_cast<StreamKind>(k), gates[k].open_call());
  }
  device.call(static_cast<StreamKind>(gates.size() - 1), gates.back().open_call());
  device.drain();
  EXPECT_TRUE(gates.front().is_open());
}

TEST_F(CpuDevice, WaitsForTheLatestRecordBeforeTheWait) {
  cpu::Device& device = make();
  device.create_events(2);
  device.wait(StreamKind::copy_in, 0);  // never recorded: no wait
  Gate first, second;
  Journal journal;
  device.call(StreamKind::compute, first.wait_call());
  device.call(StreamKind::compute, journal.note(1));
  device.record(StreamKind::compute, 0);
  device.wait(StreamKind::copy_in, 0);
  device.call(StreamKind::copy_in, journal.note(2));
  device.record(StreamKind::copy_in, 1);
  // Recorded anew afterwards: the wait above does not mean this one.
  device.call(StreamKind::compute, second.wait_call());
  device.record(StreamKind::compute, 0);
  first.open();
  device.synchronize(1);
  EXPECT_EQ(journal.numbers, (std::vector<int64_t>{1, 2}));
  second.open();
  device.synchronize(0);
  device.drain();
}

TEST_F(CpuDevice, AnEventRecordedOnAnotherStreamMeansThatStream) {
  cpu::Device& device = make();
  device.create_events(1);
  Gate gate;
  device.call(StreamKind::compute, gate.wait_call());
  device.record(StreamKind::compute, 0);
  device.record(StreamKind::copy_out, 0);
  device.synchronize(0);  // would hang if it meant the first record
  gate.open();
  device.drain();
}

TEST_F(CpuDevice, CopiesAndRunsOperations) {
  cpu::Device& device = make();
  std::byte* const a = device.allocate(Space::device, 100);
  std::byte* const b = device.allocate(Space::pinned, 100);
  std::fill_n(a, 100, std::byte{7});
  device.copy(StreamKind::copy_out, b, a, 100);
  device.launch(StreamKind::compute, ops::OpCall{});
  device.drain();
  EXPECT_EQ(b[99], std::byte{7});
  EXPECT_EQ(num_ops_, 1);
}

TEST_F(CpuDevice, ArenasAreZeroedAlignedAndCounted) {
  cpu::Device& device = make();
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{4097}, int64_t{5} << 20}) {
    const int64_t before = device.allocated(Space::device);
    const std::byte* const arena = device.allocate(Space::device, bytes);
    ASSERT_NE(arena, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena) % 4096, 0u);
    EXPECT_TRUE(std::all_of(arena, arena + bytes, [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(device.allocated(Space::device) - before, bytes);
  }
  EXPECT_EQ(device.allocated(Space::pinned), 0);
}

TEST_F(CpuDevice, KeepsTheFirstErrorAndDropsTheRest) {
  cpu::Device& device = make();
  device.create_events(1);
  Journal journal;
  ops::OpCall failing;
  failing.kind = ops::OpKind::zero;
  device.call(StreamKind::compute, journal.note(1));
  device.launch(StreamKind::compute, failing);
  device.call(StreamKind::compute, journal.note(2));
  device.record(StreamKind::compute, 0);
  device.wait(StreamKind::copy_in, 0);
  device.call(StreamKind::copy_in, journal.note(3));
  EXPECT_THROW(device.synchronize(0), BugError);
  EXPECT_THROW(device.drain(), BugError);
  EXPECT_EQ(journal.numbers, (std::vector<int64_t>{1}));
  // The communicator was aborted with the reason.
  try {
    communicator_->run({});
    FAIL();
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("the operation failed"), std::string::npos);
  }
}

TEST_F(CpuDevice, ThrowsWhenTheHostCallThatHasBegunIsOver) {
  cpu::Device& device = make();
  device.create_events(1);
  struct Call {
    std::atomic<bool> begun{false}, over{false};
  } call;
  const auto slow = [](void* context, int64_t) {
    auto& its = *static_cast<Call*>(context);
    its.begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    its.over = true;
  };
  device.call(StreamKind::copy_in, {slow, &call, 0});
  while (!call.begun) std::this_thread::yield();
  ops::OpCall failing;
  failing.kind = ops::OpKind::zero;
  device.launch(StreamKind::compute, failing);
  device.record(StreamKind::compute, 0);
  EXPECT_THROW(device.synchronize(0), BugError);
  EXPECT_TRUE(call.over);
}

TEST_F(CpuDevice, ShowsWhereAStreamIs) {
  cpu::Device& device = make();
  Gate reached, gate;
  device.launch(StreamKind::compute, ops::OpCall{});
  device.call(StreamKind::compute, reached.open_call());
  device.call(StreamKind::compute, gate.wait_call());
  while (device.progress(StreamKind::compute).started < 3) std::this_thread::yield();
  const cpu::Progress progress = device.progress(StreamKind::compute);
  EXPECT_EQ(progress.launched, 3);
  EXPECT_EQ(progress.done, 2);
  EXPECT_EQ(progress.kind, cpu::ItemKind::host);
  EXPECT_EQ(device.progress(StreamKind::comm_dp).launched, 0);
  gate.open();
  device.drain();
}

struct Trace final : cpu::ExecutionObserver {
  void executed(StreamKind stream, int64_t, const cpu::StreamItem& item, Time start,
                Time end) override {
    const bool comm = std::holds_alternative<comm::QueuedCall>(item);
    if (comm) longest_comm = std::max(longest_comm, end - start);
    (stream == StreamKind::compute ? num_compute : num_other)++;
  }
  std::atomic<int> num_compute{0}, num_other{0};
  Time::duration longest_comm{};
};

TEST_F(CpuDevice, TellsAnObserverAndDelaysCollectives) {
  Trace trace;
  cpu::DeviceOptions options;
  options.observer = &trace;
  options.delay_collectives = std::chrono::milliseconds(20);
  cpu::Device& device = make(options);
  device.launch(StreamKind::compute, ops::OpCall{});
  device.launch(StreamKind::compute, ops::OpCall{});
  device.launch(StreamKind::comm_dp, comm::CommCall{});
  device.drain();
  EXPECT_EQ(trace.num_compute, 2);
  EXPECT_EQ(trace.num_other, 1);
  EXPECT_GE(trace.longest_comm, std::chrono::milliseconds(20));
}

TEST(CpuDevices, CollectivesRunBesideComputation) {
  cpu::InProcessWorld world(2);
  Gate computed;
  const auto rank = [&](int index) {
    const auto communicator = world.join(index);
    cpu::Device device([](StreamKind, const ops::OpCall&) {}, *communicator);
    float share = static_cast<float>(index + 1);
    std::array<float, 2> all{};
    const comm::CommPiece piece{&share, all.data(), 1};
    const comm::CommCall gather{.kind = comm::CommKind::all_gather, .pieces = {&piece, 1}};
    if (index == 0) {
      // In flight while rank 0 computes; rank 1 joins only after that computation.
      device.launch(StreamKind::comm_dp, gather);
      device.call(StreamKind::compute, computed.open_call());
    } else {
      device.call(StreamKind::comm_dp, computed.wait_call());
      device.launch(StreamKind::comm_dp, gather);
    }
    device.drain();
    EXPECT_EQ(all, (std::array<float, 2>{1, 2}));
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

TEST(CpuDevices, EndingWithWorkInFlightWakesItsCollective) {
  cpu::InProcessWorld world(2);
  const auto communicator = world.join(0);
  const auto peer = world.join(1);  // never calls
  const comm::CommPiece nothing;
  cpu::Device device([](StreamKind, const ops::OpCall&) {}, *communicator);
  device.launch(StreamKind::comm_dp, {.pieces = {&nothing, 1}});
}  // returns: the destructor aborts the call

TEST(NullDevice, RecordsWithoutTouchingMemory) {
  null::Device device;
  std::byte* const a = device.allocate(Space::device, int64_t{1} << 50);
  std::byte* const b = device.allocate(Space::device, 1);
  EXPECT_GE(b - a, int64_t{1} << 50);
  EXPECT_EQ(device.allocated(Space::device), (int64_t{1} << 50) + 1);
  device.create_events(1);
  device.copy(StreamKind::copy_in, a, b, 5);
  device.record(StreamKind::copy_in, 0);
  device.wait(StreamKind::compute, 0);
  device.launch(StreamKind::compute, ops::OpCall{});
  device.drain();
  ASSERT_EQ(device.launches().size(), 4u);
  EXPECT_EQ(std::get<null::Copy>(device.launches()[0].what).bytes, 5);
  EXPECT_EQ(device.launches()[2].stream, StreamKind::compute);
  EXPECT_THROW(device.record(StreamKind::compute, 1), BugError);
}

}  // namespace
}  // namespace trireme
