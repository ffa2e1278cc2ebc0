// Block products of bf16 pairs on processors that multiply them (AVX-512 BF16).
#pragma once

#include "cpu/kernel_product.h"

namespace trireme::cpu {

/// Whether the processor has block_product_bf16.
bool has_block_product_bf16();

/// BlockProduct with units of two bf16, summed in f32.
void block_product_bf16(const BlockProduct& product);

}  // namespace trireme::cpu
