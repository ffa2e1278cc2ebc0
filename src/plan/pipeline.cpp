#include "plan/pipeline.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "model/backward_needs.h"
#include "plan/recomputation.h"

namespace trireme::plan {

std::vector<int> Pipeline::own_units() const {
  std::vector<int> units;
  for (int c = 0; c < chunks(); ++c) {
    for (int u = this->units(c).begin; u < this->units(c).end; ++u) units.push_back(u);
  }
  return units;
}

std::vector<Slot> Pipeline::work(int micro_batches) const {
  return schedule_of({kind, stages, chunks(), micro_batches}, stage);
}

Pipeline make_pipeline(const config::RunConfig& config, const model::ModelGraph& model,
                       const Mesh& mesh, const ops::Extent& capacity) {
  Pipeline pipeline;
  pipeline.kind = config.pipeline_schedule;
  pipeline.stages = static_cast<int>(mesh.layout.pp);
  pipeline.stage = static_cast<int>(mesh.at.pp);
  const int64_t virtual_stages = mesh.layout.pp * mesh.chunks;
  if (mesh.chunks > 1 && virtual_stages > model.num_units()) {
    throw ConfigError("virtual_pipeline_size", std::to_string(mesh.chunks),
                      fmt::format("{} stages x {} chunks are more than the model's {} units "
                                  "(embedding, blocks, head): use fewer chunks",
                                  mesh.layout.pp, mesh.chunks, model.num_units()));
  }
  const int64_t blocks = model.num_units() - 2;
  const auto levels = recompute_levels(config, std::max<int64_t>(blocks, 0));
  pipeline.costs = work_costs(model, capacity, levels);
  std::vector<double> totals;
  for (const WorkCosts& costs : pipeline.costs) totals.push_back(costs.total());
  pipeline.ranges = config.pipeline_layers.empty()
                        ? balanced_stages(totals, virtual_stages)
                        : stages_by_hand(config.pipeline_layers, blocks, virtual_stages);
  for (const model::AdjointRequest& needs : model::backward_needs(model)) {
    pipeline.gradient_in.push_back(needs.input_gradient);
  }
  return pipeline;
}

}  // namespace trireme::plan
