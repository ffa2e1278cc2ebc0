// Traces: names of the program on the streams' own times.
#include <gtest/gtest.h>

#include "base/json.h"
#include "exec/tracing_device.h"
#include "support/backends.h"
#include "support/rig.h"

namespace trireme::exec {
namespace {

using device::Space;
using device::StreamKind;

class Trace : public ::testing::Test {
 protected:
  Trace() {
    program_.name = "train[1]";
    zero_.kind = ops::OpKind::zero;
    zero_.num_args = 1;
    auto* memory = reinterpret_cast<float*>(device_.allocate(Space::device, 4 << 20));
    zero_.args[0] = matrix(memory, DType::f32, 1024, 1024);
  }

  void run_entry(StreamKind stream, std::string_view what, int unit, int num_ops) {
    plan::Entry entry;
    entry.stream = stream;
    entry.what = what;
    entry.unit = unit;
    entry.micro_batch = 3;
    device_.begin(program_, entry, 7);
    for (int i = 0; i < num_ops; ++i) device_.launch(stream, zero_);
    device_.end(entry);
  }

  testing::TestWorld world_{1};
  std::unique_ptr<device::Backend> backend_ = world_.open(0);
  model::ModelGraph model_ = testing::tiny_model();
  TracingDevice device_{backend_->device(), model_};
  plan::Program program_;
  ops::OpCall zero_;
};

TEST_F(Trace, NamesWorkAndNestsOperationsInEntries) {
  run_entry(StreamKind::compute, "forward", 0, 1);  // not traced
  device_.start();
  run_entry(StreamKind::compute, "forward", 1, 2);
  run_entry(StreamKind::copy_out, "save", -1, 0);
  const std::vector<TraceSpan> spans = device_.finish();
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[0].name, "forward block.0");
  EXPECT_EQ(spans[0].program, "train[1]");
  EXPECT_EQ(spans[0].run, 7);
  EXPECT_EQ(spans[0].micro_batch, 3);
  for (size_t i : {1u, 2u}) {
    EXPECT_EQ(spans[i].name, "zero");
    EXPECT_TRUE(spans[i].inner);
    EXPECT_EQ(spans[i].amount, 1024);
    EXPECT_EQ(spans[i].cols, 1024);
    EXPECT_EQ(spans[i].bytes, 4.0 * (1 << 20));
    EXPECT_GE(spans[i].start, spans[0].start);
    EXPECT_LE(spans[i].end, spans[0].end);
    EXPECT_GT(spans[i].end, spans[i].start);
  }
  EXPECT_GE(spans[2].start, spans[1].end);
  EXPECT_EQ(spans[3].name, "save");
  EXPECT_EQ(spans[3].stream, StreamKind::copy_out);
  EXPECT_FALSE(spans[3].inner);
}

/// A phase of the compute stream hands work to another stream and waits for it.
TEST_F(Trace, WorkOfOtherStreamsInAnEntryHasTimesOfItsOwn) {
  device_.create_events(2);
  device_.start();
  plan::Entry entry;
  entry.stream = StreamKind::compute;
  entry.what = "forward";
  device_.begin(program_, entry, 0);
  device_.launch(StreamKind::compute, zero_);
  device_.record(StreamKind::compute, 0);
  device_.wait(StreamKind::comm_tp, 0);
  for (int i = 0; i < 8; ++i) device_.launch(StreamKind::comm_tp, zero_);
  device_.record(StreamKind::comm_tp, 1);
  device_.wait(StreamKind::compute, 1);
  device_.launch(StreamKind::compute, zero_);
  device_.end(entry);
  const std::vector<TraceSpan> spans = device_.finish();
  ASSERT_EQ(spans.size(), 11u);
  for (const TraceSpan& span : spans) EXPECT_GT(span.end, span.start);
  for (size_t i = 2; i < 10; ++i) EXPECT_EQ(spans[i].stream, StreamKind::comm_tp);
  EXPECT_EQ(spans[10].stream, StreamKind::compute);
  EXPECT_GE(spans[2].start, spans[1].end);
  EXPECT_GE(spans[10].start, spans[9].end);
  EXPECT_EQ(spans[0].end, spans[10].end);
}

TEST_F(Trace, StartsAnewAndWritesWhatBrowsersRead) {
  for (int round = 0; round < 2; ++round) {
    device_.start();
    run_entry(StreamKind::compute, "optimizer", 0, 1);
    const std::vector<TraceSpan> spans = device_.finish();
    ASSERT_EQ(spans.size(), 2u);
    const Json file = Json::parse(chrome_trace(spans, 5));
    const Json& events = file.at("traceEvents");
    ASSERT_EQ(events.size(), 4u);  // process, track, entry, operation
    EXPECT_EQ(events[1].at("args").at("name"), "compute");
    EXPECT_EQ(events[2].at("name"), "optimizer embed");
    EXPECT_EQ(events[2].at("ts"), 0.0);
    EXPECT_EQ(events[3].at("pid"), 5);
    EXPECT_EQ(events[3].at("args").at("run"), 7);
  }
}

}  // namespace
}  // namespace trireme::exec
