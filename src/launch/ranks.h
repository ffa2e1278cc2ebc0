// Which rank this process is: what launchers say in the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/environment.h"

namespace trireme::launch {

using Environment = Variables;
Environment process_environment();

struct Ranks {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;  // host of rank 0; empty for a single process
  int master_port = 0;      // 0: rank 0 takes a free one and tells the others (meeting.h)
  bool port_taken = false;  // a store of the launcher's own listens on master_port
  std::string job;  // no two jobs that share a host have the same; empty for a single process
  bool one_host() const { return local_world_size == world_size; }
};

/// The first of these that is there:
///
///   RANK, WORLD_SIZE, LOCAL_RANK   ours, torchrun, accelerate, deepspeed, by hand: all three, with
///                                  MASTER_ADDR and MASTER_PORT when there are several ranks and no
///                                  TRIREME_STORE; LOCAL_WORLD_SIZE (or deepspeed's LOCAL_SIZE) is
///                                  WORLD_SIZE when absent
///   OMPI_COMM_WORLD_*              mpirun of Open MPI
///   MPI_LOCALRANKID, PMI_RANK      mpiexec of MPICH and Intel MPI
///   MV2_COMM_WORLD_*               MVAPICH2
///   SLURM_PROCID in a step         srun; MASTER_ADDR is the step's first host, the port follows
///   from
///                                  the job's number
///   none                           a single process
///
/// MASTER_ADDR and MASTER_PORT count under each. MPI needs MASTER_ADDR on several hosts, and
/// MASTER_PORT where its launcher gives the job no name (all but Open MPI). Throws ConfigError
/// naming the variable that is missing, malformed or contradicts another, and for a process of a
/// Slurm job with several tasks that srun did not start.
Ranks discover_ranks(const Environment& environment);

/// How often the launcher has started this job anew.
int64_t restart_count(const Environment& environment);

}  // namespace trireme::launch
