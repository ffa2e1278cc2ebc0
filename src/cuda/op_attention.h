// What prepare() does for attention.
#pragma once

#include "cuda/op_table.h"

namespace trireme::cuda {

void prepare_attention(const ops::OpCall& call, OpContext& context);

}  // namespace trireme::cuda
