// The samples of a JSONL file, tokenized, in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "config/run_config.h"
#include "data/row_parser.h"

namespace trireme::data {

struct DatasetOptions {
  /// Where tokenizer.json lies; read only for rows of text.
  std::filesystem::path tokenizer_folder;
  int64_t vocab_size = 0;      // of the model; every id must be below
  int64_t max_seq_length = 0;  // tokens of the longest sample
  config::OnLong on_long = config::OnLong::truncate;
  /// Of rows with a prompt: true trains the completion alone, false both. nullopt: the completion;
  /// else there must be prompts for it.
  std::optional<bool> completion_only;
  /// The tokens of all rows, with their labels, laid end to end and cut into blocks of
  /// max_seq_length, each a sample; the last block has what is left. No row is too long then, and
  /// `on_long` is not asked.
  bool wrapped = false;
  int num_threads = 0;  // 0: one a core
};

struct DatasetCounts {
  int64_t rows = 0;       // of the file: samples + skipped, unless wrapped
  int64_t truncated = 0;  // longer than max_seq_length: the end is cut off
  int64_t skipped = 0;    // longer than max_seq_length: left out
  int64_t tokens = 0;     // of all samples
  int64_t trained = 0;    // labels that count: all but -100, and never the first of a sample
};

/// Immutable. Sample i is the i-th row that was not skipped, or the i-th block of wrapped rows.
class Dataset {
 public:
  /// Reads and checks every row before it returns. Text becomes its tokens with the tokenizer's
  /// special tokens, plus EOS at the end where the text does not end with it; all are trained. A
  /// prompt and its completion are one text. What they have in common with the tokens of the prompt
  /// alone is not trained: a token that reaches over the border is the completion's.
  ///
  /// DataError "path:line: what" for the first bad row of the file, or without line for a file
  /// that gives no sample; ConfigError for a missing file, a tokenizer that cannot be used or that
  /// names no EOS.
  static Dataset load(const std::filesystem::path& path, const DatasetOptions& options);

  /// Samples made elsewhere: ids of each, and labels of each (or none at all: the ids).
  Dataset(const std::vector<std::vector<int32_t>>& ids,
          const std::vector<std::vector<int32_t>>& labels);
  Dataset(Dataset&&) = default;
  Dataset& operator=(Dataset&&) = default;

  int64_t size() const { return std::ssize(lengths_); }
  /// Tokens of each sample.
  std::span<const int32_t> lengths() const { return lengths_; }
  std::span<const int32_t> ids(int64_t sample) const {
    return {places_[static_cast<size_t>(sample)].ids, length(sample)};
  }
  /// As long as ids; kNotTrained or a token id each.
  std::span<const int32_t> labels(int64_t sample) const {
    return {places_[static_cast<size_t>(sample)].labels, length(sample)};
  }
  const DatasetCounts& counts() const { return counts_; }

 private:
  struct Place {
    const int32_t* ids;
    const int32_t* labels;  // the same where every token is trained
  };
  struct Chunk;
  class Wrapper;
  Dataset() = default;
  size_t length(int64_t sample) const {
    return static_cast<size_t>(lengths_[static_cast<size_t>(sample)]);
  }
  void adopt(Chunk chunk);

  std::vector<std::vector<int32_t>> storage_;  // ids, and labels where they differ
  std::vector<int32_t> lengths_;
  std::vector<Place> places_;
  DatasetCounts counts_;
};

}  // namespace trireme::data
