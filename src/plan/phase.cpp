#include "plan/phase.h"

#include <algorithm>
#include <array>

namespace trireme::plan {

std::string_view name_of(Bound bound) {
  static constexpr std::array<std::string_view, 13> kNames = {
      "none",   "frame",  "saved",           "deferred",
      "input",  "output", "output gradient", "input gradient",
      "weight", "gradient", "batch", "rope", "sums"};
  return kNames[static_cast<size_t>(bound)];
}

std::span<const ops::Operand> operands_of(const Instruction& instruction) {
  model::Node node;
  node.kind = instruction.transfer ? model::NodeKind::gather : model::NodeKind::op;
  node.op = instruction.op;
  return model::operands_of(node);
}

bool Phase::transfers() const {
  return std::any_of(instructions.begin(), instructions.end(),
                     [](const Instruction& i) { return i.transfer.has_value(); });
}

bool Phase::uses(Bound bound) const {
  return std::any_of(instructions.begin(), instructions.end(), [&](const Instruction& i) {
    return std::any_of(i.args.begin(), i.args.end(),
                       [&](const Operand& o) { return o.bound == bound; });
  });
}

bool Phase::writes(Bound bound) const {
  for (const Instruction& i : instructions) {
    const auto operands = operands_of(i);
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
  if (operand.bound == Bound::batch) {
    const auto field = static_cast<ops::BatchField>(operand.index);
    const bool per_token = field != ops::BatchField::cu_seqlens;
    return {1, per_token ? tokens : ops::BatchLayout::size(field, extent)};
  }
  if (operand.bound == Bound::none) return {};
  return {dims.at(operand.rows, tokens), dims.at(operand.cols, tokens)};
}

}  // namespace trireme::plan
