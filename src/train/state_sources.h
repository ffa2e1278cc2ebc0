// Where weights come from when a run does not resume: a Hugging Face folder, or the seed.
#pragma once

#include <cstdint>
#include <filesystem>

#include "model/hf_weights.h"
#include "train/session.h"

namespace trireme::train {

/// A source of masters alone: moments and the control block start at zero.
class FreshSource : public StateSource {
 public:
  bool only_weights() const final { return true; }
  void read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
            float* out) final;
  void read_control(std::span<double> control) final;

 protected:
  virtual void read_master(const model::Parameter& parameter, const mesh::Box& box, float* out) = 0;
};

/// The weights of a model folder. DataError when they are not those of the model.
class FolderSource final : public FreshSource {
 public:
  FolderSource(const std::filesystem::path& folder, const model::ModelGraph& model);
  int64_t bytes_read() const { return weights_.bytes_read(); }

 private:
  void read_master(const model::Parameter& parameter, const mesh::Box& box, float* out) override;
  model::HfWeights weights_;
};

/// Random weights, the same for every layout.
class RandomSource final : public FreshSource {
 public:
  RandomSource(const model::ModelConfig& config, uint64_t seed) : config_(config), seed_(seed) {}

 private:
  void read_master(const model::Parameter& parameter, const mesh::Box& box, float* out) override;
  model::ModelConfig config_;
  uint64_t seed_;
};

}  // namespace trireme::train
