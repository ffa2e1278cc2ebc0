#include <fmt/format.h>

#include <array>

#include "plan/timeline_print.h"

namespace trireme::plan {

namespace {

// In pixels.
constexpr double kLeft = 70;   // where time begins
constexpr double kRight = 90;  // for the bubbles
constexpr double kTop = 52;
constexpr double kRow = 36;
constexpr double kBox = 24;
constexpr double kForward = 26;  // width of a forward of mean length
constexpr double kNarrow = 9;    // a box below this has no room for its number

struct Color {
  int red = 0;
  int green = 0;
  int blue = 0;
};

Color color_of(Work work) {
  static constexpr std::array<Color, 4> kColors = {
      {{128, 176, 224}, {150, 200, 130}, {150, 200, 130}, {246, 190, 120}}};
  return kColors[static_cast<size_t>(work)];
}

/// Darker for later chunks.
std::string shade(const Slot& slot, int chunks) {
  const double light = 1 - 0.45 * slot.chunk / chunks;
  const Color color = color_of(slot.work);
  const auto part = [&](int value) { return static_cast<int>(value * light); };
  return fmt::format("rgb({},{},{})", part(color.red), part(color.green), part(color.blue));
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     words);
}

std::string legend(const TimelineView& view) {
  const ScheduleRequest& request = view.request;
  std::string words = "blue forward, green ";
  words += request.kind == PipelineSchedule::zero_bubble ? "input gradient, orange weight gradient"
                                                         : "backward";
  if (request.chunks > 1) words += ", darker later chunks";
  return text_at(kLeft, 18, "start", name_of(request)) +
         text_at(kLeft, 36, "start",
                 fmt::format("{}; a line under a row: until its first backward, and from its last "
                             "forward on; bubble by the formula {:.1f} %",
                             words, 100 * view.formula));
}

std::string row_of(const TimelineView& view, size_t stage, double scale) {
  const double top = kTop + kRow * static_cast<double>(stage);
  const double middle = top + kBox / 2 + 4;
  const double right = kLeft + view.timeline.makespan * scale;
  std::string svg = text_at(kLeft - 8, middle, "end", fmt::format("stage {}", stage));
  svg += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"#f2f2f2\"/>\n", kLeft,
      top, right - kLeft, kBox);
  double first_backward = 0;
  double last_forward = 0;
  for (const TimedSlot& timed : view.timeline.stages[stage]) {
    const double x = kLeft + timed.start * scale;
    const double width = (timed.end - timed.start) * scale;
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" "
        "fill=\"{}\" stroke=\"white\" stroke-width=\"0.5\"/>\n",
        x, top, width, kBox, shade(timed.slot, view.request.chunks));
    if (width >= kNarrow) {
      svg += text_at(x + width / 2, middle, "middle", std::to_string(timed.slot.micro_batch));
    }
    if (timed.slot.work == Work::forward) {
      last_forward = timed.end;
    } else if (first_backward == 0) {
      first_backward = timed.start;
    }
  }
  for (const auto& [from, to] :
       {std::pair{0.0, first_backward}, std::pair{last_forward, view.timeline.makespan}}) {
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
        "stroke=\"gray\" stroke-width=\"2\"/>\n",
        kLeft + from * scale, top + kBox + 3, kLeft + to * scale, top + kBox + 3);
  }
  svg += text_at(right + 8, middle, "start",
                 fmt::format("{:.1f} %", 100 * view.timeline.bubble(static_cast<int>(stage))));
  return svg;
}

}  // namespace

std::string timeline_svg(const TimelineView& view) {
  const double scale = kForward / view.timeline.mean_forward();
  const double width = kLeft + view.timeline.makespan * scale + kRight;
  const double height = kTop + kRow * static_cast<double>(view.timeline.stages.size()) + 8;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n",
      width, height);
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" + legend(view);
  for (size_t stage = 0; stage < view.timeline.stages.size(); ++stage) {
    svg += row_of(view, stage, scale);
  }
  return svg + "</svg>\n";
}

}  // namespace trireme::plan
