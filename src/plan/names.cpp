#include <array>

#include "plan/program.h"

namespace trireme::plan {

namespace {
template <size_t N, typename Enum>
std::string_view pick(const std::array<std::string_view, N>& names, Enum value) {
  return names[static_cast<size_t>(value)];
}
}  // namespace

std::string_view name_of(Owner owner) {
  static constexpr std::array<std::string_view, kNumOwners> kNames = {
      "weights",     "masters", "moments", "gradients", "weight slots", "gradient slots",
      "activations", "frames",  "batch",   "control",   "staging"};
  return pick(kNames, owner);
}

std::string_view name_of(PortKind kind) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "batch port", "metrics port", "eval port",  "constant port",
      "load port",  "save port",    "export port"};
  return pick(kNames, kind);
}

std::string_view name_of(Plane plane) {
  static constexpr std::array<std::string_view, 4> kNames = {"master", "exp_avg", "exp_avg_sq",
                                                             "gradient"};
  return pick(kNames, plane);
}

int64_t Program::num_stored_instructions() const {
  size_t total = transfers.size() + ops.size() + copies.size() + ports.size();
  for (const Phase& phase : phases) total += phase.instructions.size();
  return static_cast<int64_t>(total);
}

}  // namespace trireme::plan
