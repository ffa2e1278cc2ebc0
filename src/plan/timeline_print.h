// Pipeline timelines for people: as text and as a picture.
#pragma once

#include <string>
#include <vector>

#include "model/graph.h"
#include "plan/pipeline.h"
#include "plan/timeline.h"

namespace trireme::plan {

/// What is drawn of a schedule.
struct TimelineView {
  ScheduleRequest request;
  Timeline timeline;
  std::vector<std::string> units;  // of each stage: "embed - block.6", chunks by ", "
  double formula = 0;              // share of the bubble by the formula, 0 to 1
};

/// The schedule of a model, timed by the operations of its units.
TimelineView timeline_of(const Pipeline& pipeline, const model::ModelGraph& model,
                         int micro_batches);

/// A line a stage: F, B and W (weight gradient) with the number of the micro-batch and, where there
/// are several, the chunk as a letter; '.' where the stage stands still. Cut into pieces of at most
/// `columns` columns of time. Then a table: the forwards before the first backward, the backwards
/// after the last forward, and the bubble of each stage beside the formula's.
std::string timeline_text(const TimelineView& view, int columns = 120);

/// The same as an SVG document: a row a stage, time to the right, darker for later chunks.
std::string timeline_svg(const TimelineView& view);

}  // namespace trireme::plan
