// A rig that saves a checkpoint as a run does.
#pragma once

#include <filesystem>
#include <fstream>

#include "support/rig.h"
#include "support/thread_coordinator.h"
#include "train/run_files.h"

namespace trireme::testing {

/// Saves checkpoint-STEP under `folder` when `options`' run has done that many steps. Outlives the
/// run.
struct CheckpointSaver {
  CheckpointSaver(RigOptions& options, const std::filesystem::path& folder, int64_t saved_step)
      : world(options.ranks),
        output_dir(folder / "out"),
        model_folder(folder / "model"),
        step(saved_step) {
    std::filesystem::create_directories(model_folder);
    std::ofstream(model_folder / "config.json") << R"({"model_type": "qwen2"})";
    options.after_step = [this](train::Session& session, int rank, int64_t done,
                                const train::ControlValues& control) {
      if (done + 1 != step) return;
      session.flush();
      test::ThreadCoordinator ranks(world, rank);
      save_checkpoint(session, ranks, {output_dir, model_folder, step, 0}, control, Json());
    };
  }
  std::filesystem::path folder() const {
    return output_dir / ("checkpoint-" + std::to_string(step));
  }

  test::ThreadWorld world;
  std::filesystem::path output_dir;
  std::filesystem::path model_folder;
  int64_t step;
};

/// A checkpoint as a source of its own.
class SavedSource final : public train::StateSource {
 public:
  explicit SavedSource(const std::filesystem::path& folder) : reader_(folder), source_(reader_) {}
  void read(const model::Parameter& parameter, plan::Plane plane, const mesh::Box& box,
            float* out) override {
    source_.read(parameter, plane, box, out);
  }
  void read_control(std::span<double> control) override { source_.read_control(control); }

 private:
  checkpoint::CheckpointReader reader_;
  train::CheckpointSource source_;
};

}  // namespace trireme::testing
