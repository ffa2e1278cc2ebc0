#include "device/device.h"

namespace trireme::device {

std::string_view name_of(StreamKind stream) {
  switch (stream) {
    case StreamKind::compute:
      return "compute";
    case StreamKind::copy_in:
      return "copy_in";
    case StreamKind::copy_out:
      return "copy_out";
    case StreamKind::comm_dp:
      return "comm.dp";
    case StreamKind::comm_tp:
      return "comm.tp";
    case StreamKind::send_next:
      return "send.next";
    case StreamKind::recv_prev:
      return "recv.prev";
    case StreamKind::send_prev:
      return "send.prev";
    case StreamKind::recv_next:
      return "recv.next";
    case StreamKind::comm_control:
      return "comm.ctl";
  }
  return "?";
}

std::string_view name_of(Space space) {
  switch (space) {
    case Space::device:
      return "device";
    case Space::pinned:
      return "pinned";
  }
  return "?";
}

}  // namespace trireme::device
