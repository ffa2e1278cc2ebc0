#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/timeline_print.h"

namespace trireme::plan {

namespace {

constexpr char kIdle = '.';

/// "F12", "W3b": work, micro-batch, chunk.
std::string label(const Slot& slot, int chunks) {
  static constexpr std::string_view kLetters = "FBBW";
  std::string text =
      fmt::format("{}{}", kLetters[static_cast<size_t>(slot.work)], slot.micro_batch);
  if (chunks > 1) text += static_cast<char>('a' + slot.chunk % 26);
  return text;
}

char filling(Work work) {
  if (work == Work::forward) return '-';
  return work == Work::weight_gradient ? '~' : '=';
}

/// Columns of one unit of time: a forward of mean length shows its label.
double scale_of(const TimelineView& view) {
  const Slot longest{Work::forward, 0, view.request.micro_batches - 1};
  const auto width = static_cast<double>(label(longest, view.request.chunks).size() + 1);
  return width / view.timeline.mean_forward();
}

std::string line_of(const std::vector<TimedSlot>& stage, int chunks, double scale, size_t length) {
  std::string line(length, kIdle);
  for (const TimedSlot& timed : stage) {
    const auto begin = static_cast<size_t>(std::lround(timed.start * scale));
    const auto end = static_cast<size_t>(std::lround(timed.end * scale));
    const std::string text = label(timed.slot, chunks);
    for (size_t at = begin; at < end; ++at) {
      line[at] = at - begin < text.size() ? text[at - begin] : filling(timed.slot.work);
    }
  }
  return line;
}

std::string table(const TimelineView& view) {
  std::string text =
      fmt::format("  {:<6}{:>8}{:>7}{:>9}  {}\n", "stage", "warm-up", "drain", "bubble", "units");
  for (size_t p = 0; p < view.timeline.stages.size(); ++p) {
    const std::vector<TimedSlot>& stage = view.timeline.stages[p];
    const auto forward = [](const TimedSlot& timed) { return timed.slot.work == Work::forward; };
    const auto warm_up = std::find_if_not(stage.begin(), stage.end(), forward) - stage.begin();
    const auto last = std::find_if(stage.rbegin(), stage.rend(), forward).base();
    const auto drain = std::count_if(last, stage.end(), [](const TimedSlot& timed) {
      return timed.slot.work != Work::weight_gradient;
    });
    text += fmt::format("  {:<6}{:>8}{:>7}{:>7.1f} %  {}\n", p, warm_up, drain,
                        100 * view.timeline.bubble(static_cast<int>(p)), view.units[p]);
  }
  text += fmt::format("  by the formula, were the stages alike:{:>6.1f} %\n", 100 * view.formula);
  return text;
}

std::string name_of(const model::ModelGraph& model, const UnitRange& range) {
  const auto unit = [&](int u) -> const std::string& {
    return model.units[static_cast<size_t>(u)].name;
  };
  if (range.size() == 1) return unit(range.begin);
  return fmt::format("{} - {}", unit(range.begin), unit(range.end - 1));
}

}  // namespace

TimelineView timeline_of(const Pipeline& pipeline, const model::ModelGraph& model,
                         int micro_batches) {
  std::vector<WorkCosts> costs;  // of each virtual stage
  WorkCosts mean{0, 0, 0};       // of a stage, all its chunks
  TimelineView view;
  view.request = {pipeline.kind, pipeline.stages, pipeline.chunks(), micro_batches};
  view.units.resize(static_cast<size_t>(pipeline.stages));
  for (size_t v = 0; v < pipeline.ranges.size(); ++v) {
    const UnitRange& range = pipeline.ranges[v];
    WorkCosts& sum = costs.emplace_back(WorkCosts{0, 0, 0});
    for (int u = range.begin; u < range.end; ++u) sum += pipeline.costs[static_cast<size_t>(u)];
    mean += sum;
    std::string& names = view.units[v % view.units.size()];
    names += (names.empty() ? "" : ", ") + name_of(model, range);
  }
  for (double* part : {&mean.forward, &mean.input_gradient, &mean.weight_gradient}) {
    *part /= pipeline.stages;
  }
  view.timeline = simulate(view.request, costs);
  view.formula = bubble_share(view.request, mean);
  return view;
}

std::string timeline_text(const TimelineView& view, int columns) {
  const ScheduleRequest& request = view.request;
  std::string text = fmt::format("Pipeline {}; F forward, B {}{}\n", name_of(request),
                                 request.kind == PipelineSchedule::zero_bubble
                                     ? "input gradient, W weight gradient"
                                     : "backward",
                                 request.chunks > 1 ? ", a b c chunks" : "");
  const double scale = scale_of(view);
  const auto length = static_cast<size_t>(std::lround(view.timeline.makespan * scale));
  const auto piece = static_cast<size_t>(std::max(1, columns));
  std::vector<std::string> lines;
  for (const auto& stage : view.timeline.stages) {
    lines.push_back(line_of(stage, request.chunks, scale, length));
  }
  for (size_t at = 0; at < length; at += piece) {
    for (size_t p = 0; p < lines.size(); ++p) {
      text += fmt::format("  {:>3} {}\n", p, lines[p].substr(at, piece));
    }
    text += "\n";
  }
  return text + table(view);
}

}  // namespace trireme::plan
