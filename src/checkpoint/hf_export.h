// Writes a Hugging Face model folder, streamed in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/hf_shards.h"
#include "checkpoint/manifest.h"
#include "host/stream_writer.h"
#include "model/hf_weights.h"
#include "model/safetensors.h"

namespace trireme::checkpoint {

struct ExportOptions {
  int64_t max_shard_bytes = 5'000'000'000;  // a larger tensor has a shard of its own
  host::WriteOptions write = {};
};

/// model.safetensors, or numbered shards and their index when more than one is needed. Files get
/// their names in finish(), when all are written and fsynced; weights of an earlier model in the
/// folder are then removed. Memory: the buffers of `write` and 1 MiB.
class HfWriter {
 public:
  /// The tensors in the order in which append() will give them; each in its own dtype.
  HfWriter(const std::filesystem::path& folder, std::vector<model::TensorSpec> tensors,
           const ExportOptions& options = {});
  /// Without finish(), removes what was written, and the folder where it was made for that.
  ~HfWriter();
  HfWriter(const HfWriter&) = delete;
  HfWriter& operator=(const HfWriter&) = delete;

  /// The next elements, row-major; a call may end inside a tensor or span several. Takes a copy.
  /// What goes wrong is kept for finish(), so that a rank that writes never leaves the others alone
  /// in a collective.
  void append(const float* data, int64_t count);
  /// Throws the first DeviceError. The files written, the index included.
  std::vector<FileRecord> finish();

 private:
  void take(const float* data, int64_t count);
  void open_next_shard();
  void close_shard();

  std::filesystem::path folder_;
  std::vector<model::TensorSpec> tensors_;
  ExportOptions options_;
  std::vector<HfShard> shards_;
  std::unique_ptr<host::StreamWriter> file_;
  std::vector<FileRecord> written_;
  size_t tensor_ = 0;    // the one being written
  int64_t element_ = 0;  // of it
  std::vector<std::byte> staging_;
  std::string problem_;
  bool made_folder_ = false;
  bool published_ = false;
};

/// Elements [begin, begin + count) of a flattened tensor into `out`.
using FillTensor =
    std::function<void(const model::TensorSpec& tensor, int64_t begin, int64_t count, float* out)>;

/// Calls `fill` for every tensor in order, in pieces of at most `piece_elements`, and hands each
/// piece to `writer`. nullptr: a rank that only takes part in the collectives inside `fill`.
void stream_tensors(const std::vector<model::TensorSpec>& tensors, int64_t piece_elements,
                    const FillTensor& fill, HfWriter* writer);

/// Copies config.json (changed only where it names the dtype), generation_config.json and the
/// tokenizer's files that are there. `from` and `to` may be the same folder. fsynced.
std::vector<FileRecord> copy_model_files(const std::filesystem::path& from,
                                         const std::filesystem::path& to, DType dtype);

/// The model that a checkpoint is exported as.
struct ExportedModel {
  std::filesystem::path folder;  // whose config and tokenizer files are copied
  std::vector<model::ExpectedTensor> tensors;
};

/// `trireme checkpoint export`: the fp32 masters of a checkpoint as a Hugging Face folder, with the
/// files of the model. ConfigError when it is of another model, holds only the model, or is damaged:
/// `to` then stays as it was.
void export_checkpoint(const std::filesystem::path& checkpoint, const ExportedModel& model,
                       const std::filesystem::path& to, DType dtype,
                       const ExportOptions& options = {});

}  // namespace trireme::checkpoint
