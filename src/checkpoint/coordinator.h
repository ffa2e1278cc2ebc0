// What saving and loading need of the other ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace trireme::checkpoint {

/// One rank's connection to the others.
class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Collective: the texts of all ranks, in rank order. Blocks until every rank called it, hence
  /// also a barrier. Throws CommError when a rank is lost.
  virtual std::vector<std::string> exchange(std::string_view mine) = 0;
};

/// A world of one.
class SingleRank final : public Coordinator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::vector<std::string> exchange(std::string_view mine) override { return {std::string(mine)}; }
};

/// What went wrong on some rank, in the same words on all of them.
class AgreedError final : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// Collective: returns when `problem` is empty on every rank; else throws AgreedError "TASK: rank
/// R: problem", with the number of other ranks that have one.
void agree(Coordinator& ranks, std::string_view task, std::string_view problem);

}  // namespace trireme::checkpoint
