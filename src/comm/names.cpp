#include "comm/comm.h"

namespace trireme::comm {

std::string_view name_of(CommKind kind) {
  switch (kind) {
    case CommKind::all_gather:
      return "all_gather";
    case CommKind::reduce_scatter:
      return "reduce_scatter";
    case CommKind::all_reduce:
      return "all_reduce";
    case CommKind::broadcast:
      return "broadcast";
    case CommKind::send:
      return "send";
    case CommKind::recv:
      return "recv";
  }
  return "?";
}

}  // namespace trireme::comm
