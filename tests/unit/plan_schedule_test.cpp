#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "plan/schedule.h"
#include "plan/timeline.h"

namespace trireme::plan {
namespace {

/// Calls `use` with every request of up to 8 stages, 4 chunks and 20 micro-batches.
template <typename Use>
void for_each_request(Use use) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int batches = 1; batches <= 20; ++batches) {
      use(ScheduleRequest{PipelineSchedule::one_f_one_b, stages, 1, batches});
      use(ScheduleRequest{PipelineSchedule::zero_bubble, stages, 1, batches});
      use(ScheduleRequest{PipelineSchedule::interleaved, stages, 1, batches});
      for (int chunks = 2; chunks <= 4 && stages > 1; ++chunks) {
        use(ScheduleRequest{PipelineSchedule::interleaved, stages, chunks, batches});
      }
    }
  }
}

std::string letters(const std::vector<Slot>& slots) {
  std::string text;
  for (const Slot& slot : slots) {
    text += fmt::format("{}{}", "FBBW"[static_cast<size_t>(slot.work)], slot.micro_batch);
  }
  return text;
}

std::vector<WorkCosts> alike(const ScheduleRequest& request) {
  return std::vector<WorkCosts>(static_cast<size_t>(request.virtual_stages()));
}

TEST(Schedule, KnownOrders) {
  const ScheduleRequest plain{PipelineSchedule::one_f_one_b, 3, 1, 4};
  EXPECT_EQ(letters(schedule_of(plain, 0)), "F0F1F2B0F3B1B2B3");
  EXPECT_EQ(letters(schedule_of(plain, 2)), "F0B0F1B1F2B2F3B3");
  const ScheduleRequest zero{PipelineSchedule::zero_bubble, 3, 1, 4};
  EXPECT_EQ(letters(schedule_of(zero, 0)), "F0F1F2B0W0F3B1W1B2W2B3W3");
  EXPECT_EQ(letters(schedule_of(zero, 2)), "F0B0F1B1F2B2W0F3B3W1W2W3");
  const ScheduleRequest single{PipelineSchedule::one_f_one_b, 1, 1, 2};
  EXPECT_EQ(letters(schedule_of(single, 0)), "F0B0F1B1");
  const ScheduleRequest chunks{PipelineSchedule::interleaved, 2, 2, 2};
  const std::vector<Slot> last = {{Work::forward, 0, 0},  {Work::forward, 0, 1},
                                  {Work::forward, 1, 0},  {Work::backward, 1, 0},
                                  {Work::forward, 1, 1},  {Work::backward, 1, 1},
                                  {Work::backward, 0, 0}, {Work::backward, 0, 1}};
  EXPECT_EQ(schedule_of(chunks, 1), last);
}

TEST(Schedule, EveryMicroBatchOncePerChunkAndWorkInAscendingOrder) {
  for_each_request([](const ScheduleRequest& request) {
    SCOPED_TRACE(name_of(request));
    const bool split = request.kind == PipelineSchedule::zero_bubble;
    for (int stage = 0; stage < request.stages; ++stage) {
      std::map<std::pair<Work, int>, int> next;
      for (const Slot& slot : schedule_of(request, stage)) {
        ASSERT_EQ(slot.micro_batch, (next[{slot.work, slot.chunk}]++));
        ASSERT_EQ(split, slot.work == Work::input_gradient || slot.work == Work::weight_gradient ||
                             (split && slot.work == Work::forward));
      }
      ASSERT_EQ(next.size(), static_cast<size_t>(request.chunks) * (split ? 3 : 2));
      for (const auto& [work, count] : next) ASSERT_EQ(count, request.micro_batches);
    }
  });
}

/// (virtual stage that receives, micro-batch), in the order of `stage`'s work.
using Messages = std::vector<std::pair<int, int>>;
Messages sent(const ScheduleRequest& request, int stage, bool forward) {
  Messages messages;
  for (const Slot& slot : schedule_of(request, stage)) {
    if (slot.work == Work::weight_gradient || (slot.work == Work::forward) != forward) continue;
    const int to = slot.chunk * request.stages + stage + (forward ? 1 : -1);
    if (to >= 0 && to < request.virtual_stages()) messages.emplace_back(to, slot.micro_batch);
  }
  return messages;
}
Messages received(const ScheduleRequest& request, int stage, bool forward) {
  Messages messages;
  for (const Slot& slot : schedule_of(request, stage)) {
    if (slot.work == Work::weight_gradient || (slot.work == Work::forward) != forward) continue;
    const int here = slot.chunk * request.stages + stage;
    if (here == (forward ? 0 : request.virtual_stages() - 1)) continue;
    messages.emplace_back(here, slot.micro_batch);
  }
  return messages;
}

TEST(Schedule, EachDirectionIsOneQueue) {
  for_each_request([](const ScheduleRequest& request) {
    SCOPED_TRACE(name_of(request));
    for (int stage = 0; stage < request.stages && request.stages > 1; ++stage) {
      const int next = (stage + 1) % request.stages;
      ASSERT_EQ(sent(request, stage, true), received(request, next, true));
      ASSERT_EQ(sent(request, next, false), received(request, stage, false));
    }
  });
}

TEST(Schedule, HoldsFewMicroBatches) {
  for_each_request([](const ScheduleRequest& request) {
    SCOPED_TRACE(name_of(request));
    for (int stage = 0; stage < request.stages; ++stage) {
      const std::vector<Slot> slots = schedule_of(request, stage);
      int all = 0;
      for (int chunk = 0; chunk < request.chunks; ++chunk) {
        const int held = in_flight(slots, chunk);
        ASSERT_GE(held, 1);
        ASSERT_LE(held, request.micro_batches);
        all += held;
      }
      if (request.kind == PipelineSchedule::zero_bubble) {
        ASSERT_EQ(all, std::min(request.micro_batches, request.stages));
      } else if (request.chunks == 1) {
        ASSERT_EQ(all, std::min(request.micro_batches, request.stages - stage));
      } else {
        // Each chunk's own peak, so a little above that of all together.
        ASSERT_LE(all, request.stages * (request.chunks + 2));
      }
    }
  });
}

TEST(Schedule, HeldMicroBatchesAreConsecutive) {
  for_each_request([](const ScheduleRequest& request) {
    const bool split = request.kind == PipelineSchedule::zero_bubble;
    for (int stage = 0; stage < request.stages; ++stage) {
      const std::vector<Slot> slots = schedule_of(request, stage);
      std::set<std::tuple<int, int>> places;  // chunk, micro-batch mod in flight
      for (const Slot& slot : slots) {
        const std::tuple place{slot.chunk, slot.micro_batch % in_flight(slots, slot.chunk)};
        if (slot.work == Work::forward) {
          ASSERT_TRUE(places.insert(place).second);
        } else if (slot.work == (split ? Work::weight_gradient : Work::backward)) {
          ASSERT_EQ(places.erase(place), 1U);
        }
      }
    }
  });
}

TEST(Schedule, BubblesAreThoseOfTheFormulas) {
  for_each_request([](const ScheduleRequest& request) {
    SCOPED_TRACE(name_of(request));
    const Timeline timeline = simulate(request, alike(request));  // throws where stages wait
    const double chunks = request.chunks;
    const WorkCosts stage{chunks, chunks, chunks};
    const bool ragged = request.chunks > 1 && request.micro_batches % request.stages != 0;
    for (int p = 0; p < request.stages; ++p) {
      ASSERT_DOUBLE_EQ(timeline.busy(p), request.micro_batches * stage.total());
      const double idle = timeline.makespan - timeline.busy(p);
      if (ragged) {
        ScheduleRequest whole = request;  // never slower than with its last round filled up
        whole.micro_batches += request.stages - request.micro_batches % request.stages;
        ASSERT_LE(timeline.makespan, simulate(whole, alike(whole)).makespan);
        ASSERT_GE(idle, bubble_time(request, stage));
      } else {
        ASSERT_NEAR(idle, bubble_time(request, stage), 1e-9);
        ASSERT_NEAR(timeline.bubble(p), bubble_share(request, stage), 1e-12);
      }
    }
  });
}

TEST(Schedule, UnequalCostsMoveTheEnd) {
  const ScheduleRequest request{PipelineSchedule::one_f_one_b, 2, 1, 3};
  // F0 at 0-1 and 1-4 | F1 1-2, stage 1: F0 1-4 B0 4-6 F1 6-9 B1 9-11 F2 11-14 B2 14-16, stage 0:
  // B2.
  const Timeline timeline = simulate(request, {{1, 1, 1}, {3, 1, 1}});
  EXPECT_DOUBLE_EQ(timeline.makespan, 18);
  EXPECT_DOUBLE_EQ(timeline.busy(1), 15);
  EXPECT_DOUBLE_EQ(timeline.bubble(1), 1 - 15.0 / 18);
  EXPECT_DOUBLE_EQ(timeline.stages[1][1].start, 4);
}

TEST(Schedule, RefusesWhatItCannotDo) {
  EXPECT_THROW(schedule_of({PipelineSchedule::one_f_one_b, 2, 2, 4}, 0), BugError);
  EXPECT_THROW(schedule_of({PipelineSchedule::interleaved, 1, 2, 4}, 0), BugError);
  EXPECT_THROW(schedule_of({PipelineSchedule::one_f_one_b, 2, 1, 4}, 2), BugError);
  EXPECT_THROW(schedule_of({PipelineSchedule::one_f_one_b, 2, 1, 0}, 0), BugError);
}

}  // namespace
}  // namespace trireme::plan
