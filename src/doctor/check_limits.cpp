#include <sys/resource.h>

#include "base/error.h"
#include "doctor/checks.h"

namespace trireme::doctor {

Findings check_limits() {
  constexpr rlim_t kFew = 1024;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) throw_errno("getrlimit", "RLIMIT_NOFILE");
  if (files.rlim_cur >= kFew) {
    return {{Verdict::good, "open files", fmt::format("{} a process", files.rlim_cur), ""}};
  }
  return {{Verdict::note, "open files", fmt::format("only {} a process", files.rlim_cur),
           "run `ulimit -n 65536` before starting many ranks"}};
}

}  // namespace trireme::doctor
