#include <gtest/gtest.h>

#include "plan/timeline_print.h"
#include "support/null_plan.h"

namespace trireme::plan {
namespace {

TimelineView view_of(const ScheduleRequest& request) {
  const WorkCosts costs{1, 1, 1};
  const std::vector<WorkCosts> all(static_cast<size_t>(request.virtual_stages()), costs);
  return {request, simulate(request, all),
          std::vector<std::string>(static_cast<size_t>(request.stages), "units"),
          bubble_share(request, costs)};
}

int count(const std::string& text, std::string_view part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(TimelineText, ShowsEverySlotAndEveryGap) {
  const std::string text = timeline_text(view_of({PipelineSchedule::zero_bubble, 3, 1, 4}));
  EXPECT_EQ(text,
            "Pipeline zero_bubble: 3 stages, 4 micro-batches; F forward, B input "
            "gradient, W weight gradient\n"
            "    0 F0-F1-F2-......B0=W0~F3-B1=W1~B2=W2~B3=W3~\n"
            "    1 ...F0-F1-...B0=F2-B1=W0~F3-B2=W1~B3=W2~W3~\n"
            "    2 ......F0-B0=F1-B1=F2-B2=W0~F3-B3=W1~W2~W3~\n"
            "\n"
            "  stage  warm-up  drain   bubble  units\n"
            "  0            3      3   14.3 %  units\n"
            "  1            2      2   14.3 %  units\n"
            "  2            1      1   14.3 %  units\n"
            "  by the formula, were the stages alike:  14.3 %\n");
}

TEST(TimelineText, LongTimesAreCutIntoPieces) {
  const TimelineView view = view_of({PipelineSchedule::one_f_one_b, 2, 1, 12});
  const std::string whole = timeline_text(view, 1000);
  const std::string pieces = timeline_text(view, 40);
  EXPECT_EQ(count(whole, "    0 F0--"), 1);
  EXPECT_GT(count(pieces, "\n    0 "), 2);
  std::string joined;
  for (size_t at = pieces.find("\n    1 "); at != std::string::npos;
       at = pieces.find("\n    1 ", at + 1)) {
    joined += pieces.substr(at + 7, pieces.find('\n', at + 1) - at - 7);
  }
  EXPECT_NE(whole.find("    1 " + joined + "\n"), std::string::npos) << joined;
}

TEST(TimelineText, NamesChunks) {
  const std::string text = timeline_text(view_of({PipelineSchedule::interleaved, 2, 2, 2}));
  EXPECT_NE(text.find("    0 F0a-F1a-F0b-F1b-"), std::string::npos) << text;
  EXPECT_NE(text.find(", a b c chunks"), std::string::npos);
}

TEST(TimelineOfAModel, HasTheUnitsAndTheirCosts) {
  const model::ModelGraph model = model::build_model(testing::qwen2_7b());
  Pipeline pipeline;
  pipeline.stages = 2;
  pipeline.ranges = {{0, 15}, {15, 30}};
  pipeline.costs = work_costs(model, {4096, 1, 4096}, {});
  const TimelineView view = timeline_of(pipeline, model, 8);
  EXPECT_EQ(view.units, (std::vector<std::string>{"embed - block.13", "block.14 - head"}));
  EXPECT_GT(view.timeline.bubble(0), view.timeline.bubble(1));  // which waits for the head
  EXPECT_NEAR(view.formula, 1.0 / 9, 1e-12);
  EXPECT_GT(view.timeline.bubble(0), view.formula);
  EXPECT_NE(timeline_text(view).find("bubble  units"), std::string::npos);
}

TEST(TimelineSvg, HasABoxASlotAndABubbleAStage) {
  const ScheduleRequest request{PipelineSchedule::interleaved, 2, 2, 4};
  const std::string svg = timeline_svg(view_of(request));
  const int slots = 2 * 2 * 2 * 4;
  EXPECT_EQ(count(svg, "stroke=\"white\""), slots);
  EXPECT_EQ(count(svg, "fill=\"#f2f2f2\""), request.stages);
  EXPECT_EQ(count(svg, ">stage "), request.stages);
  EXPECT_EQ(count(svg, "<line"), 2 * request.stages);
  EXPECT_EQ(count(svg, "text-anchor=\"start\">11.1 %"), request.stages);
  EXPECT_EQ(count(svg, "<"), count(svg, ">"));
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace trireme::plan
