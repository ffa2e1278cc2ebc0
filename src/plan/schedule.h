// Pipeline schedules: in which order a rank of a pipeline works on its micro-batches. Pure.
//
// The chain of units is cut into stages x chunks virtual stages; chunk c of stage p is virtual
// stage c * stages + p. All stages of a schedule run the forwards in one common order, and so the
// backwards; stages differ in how they mix the two. So what a stage sends in a direction arrives in
// the order in which its neighbour wants it, also from the last stage round to the first.
// Micro-batch order within a chunk is ascending for every kind of work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace trireme::plan {

/// one_f_one_b  each stage holds at most stages - p micro-batches.
/// interleaved  1F1B over several chunks a rank: a shorter bubble for more traffic.
/// zero_bubble  ZB-H1: backward in two halves; stage p keeps p weight gradients back, so that every
///              stage holds what the first stage of 1F1B holds, and the bubble is a third.
using config::PipelineSchedule;

/// backward = both halves in one. zero_bubble has only the halves, the others only the whole.
enum class Work : uint8_t { forward, backward, input_gradient, weight_gradient };

struct Slot {
  Work work = Work::forward;
  int chunk = 0;
  int micro_batch = 0;
  bool operator==(const Slot&) const = default;
};

/// stages, chunks, micro_batches >= 1; chunks > 1 only for interleaved with stages > 1.
struct ScheduleRequest {
  PipelineSchedule kind = PipelineSchedule::one_f_one_b;
  int stages = 1;
  int chunks = 1;
  int micro_batches = 1;

  int virtual_stages() const { return stages * chunks; }
};

/// "interleaved: 4 stages x 2 chunks, 8 micro-batches".
std::string name_of(const ScheduleRequest& request);

/// The work of one stage, in program order.
std::vector<Slot> schedule_of(const ScheduleRequest& request, int stage);

/// The largest number of micro-batches of a chunk between the start of forward and the end of the
/// last part of backward. They are consecutive, so micro-batch m may use buffer m mod this.
int in_flight(const std::vector<Slot>& slots, int chunk);

}  // namespace trireme::plan
