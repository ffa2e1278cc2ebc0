// Measured algorithms on disk, so that another run on this machine need not measure them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/algorithm_table.h"

namespace trireme::cuda {

/// One file for each library and GPU. What is wrong with it is a notice, never an error.
class AlgorithmCache {
 public:
  /// The file "matmul-LIBRARY.txt" of `folder`, neither of which need exist; "" keeps nothing.
  AlgorithmCache(std::filesystem::path folder, std::string library);

  /// What other runs left of `key`. Reads the file at the first call.
  std::optional<AlgorithmWords> find(const std::string& key);
  /// Leaves what `table` uses to others, in place of what they left for the same keys. Readers see
  /// the old file or the new one; of two writers at one time, one may be forgotten. Whether it was
  /// written.
  bool add(const AlgorithmTable& table);

  const std::filesystem::path& file() const { return file_; }
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }

 private:
  /// The file's text, "" where there is none or it is no such text.
  std::string read();

  std::filesystem::path file_;  // "": none
  std::string library_;
  std::optional<AlgorithmTable> known_;
  std::vector<std::string> notices_;
};

}  // namespace trireme::cuda
