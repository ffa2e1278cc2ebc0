#include "plan/phase.h"

#include <algorithm>
#include <array>

#include "ops/signature.h"

namespace trireme::plan {

std::string_view name_of(Bound bound) {
  static constexpr std::array<std::string_view, 12> kNames = {
      "none",           "frame",  "saved",    "input", "output", "output gradient",
      "input gradient", "weight", "gradient", "batch", "rope",   "sums"};
  return kNames[static_cast<size_t>(bound)];
}

bool Phase::uses(Bound bound) const {
  return std::any_of(instructions.begin(), instructions.end(), [&](const Instruction& i) {
    return std::any_of(i.args.begin(), i.args.end(),
                       [&](const Operand& o) { return o.bound == bound; });
  });
}

bool Phase::writes(Bound bound) const {
  for (const Instruction& i : instructions) {
    const auto operands = ops::signature(i.op);
    for (size_t a = 0; a < i.args.size(); ++a) {
      if (i.args[a].bound == bound && operands[a].access != ops::Access::read) return true;
    }
  }
  return false;
}

std::vector<int> Phase::slots(Bound bound) const {
  std::vector<int> found;
  for (const Instruction& i : instructions) {
    for (const Operand& o : i.args) {
      if (o.bound == bound) found.push_back(o.index);
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::vector<int> Phase::gradients_in_order() const {
  std::vector<int> found;
  for (const Instruction& i : instructions) {
    if (i.law != model::LawRule::gradient) continue;
    const int slot = i.args[0].index;
    if (std::find(found.begin(), found.end(), slot) == found.end()) found.push_back(slot);
  }
  return found;
}

Shape shape_of(const Operand& operand, const model::Dims& dims, const ops::Extent& extent,
               int64_t chunk) {
  const bool part = operand.sliced || operand.chunk;
  const int64_t tokens = part ? std::min(chunk, extent.tokens) : extent.tokens;
  const auto size = [&](model::Dim dim) { return dim == model::Dim::tokens ? tokens : dims[dim]; };
  if (operand.bound == Bound::batch) {
    const auto field = static_cast<ops::BatchField>(operand.index);
    const bool per_token = field != ops::BatchField::cu_seqlens;
    return {1, per_token ? tokens : ops::BatchLayout::size(field, extent)};
  }
  if (operand.bound == Bound::none) return {};
  return {size(operand.rows), size(operand.cols)};
}

}  // namespace trireme::plan
