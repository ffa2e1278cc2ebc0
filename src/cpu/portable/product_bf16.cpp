// For processors without bf16 products: has_block_product_bf16() keeps callers away.
#include "base/error.h"
#include "cpu/kernel_product_bf16.h"

namespace trireme::cpu {

bool has_block_product_bf16() { return false; }

void block_product_bf16(const BlockProduct&) {
  check(false, "this processor does not multiply bf16 pairs");
}

}  // namespace trireme::cpu
