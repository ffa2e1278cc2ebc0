// What prepare() and tune() do for matrix products.
#pragma once

#include "cuda/op_table.h"

namespace trireme::cuda {

void prepare_matmul(const ops::OpCall& call, OpContext& context);
void tune_matmul(const ops::OpCall& call, OpContext& context);

}  // namespace trireme::cuda
