// Writes the walk over the units of a micro-batch: training steps and evaluation alike.
#pragma once

#include <vector>

#include "plan/program_writer.h"

namespace trireme::plan {

class StepWriter : public ProgramWriter {
 public:
  /// `train` false: one micro-batch of evaluation.
  StepWriter(const LoweringContext& context, std::string name, bool train, int micro_batches);

  void write();

 private:
  /// One phase to run: forward of a unit, or its backward (the head: all of it).
  struct Event {
    int unit = 0;
    int micro_batch = 0;
    bool backward = false;
  };
  /// Where a group's weights are while the walk goes on.
  struct Residence {
    bool updated = false;   // the pending update was applied (or there is none)
    bool gathered = false;  // its slot holds it
  };

  void make_buffers();
  void list_events();
  void check_gradients() const;
  const Phase& phase_of(const Event& event) const;
  int32_t phase_index(const Event& event);
  std::vector<int> groups_of(int unit, const Phase& phase, Bound bound) const;

  void prefetch(size_t event);
  bool bring(size_t event, size_t running);
  bool slots_free(const std::vector<int>& groups, size_t event, size_t running) const;
  bool next_use(int group, size_t after, size_t* found) const;
  bool keep(int group, size_t event) const;

  void emit_batch(int micro_batch);
  void emit_phase(size_t index);
  void access_states(const Event& event, const Phase& phase, std::vector<BufferAccess>& accesses);
  void access_weights(size_t index, const Phase& phase, std::vector<BufferAccess>& accesses);
  void access_gradients(const Event& event, const Phase& phase, Entry& entry,
                        std::vector<BufferAccess>& accesses);
  void reduce(const Event& event);
  std::vector<std::vector<TransferPiece>> into_buckets(
      const std::vector<TransferPiece>& pieces) const;
  void decide();

  const SlotPlace& place_of(int unit, int slot) const;
  bool first_writer(int group, int unit) const;
  bool last_writer(int group, int unit) const;

  bool train_;
  int micro_batches_;
  std::vector<Event> events_;
  std::vector<std::vector<int>> event_groups_;     // weights each event reads
  std::vector<std::vector<size_t>> group_events_;  // and the inverse, ascending
  std::vector<Residence> residence_;               // per group
  std::vector<int> gradient_first_;  // per group: unit whose backward writes it first, or -1
  std::vector<int> gradient_last_;
  size_t next_prefetch_ = 0;
  std::vector<int32_t> event_entry_;  // entry of each event emitted so far

  std::vector<int32_t> frames_;  // per phase of the program
  std::vector<int32_t> phase_of_variant_[3];
  std::vector<int32_t> batch_;  // two descriptors take turns
  std::vector<int32_t> batch_host_;
};

}  // namespace trireme::plan
