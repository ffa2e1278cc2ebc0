// A backend that is a file opened at run time: what it is given and what it gives.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "device/backend.h"

namespace trireme::device {

/// Where one rank runs and how it meets the others.
struct RankSite {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // takes the machine's device of this number, modulo their count
  /// Used from two threads at once, until the rank's backend ends. May be null in a world of one.
  comm::Store* store = nullptr;
  /// A collective that has not ended after so long fails and names itself.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Bounds each step of meeting the other ranks.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(2);
  /// Insists on operations that repeat bit for bit, where others are faster.
  bool deterministic = false;
  /// Sums with a wire type (comm::CommCall) will be asked for.
  bool wire_sums = false;
  /// Folder where runs leave each other the algorithms that they measured; "": none.
  std::string algorithm_cache;
  /// Debug: every collective starts this much later.
  std::chrono::milliseconds delay_collectives{0};
};

/// Opens backends of one kind.
class BackendMaker {
 public:
  virtual ~BackendMaker() = default;
  /// Devices of this machine that ranks may open.
  virtual int num_devices() const = 0;
  /// As Backend's; sizes are those of the first device.
  virtual int64_t token_multiple() const = 0;
  virtual std::unique_ptr<ops::OpSizing> op_sizing(bool deterministic) const = 0;
  virtual const comm::CommSizing& comm_sizing() const = 0;
  /// Collective over the world; ranks of one process call it on a thread each, which afterwards
  /// makes all calls of that backend. The maker must outlive it.
  virtual std::unique_ptr<Backend> open(const RankSite& site) = 0;
};

/// Libraries that the loader found for the module.
struct ModuleLibraries {
  std::string collectives;  // path or name; empty: absent
};

/// The function kBackendSymbol, of type BackendModuleFunction, returns a pointer to one of these.
struct BackendModule {
  int32_t abi = 0;           // kBackendAbi of its build; nothing else is read when it differs
  const char* version = "";  // of the project
  BackendMaker* (*make)(const ModuleLibraries& libraries) = nullptr;  // the caller owns it
};
using BackendModuleFunction = const BackendModule* (*)();
inline constexpr int32_t kBackendAbi = 3;
inline constexpr char kBackendSymbol[] = "trireme_backend_module";

}  // namespace trireme::device
