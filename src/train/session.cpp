#include "train/session.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/error.h"

namespace trireme::train {

using plan::Port;
using plan::PortKind;

Session::Session(plan::Plan plan, device::Device& device, comm::Communicator& communicator,
                 SessionOptions options)
    : plan_(std::move(plan)),
      options_(std::move(options)),
      rope_table_(model::rope_table(plan_.model.config, plan_.rope_positions)),
      executor_(plan_, device, communicator, *this, {options_.poison, options_.observer}) {}

void Session::for_each_call(std::span<const ops::Extent> extents,
                            const std::function<void(const ops::OpCall&)>& visit) {
  for (const ops::Extent& extent : extents) {
    for (const auto& [accumulation, program] : plan_.train) {
      executor_.for_each_call(program, extent, visit);
    }
    if (!plan_.evaluate.schedule.empty()) executor_.for_each_call(plan_.evaluate, extent, visit);
  }
}

void Session::load(StateSource& source, const std::function<void()>& meanwhile) {
  source_ = &source;
  const exec::Ticket ticket =
      executor_.run(source.only_weights() ? plan_.load_weights : plan_.load, {}, 0);
  std::exception_ptr failed;
  try {
    if (meanwhile) meanwhile();
  } catch (...) {
    failed = std::current_exception();  // once nobody reads from the source
  }
  executor_.wait(ticket);
  source_ = nullptr;
  if (failed) std::rethrow_exception(failed);
}

exec::Ticket Session::step(int64_t step, std::span<const ops::Extent> extents) {
  const auto program = plan_.train.find(static_cast<int>(extents.size()));
  check(program != plan_.train.end(), "no program for {} micro-batches", extents.size());
  return executor_.run(program->second, extents, step);
}

ControlValues Session::wait(exec::Ticket ticket, int64_t step) {
  executor_.wait(ticket);
  return controls_[static_cast<size_t>(step) % kStepsKept];
}

void Session::flush() { executor_.finish(plan_.flush); }

EvalSums Session::evaluate(std::span<const ops::Extent> extents) {
  evaluating_ = true;
  executor_.finish(plan_.evaluate_begin);
  exec::Ticket previous = -1;
  for (size_t i = 0; i < extents.size(); ++i) {
    // The descriptors of evaluation count as steps of one micro-batch.
    const exec::Ticket ticket =
        executor_.run(plan_.evaluate, extents.subspan(i, 1), static_cast<int64_t>(i));
    if (previous >= 0) executor_.wait(previous);
    previous = ticket;
  }
  executor_.finish(plan_.evaluate_end);
  evaluating_ = false;
  return eval_sums_;
}

void Session::save(StateSink& sink) {
  sink_ = &sink;
  executor_.finish(plan_.save);
  sink_ = nullptr;
}

void Session::read_gradients(StateSink& sink) {
  sink_ = &sink;
  executor_.finish(plan_.gradients);
  sink_ = nullptr;
}

void Session::export_weights(WeightSink& sink) {
  weights_ = &sink;
  executor_.finish(plan_.export_weights);
  weights_ = nullptr;
}

void Session::handle(const Port& port, std::byte* data, int64_t run, int32_t micro_batch) {
  switch (port.kind) {
    case PortKind::batch: {
      const FillBatch& fill = evaluating_ ? options_.fill_evaluation : options_.fill_train;
      fill(run, micro_batch, ops::BatchLayout{plan_.capacity}, reinterpret_cast<int32_t*>(data));
      return;
    }
    case PortKind::metrics:
      std::memcpy(controls_[static_cast<size_t>(run) % kStepsKept].data(), data,
                  sizeof(ControlValues));
      ends_[static_cast<size_t>(run) % kStepsKept] = std::chrono::steady_clock::now();
      return;
    case PortKind::eval_sums:
      std::memcpy(&eval_sums_, data, sizeof(eval_sums_));
      return;
    case PortKind::constants:
      fill_constant(port, data);
      return;
    case PortKind::load:
      load_tile(port, reinterpret_cast<float*>(data));
      return;
    case PortKind::save:
      for (const plan::HeldBox& held : boxes_of(port)) {
        if (!held.counted) continue;  // another rank's to keep
        sink_->write(plan_.model.parameters[static_cast<size_t>(held.parameter)], port.plane,
                     held.box, port.buffer.dtype,
                     data + (held.offset - port.begin) * size_of(port.buffer.dtype));
      }
      return;
    case PortKind::export_weights:
      export_tile(port, data);
      return;
  }
}

std::vector<plan::HeldBox> Session::boxes_of(const Port& port) const {
  return plan::held_boxes(plan_.groups.groups[static_cast<size_t>(port.group)], port.begin,
                          port.begin + port.buffer.count);
}

void Session::fill_constant(const Port& port, std::byte* data) {
  const auto count = static_cast<size_t>(port.buffer.count);
  switch (static_cast<plan::ConstantKind>(port.group)) {
    case plan::ConstantKind::schedule:
      std::copy_n(options_.schedule.begin() + port.begin, count, reinterpret_cast<double*>(data));
      return;
    case plan::ConstantKind::rope_table:
      std::copy_n(rope_table_.begin() + port.begin, count, reinterpret_cast<float*>(data));
      return;
    case plan::ConstantKind::control:
      source_->read_control({reinterpret_cast<double*>(data), count});
      return;
  }
}

void Session::load_tile(const Port& port, float* data) {
  // Gaps between tensors stay zero: nothing reads them, but collectives carry them.
  int64_t filled = 0;
  for (const plan::HeldBox& held : boxes_of(port)) {
    const int64_t begin = held.offset - port.begin;
    std::fill(data + filled, data + begin, 0.0f);
    source_->read(plan_.model.parameters[static_cast<size_t>(held.parameter)], port.plane, held.box,
                  data + begin);
    filled = begin + held.box.size();
  }
  std::fill(data + filled, data + port.buffer.count, 0.0f);
}

void Session::export_tile(const Port& port, std::byte* data) {
  for (const plan::HeldBox& held : boxes_of(port)) {
    if (!held.counted) continue;
    weights_->write(plan_.model.parameters[static_cast<size_t>(held.parameter)], held.box,
                    plan_.compute, data + (held.offset - port.begin) * size_of(plan_.compute));
  }
}

}  // namespace trireme::train
