// How the chain of units is cut into the virtual stages of a pipeline. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::plan {

/// Units [begin, end) of the chain embedding, block 0, ..., head.
struct UnitRange {
  int begin = 0;
  int end = 0;
  bool operator==(const UnitRange&) const = default;
  int size() const { return end - begin; }
};

/// The cut into `virtual_stages` consecutive ranges, none empty, whose largest cost is smallest,
/// and among those the one with the smallest sum of squares. `costs`: of each unit, >= 0.
/// ConfigError naming pipeline_parallel_size when there are fewer units than stages.
std::vector<UnitRange> balanced_stages(const std::vector<double>& costs, int64_t virtual_stages);

/// The cut set by hand: `blocks[i]` blocks on virtual stage i; the first has the embedding too, the
/// last the head. ConfigError naming pipeline_layers when they are not as many as virtual stages,
/// do not add up to the model's blocks, or leave a stage in between without any.
std::vector<UnitRange> stages_by_hand(const std::vector<int64_t>& blocks, int64_t num_blocks,
                                      int64_t virtual_stages);

}  // namespace trireme::plan
