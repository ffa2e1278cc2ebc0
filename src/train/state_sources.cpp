#include "train/state_sources.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "model/init.h"

namespace trireme::train {

void FreshSource::read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
                       float* out) {
  check(plane == plan::Plane::master, "{}: fresh moments are asked for", parameter.name);
  read_master(parameter, box, out);
}

void FreshSource::read_control(std::span<double> control) {
  std::fill(control.begin(), control.end(), 0.0);
}

FolderSource::FolderSource(const std::filesystem::path& folder, const model::ModelGraph& model)
    : weights_(folder) {
  static constexpr std::array<std::string_view, 1> kTiedHead = {"lm_head.weight"};
  const std::span<const std::string_view> tolerated =
      model.config.tie_word_embeddings ? std::span<const std::string_view>(kTiedHead)
                                       : std::span<const std::string_view>();
  weights_.check_against(model::expected_tensors(model), tolerated);
}

void FolderSource::read_master(const model::Parameter& parameter, const mesh::Box& box,
                               float* out) {
  weights_.read_box(parameter.name, box, out);
}

void RandomSource::read_master(const model::Parameter& parameter, const mesh::Box& box,
                               float* out) {
  model::init_box(config_, parameter, seed_, box, out);
}

}  // namespace trireme::train
