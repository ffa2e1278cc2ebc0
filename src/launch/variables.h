// What the launcher tells its ranks beside torchrun's variables.
#pragma once

namespace trireme::launch {

inline constexpr const char* kStore = "TRIREME_STORE";           // host:port of the job's store
inline constexpr const char* kTokenFile = "TRIREME_TOKEN_FILE";  // the job token, mode 0600
inline constexpr const char* kJob = "TRIREME_JOB_ID";            // unique per launch
inline constexpr const char* kEpoch = "TRIREME_EPOCH";           // number of the restart
inline constexpr const char* kControl = "TRIREME_CONTROL_FD";    // ends with the launcher

}  // namespace trireme::launch
