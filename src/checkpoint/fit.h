// Whether a checkpoint is of a model.
#pragma once

#include <span>
#include <string>

#include "checkpoint/manifest.h"
#include "model/hf_weights.h"

namespace trireme::checkpoint {

/// "" when the checkpoint has the model's tensors and no others, in their shapes; else what is
/// wrong, as in "its 'model.norm.weight' is not in this model".
std::string misfit(const Manifest& saved, std::span<const model::ExpectedTensor> model);

}  // namespace trireme::checkpoint
