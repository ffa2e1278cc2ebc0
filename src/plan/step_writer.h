// Writes the walk over the units of a micro-batch: training steps and evaluation alike.
#pragma once

#include <array>
#include <map>
#include <string_view>
#include <vector>

#include "plan/program_writer.h"
#include "plan/step_buffers.h"
#include "plan/step_events.h"

namespace trireme::plan {

class StepWriter : public ProgramWriter {
 public:
  /// `train` false: one micro-batch of evaluation.
  StepWriter(const LoweringContext& context, std::string name, bool train, int micro_batches);

  void write();

 private:
  /// Where a group's weights are while the walk goes on.
  struct Residence {
    bool updated = false;   // the pending update was applied (or there is none)
    bool gathered = false;  // its slot holds it
  };

  void index_events();
  void check_gradients() const;
  const Phase& phase_of(const Event& event) const;
  int32_t phase_index(const Event& event);
  int32_t binding_of(const Event& event);
  std::vector<int> groups_of(int unit, const Phase& phase, Bound bound) const;

  void prefetch(size_t event);
  bool bring(size_t event, size_t running);
  bool slots_free(const std::vector<int>& groups, size_t event, size_t running) const;
  bool next_use(int group, size_t after, size_t* found) const;
  bool keep(int group, size_t event) const;

  void emit_batch(int micro_batch);
  void emit_passing(const Action& action);
  void emit_phase(size_t index);
  void access_states(const Event& event, const Phase& phase, const Binding& binding,
                     std::vector<BufferAccess>& accesses);
  void access_weights(size_t index, const Phase& phase, std::vector<BufferAccess>& accesses);
  void access_gradients(const Event& event, const Phase& phase, Entry& entry,
                        std::vector<BufferAccess>& accesses);
  std::string_view what_of(const Event& event, const Phase& phase) const;
  /// The pass of the unit that touches `bound` last.
  Pass last_pass(int unit, Bound bound) const;

  void reduce(const Event& event);
  std::vector<std::vector<TransferPiece>> into_buckets(
      const std::vector<TransferPiece>& pieces) const;

  void decide();
  void sum_partial_gradients();
  void count_squares();

  const SlotPlace& place_of(int unit, int slot) const;
  bool first_writer(int group, int unit) const;
  bool last_writer(int group, int unit) const;

  bool train_;
  int micro_batches_;
  StepEvents walk_;
  StepBuffers buffers_;
  std::vector<std::vector<int>> event_groups_;     // weights each event reads
  std::vector<std::vector<size_t>> group_events_;  // and the inverse, ascending
  std::vector<Residence> residence_;               // per group
  std::vector<int> gradient_first_;  // per group: unit whose backward writes it first, or -1
  std::vector<int> gradient_last_;
  size_t next_prefetch_ = 0;
  int next_batch_ = 0;
  std::vector<int32_t> event_entry_;  // entry of each event emitted so far

  std::vector<int32_t> frames_;  // per phase of the program
  std::vector<int32_t> phase_of_variant_[kNumPasses];
  std::map<std::array<int32_t, 7>, int32_t> bindings_;  // by unit and buffers
};

}  // namespace trireme::plan
