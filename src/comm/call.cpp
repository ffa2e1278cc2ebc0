#include "base/error.h"
#include "comm/comm.h"

namespace trireme::comm {

bool sums(CommKind kind) {
  return kind == CommKind::reduce_scatter || kind == CommKind::all_reduce;
}

void check_wire(const CommCall& call) {
  check(!call.wire || (sums(call.kind) && call.dtype == DType::f32 && call.wire == DType::bf16),
        "{} of {} travels as {}", name_of(call.kind), name_of(call.dtype),
        name_of(call.wire_type()));
}

}  // namespace trireme::comm
