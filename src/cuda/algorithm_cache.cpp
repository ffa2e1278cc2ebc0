#include "cuda/algorithm_cache.h"

#include <array>
#include <cctype>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace trireme::cuda {

namespace {

constexpr int64_t kMostBytes = int64_t{16} << 20;

/// Letters and digits, and a dash for all between.
std::string file_name(const std::string& library) {
  std::string name = "matmul";
  bool between = true;
  for (const char c : library) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.';
    if (plain && between) name += '-';
    if (plain) name += c;
    between = !plain;
  }
  return name + ".txt";
}

}  // namespace

AlgorithmCache::AlgorithmCache(std::filesystem::path folder, std::string library)
    : library_(std::move(library)) {
  if (!folder.empty()) file_ = std::move(folder) / file_name(library_);
}

std::string AlgorithmCache::read() {
  std::error_code error;
  if (file_.empty() || !std::filesystem::exists(file_, error)) return {};
  try {
    const std::string text = read_text_file(file_, kMostBytes);
    AlgorithmTable table(library_);
    if (table.read({&text, 1})) return text;
    notices_.push_back(fmt::format("{} is for another library or GPU; it is replaced",
                                   file_.string()));
  } catch (const std::exception& failure) {
    notices_.push_back(fmt::format("{}: {}; it is replaced", file_.string(), failure.what()));
  }
  return {};
}

std::optional<AlgorithmWords> AlgorithmCache::find(const std::string& key) {
  if (!known_) {
    known_.emplace(library_);
    const std::string text = read();
    (void)known_->read({&text, 1});
  }
  return known_->find(key);
}

bool AlgorithmCache::add(const AlgorithmTable& table) {
  if (file_.empty()) return false;
  const size_t before = notices_.size();
  const std::array<std::string, 2> texts = {table.text_of_used(), read()};
  notices_.resize(before);  // said when it was read first
  AlgorithmTable merged(library_);
  (void)merged.read(texts);
  // Process ids repeat where hosts or containers share the folder.
  std::random_device random;
  std::filesystem::path temporary = file_;
  temporary += fmt::format(".{:08x}{:08x}", random(), random());
  try {
    make_folders(file_.parent_path());
    write_new_file(temporary, merged.text());
    rename_path(temporary, file_);
    return true;
  } catch (const std::exception& failure) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    notices_.push_back(
        fmt::format("what was measured of matrix products is not kept for other runs: {}",
                    failure.what()));
  }
  return false;
}

}  // namespace trireme::cuda
