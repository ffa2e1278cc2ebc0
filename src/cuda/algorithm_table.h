// Which algorithm runs which matrix product: chosen once, kept as text, so that ranks and resumed
// runs use the same ones.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

namespace trireme::cuda {

/// The library's own description of an algorithm, valid for one version of it.
using AlgorithmWords = std::array<uint64_t, 8>;

class AlgorithmTable {
 public:
  /// `library` names version and GPU, on one line.
  explicit AlgorithmTable(std::string library) : library_(std::move(library)) {}

  /// Keys are one line each.
  std::optional<AlgorithmWords> find(const std::string& key) const;
  /// Its entry is one that is used, from here on.
  void set(const std::string& key, const AlgorithmWords& algorithm);
  /// Marks an entry as used.
  void use(const std::string& key);
  void erase(const std::string& key) { entries_.erase(key); }

  /// One line for the library, then one for each key, sorted.
  std::string text() const;
  std::string text_of_used() const;
  /// Replaces the table by what such texts gave, none of it used yet: of a key in several texts the
  /// first is taken. Empty texts and those of another library are passed over: true when there was
  /// none of the latter. DataError when one is no such text.
  bool read(std::span<const std::string> texts);

 private:
  struct Entry {
    AlgorithmWords words{};
    bool used = false;
  };
  std::string text_of(bool only_used) const;

  std::string library_;
  std::map<std::string, Entry> entries_;
};

}  // namespace trireme::cuda
