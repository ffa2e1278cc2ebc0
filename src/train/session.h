// One rank's plan, device and arenas, and the verbs a run is made of.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"
#include "exec/executor.h"
#include "ops/control.h"
#include "plan/plan.h"

namespace trireme::train {

/// Where a run's state comes from: random weights, a model folder or a checkpoint.
/// Called on a stream's thread, one call at a time.
class StateSource {
 public:
  virtual ~StateSource() = default;
  /// Whether there are masters alone: moments start at zero, and nobody asks for them.
  virtual bool only_weights() const { return false; }
  /// Fills a box of a tensor's plane, dense and row-major; what is kept as bf16 is rounded to
  /// nearest.
  virtual void read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
                    float* out) = 0;
  /// Fills the control block (ops/control.h); all zeros for a fresh run.
  virtual void read_control(std::span<double> control) = 0;
};

/// Receives this rank's boxes of every plane, f32 or bf16 as the plan keeps them
/// (plan::State::masters, moments). Called on a stream's thread, one call at a time.
class StateSink {
 public:
  virtual ~StateSink() = default;
  virtual void write(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
                     DType dtype, const std::byte* data) = 0;
};

/// Receives on data rank 0 what its stage and tensor rank hold of the model, in the order of the
/// groups: boxes of one tensor in element order. Of a tensor that several hold, one hands it out.
/// `data` is f32 or bf16, as trained.
class WeightSink {
 public:
  virtual ~WeightSink() = default;
  virtual void write(const model::Parameter& parameter, const mesh::Box& box, DType dtype,
                     const std::byte* data) = 0;
};

/// Fills the descriptor of a micro-batch; called on the copy_in stream's thread.
using FillBatch = std::function<void(int64_t step, int64_t micro_batch,
                                     const ops::BatchLayout& layout, int32_t* out)>;

/// The control block after a step.
using ControlValues = std::array<double, ops::kControlSize>;
inline double value(const ControlValues& control, ops::Control field) {
  return control[static_cast<size_t>(ops::index(field))];
}

struct EvalSums {
  double loss = 0;
  double tokens = 0;
};

struct SessionOptions {
  std::vector<double> schedule;  // learning rates, as many as the plan has entries
  FillBatch fill_train;          // by step and micro-batch
  FillBatch fill_evaluation;     // its micro-batches count as steps of one
  bool poison = false;
  exec::EntryObserver* observer = nullptr;  // of the executor
};

/// All methods belong to one host thread and throw what went wrong on the device or on the wire.
class Session final : private exec::PortHandler {
 public:
  /// Collective over the world. Everything borrowed outlives the session.
  Session(plan::Plan plan, device::Device& device, comm::Communicator& communicator,
          SessionOptions options);

  const plan::Plan& plan() const { return plan_; }

  /// Every operation that training and evaluation launch for micro-batches of these sizes; nothing
  /// is launched, operands are the arenas' memory. Before the first step.
  void for_each_call(std::span<const ops::Extent> extents,
                     const std::function<void(const ops::OpCall&)>& visit);
  /// Fills every plane. Meanwhile calls `meanwhile`, which launches nothing. Blocks.
  void load(StateSource& source, const std::function<void()>& meanwhile = {});
  /// Enqueues a step; `extents` has one entry a micro-batch. Returns before it is done.
  exec::Ticket step(int64_t step, std::span<const ops::Extent> extents);
  /// Blocks until that step is done; what it decided. At most two steps may run ahead.
  ControlValues wait(exec::Ticket ticket, int64_t step);
  /// When that step was done, which may be long before somebody waited for it.
  std::chrono::steady_clock::time_point end_of(int64_t step) const {
    return ends_[static_cast<size_t>(step) % kStepsKept];
  }
  /// Applies a pending update. Blocks. Called before save, export and evaluate.
  void flush();
  /// Sums over the world of micro-batches 0..n-1. Blocks.
  EvalSums evaluate(std::span<const ops::Extent> extents);
  /// Hands out this rank's boxes. Blocks.
  void save(StateSink& sink);
  /// Hands out this rank's boxes of the last step's gradient sums (Plane::gradient), undivided.
  /// Blocks.
  void read_gradients(StateSink& sink);
  /// Hands out this stage's and tensor rank's part of the model on data rank 0; other data ranks
  /// only take part. Blocks.
  void export_weights(WeightSink& sink);

 private:
  void handle(const plan::Port& port, std::byte* data, int64_t run, int32_t micro_batch) override;
  void fill_constant(const plan::Port& port, std::byte* data);
  std::vector<plan::HeldBox> boxes_of(const plan::Port& port) const;
  void load_tile(const plan::Port& port, float* data);
  void export_tile(const plan::Port& port, std::byte* data);

  static constexpr size_t kStepsKept = 4;

  plan::Plan plan_;
  SessionOptions options_;
  std::vector<float> rope_table_;

  // What the ports use while a program runs.
  StateSource* source_ = nullptr;
  StateSink* sink_ = nullptr;
  WeightSink* weights_ = nullptr;
  bool evaluating_ = false;  // written while no program runs
  std::array<ControlValues, kStepsKept> controls_{};
  std::array<std::chrono::steady_clock::time_point, kStepsKept> ends_{};
  EvalSums eval_sums_{};
  exec::Executor executor_;
};

}  // namespace trireme::train
