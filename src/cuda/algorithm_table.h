// Which algorithm runs which matrix product: chosen once, kept as text, so that ranks and resumed
// runs use the same ones.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::cuda {

/// The library's own description of an algorithm, valid for one version of it.
using AlgorithmWords = std::array<uint64_t, 8>;

class AlgorithmTable {
 public:
  /// `library` names version and GPU, on one line.
  explicit AlgorithmTable(std::string library) : library_(std::move(library)) {}

  /// Keys are one line each.
  std::optional<AlgorithmWords> find(const std::string& key) const;
  void set(const std::string& key, const AlgorithmWords& algorithm);
  void erase(const std::string& key) { entries_.erase(key); }

  /// One line for the library, then one for each key, sorted.
  std::string text() const;
  /// Replaces the table by what text() gave. False, and the table is empty, when that came from
  /// another library; DataError when it is no such text.
  bool read(std::string_view text);

 private:
  std::string library_;
  std::map<std::string, AlgorithmWords> entries_;
};

}  // namespace trireme::cuda
