#include "model/backward_needs.h"

namespace trireme::model {

std::vector<AdjointRequest> backward_needs(const ModelGraph& model) {
  std::vector<AdjointRequest> needs;
  bool upstream = false;  // something trainable before this unit
  for (const Unit& unit : model.units) {
    AdjointRequest& request = needs.emplace_back();
    request.input_gradient = upstream;
    for (const auto& slot : unit.parameters) {
      // The tensors of a slot are trained together, see ModelGraph::validate.
      request.trainable.push_back(model.parameters[static_cast<size_t>(slot[0])].trainable);
      upstream |= request.trainable.back();
    }
  }
  return needs;
}

}  // namespace trireme::model
