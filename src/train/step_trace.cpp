#include "train/step_trace.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "config/value.h"

namespace trireme::train {

StepTrace::StepTrace(const config::RunConfig& config, int64_t total_steps, device::Device& device,
                     const model::ModelGraph& model, int rank)
    : steps_{config.profile_steps.first, std::min(config.profile_steps.last, total_steps)},
      folder_(config.output_dir),
      rank_(rank),
      device_(device) {
  if (config.profile_steps.empty()) return;
  if (steps_.first > total_steps) {
    throw ConfigError("profile_steps", config::step_range_words(config.profile_steps),
                      fmt::format("this run has {} steps", total_steps));
  }
  tracing_ = std::make_unique<exec::TracingDevice>(device, model);
}

device::Device& StepTrace::device() {
  if (tracing_) return *tracing_;
  return device_;
}

void StepTrace::before_step(int64_t number) {
  // A resumed run may begin within the range.
  if (on_ || !tracing_ || number < steps_.first || number > steps_.last) return;
  tracing_->start();
  on_ = true;
}

std::optional<std::string> StepTrace::after_step(int64_t number) {
  if (!on_ || number != steps_.last) return std::nullopt;
  on_ = false;
  const std::filesystem::path file = folder_ / file_name(rank_);
  replace_file(file, exec::chrome_trace(tracing_->finish(), rank_));
  return file.string();
}

std::string StepTrace::file_name(int rank) { return fmt::format("trace_rank{}.json", rank); }

}  // namespace trireme::train
