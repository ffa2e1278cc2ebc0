#!/usr/bin/env bash
# slurm_cluster.sh FOLDER COMMAND...: a Slurm cluster of two nodes, n1 and n2, on this machine, for as
# long as COMMAND runs. Files go to FOLDER. Its network, host names and processes are its own, so that
# several may run at once and nothing is left. Needs root.
set -euo pipefail
if [[ ${1:-} != --inside ]]; then
  exec unshare --mount --net --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
folder=$2
shift 2
mkdir -p "$folder/state"
ip link set lo up
ip address add 192.0.2.1/32 dev lo  # names are looked up only where there is more than loopback
host=$(hostname -s)
echo "127.0.0.1 localhost n1 n2 $host" >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=2
PartitionName=test Nodes=ALL Default=YES
END
export SLURM_CONF=$folder/slurm.conf
slurmctld
slurmd -N n1
slurmd -N n2
for ((left = 200; left > 0; --left)); do
  idle=$(timeout 5 sinfo --noheader --states=idle --format=%D 2>/dev/null || true)
  [[ $idle == 2 ]] && break
  sleep 0.1
done
if ((left == 0)); then
  echo "slurm_cluster.sh: the nodes do not become idle" >&2
  tail -n 5 "$folder"/*.log >&2
  exit 1
fi
"$@"
