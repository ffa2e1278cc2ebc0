// What backward of every unit of a model has to give.
#pragma once

#include <vector>

#include "model/adjoint.h"

namespace trireme::model {

/// One request a unit: which of its slots are trained, and whether something before it is, so that
/// it hands a gradient back.
std::vector<AdjointRequest> backward_needs(const ModelGraph& model);

}  // namespace trireme::model
