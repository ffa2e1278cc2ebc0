// A small model state, cut over any number of ranks in any way, with values that tell every
// element apart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "mesh/box.h"
#include "support/thread_coordinator.h"

namespace trireme::checkpoint {

struct SampleTensor {
  std::string name;
  std::vector<int64_t> shape;
};

inline const std::vector<SampleTensor>& sample_tensors() {
  static const std::vector<SampleTensor> kTensors = {{"model.embed_tokens.weight", {40, 24}},
                                                     {"model.layers.0.proj.weight", {24, 56}},
                                                     {"model.layers.0.proj.bias", {56}},
                                                     {"model.layers.0.conv", {3, 4, 5}},
                                                     {"scale", {}}};
  return kTensors;
}
inline const std::vector<std::string>& sample_planes() {
  static const std::vector<std::string> kPlanes = {"master", "exp_avg", "exp_avg_sq"};
  return kPlanes;
}

inline float sample_value(int64_t step, size_t tensor, size_t plane, int64_t element) {
  return static_cast<float>(step * 100000 + static_cast<int64_t>(plane) * 20000 +
                            static_cast<int64_t>(tensor) * 4000 + element);
}

/// boxes[rank][tensor]: every tensor's elements dealt to the ranks in consecutive runs, cut at
/// random places; some ranks may get nothing.
using Cut = std::vector<std::vector<std::vector<mesh::Box>>>;
inline Cut random_cut(int num_ranks, uint32_t seed) {
  std::mt19937 random(seed);
  Cut cut(static_cast<size_t>(num_ranks));
  for (auto& rank : cut) rank.resize(sample_tensors().size());
  for (size_t t = 0; t < sample_tensors().size(); ++t) {
    const mesh::Box whole = mesh::whole(sample_tensors()[t].shape);
    std::vector<int64_t> ends = {0, whole.size()};
    for (int i = 1; i < num_ranks; ++i) {
      ends.push_back(static_cast<int64_t>(random()) % (whole.size() + 1));
    }
    std::sort(ends.begin(), ends.end());
    for (size_t r = 0; r < cut.size(); ++r) {
      cut[r][t] = mesh::boxes_of_range(whole, ends[r], ends[r + 1]);
    }
  }
  return cut;
}

inline std::vector<float> sample_box(int64_t step, size_t tensor, size_t plane,
                                     const mesh::Box& box) {
  std::vector<float> values(static_cast<size_t>(box.size()));
  for (const mesh::Run& run : mesh::copy_runs(mesh::whole(sample_tensors()[tensor].shape), box)) {
    for (int64_t i = 0; i < run.count; ++i) {
      values[static_cast<size_t>(run.to + i)] = sample_value(step, tensor, plane, run.from + i);
    }
  }
  return values;
}

inline std::vector<Piece> sample_pieces(const std::vector<std::vector<mesh::Box>>& mine) {
  std::vector<Piece> pieces;
  for (const std::string& plane : sample_planes()) {
    for (size_t t = 0; t < mine.size(); ++t) {
      for (const mesh::Box& box : mine[t]) {
        pieces.push_back({sample_tensors()[t].name, plane, sample_tensors()[t].shape, box});
      }
    }
  }
  return pieces;
}

inline Json sample_state(int64_t step) {
  return {{"global_step", step}, {"learning_rate", 0.1 / static_cast<double>(step + 3)}};
}

/// One rank's part of saving the sample state.
inline SaveResult save_sample(const SaveRequest& request, const Cut& cut, Coordinator& ranks) {
  const auto& mine = cut[static_cast<size_t>(ranks.rank())];
  CheckpointWriter writer(request, sample_pieces(mine), ranks);
  for (size_t p = 0; p < sample_planes().size(); ++p) {
    for (size_t t = 0; t < mine.size(); ++t) {
      for (const mesh::Box& box : mine[t]) {
        writer.add(sample_tensors()[t].name, sample_planes()[p], box,
                   sample_box(request.step, t, p, box).data());
      }
    }
  }
  return writer.commit(sample_state(request.step));
}

/// One rank's boxes of a checkpoint, as sample_boxes() has them for its step.
inline std::vector<std::vector<float>> read_boxes(CheckpointReader& reader,
                                                  const std::vector<std::vector<mesh::Box>>& mine) {
  std::vector<std::vector<float>> all;
  for (size_t p = 0; p < sample_planes().size(); ++p) {
    for (size_t t = 0; t < mine.size(); ++t) {
      for (const mesh::Box& box : mine[t]) {
        std::vector<float>& values = all.emplace_back(static_cast<size_t>(box.size()));
        reader.read(sample_tensors()[t].name, sample_planes()[p], sample_tensors()[t].shape, box,
                    values.data());
      }
    }
  }
  return all;
}

inline std::vector<std::vector<float>> sample_boxes(
    int64_t step, const std::vector<std::vector<mesh::Box>>& mine) {
  std::vector<std::vector<float>> all;
  for (size_t p = 0; p < sample_planes().size(); ++p) {
    for (size_t t = 0; t < mine.size(); ++t) {
      for (const mesh::Box& box : mine[t]) all.push_back(sample_box(step, t, p, box));
    }
  }
  return all;
}

/// "" when the checkpoint holds the sample state of its step; else the first difference.
inline std::string sample_difference(const std::filesystem::path& folder) {
  CheckpointReader reader(folder);
  if (reader.state() != sample_state(reader.step())) return "the state differs";
  for (size_t t = 0; t < sample_tensors().size(); ++t) {
    for (size_t p = 0; p < sample_planes().size(); ++p) {
      const mesh::Box whole = mesh::whole(sample_tensors()[t].shape);
      std::vector<float> values(static_cast<size_t>(whole.size()));
      reader.read(sample_tensors()[t].name, sample_planes()[p], sample_tensors()[t].shape, whole,
                  values.data());
      if (values != sample_box(reader.step(), t, p, whole)) return sample_tensors()[t].name;
    }
  }
  return "";
}

/// Saves the sample state on `num_ranks` threads; each rank's error.
inline std::vector<std::string> save_on_threads(const SaveRequest& request, int num_ranks,
                                                uint32_t seed = 1) {
  const Cut cut = random_cut(num_ranks, seed);
  return test::run_ranks(num_ranks, [&](Coordinator& ranks) { save_sample(request, cut, ranks); });
}

}  // namespace trireme::checkpoint
