#!/usr/bin/env bash
# The cases of a full node, for bench/gpu.sh: `NODE=8 bench/gpu.sh` measures all of them,
# `CASES="$(bench/node_cases.sh 8 | grep ^32b)" bench/gpu.sh` some, and with PLAN=1 either prints what
# memory they are planned to take (below 139 GiB a GPU, H200).
#
#   bench/node_cases.sh 4|8
set -euo pipefail
num=${1:-}
[[ $num == 4 || $num == 8 ]] || { echo "node_cases.sh: give 4 or 8 GPUs" >&2; exit 2; }

tensor() { echo "--tensor_parallel_size $1"; }
pipeline() { echo "--pipeline_parallel_size $1"; }

# Weak scaling at equal flags: much and little work between two reductions.
for ((gpus = 1; gpus <= num; gpus *= 2)); do
  echo "7b $gpus 2 4 1 activation skip"
done
for ((gpus = 1; gpus <= num; gpus *= 2)); do
  echo "7b $gpus 2 1 3 activation skip"
done

# Data ranks under each stage, then what the memory of stage 3 leaves room for.
echo "7b $num 2 2 1 none skip"
echo "7b $num 2 2 2 none skip"
echo "7b $num 2 2 3 none none"
echo "7b $num 4 1 3 none skip"

# All axes at once, and tensor ranks alone (a 7b model has 28 heads).
echo "7b $num 4 8 1 none skip $(tensor 2) $(pipeline 2)"
echo "14b $num $num 2 0 none skip $(tensor "$num")"

# 32b, 64 sequences a step.
if ((num == 8)); then
  echo "32b 8 2 4 3 ffn:12,activation full"
  echo "32b 8 1 8 3 none skip"
  echo "32b 8 2 8 2 activation skip $(tensor 2)"
  echo "32b 8 1 16 2 none skip $(tensor 2)"
  echo "32b 8 4 8 1 norms skip $(tensor 4)"
  echo "32b 8 8 8 0 none skip $(tensor 8)"
  echo "32b 8 2 16 1 activation skip $(tensor 2) $(pipeline 2)"
  echo "32b 8 1 32 1 none skip $(tensor 2) $(pipeline 2) --pipeline_schedule zero_bubble"
  echo "32b 8 1 32 1 activation skip $(pipeline 4)"
  echo "32b 8 1 64 0 none skip $(pipeline 8)"
else
  echo "32b 4 2 8 3 block skip"
  echo "32b 4 1 64 0 activation skip $(tensor 4)"
  echo "32b 4 2 32 0 block skip $(tensor 4)"
  echo "32b 4 1 64 0 block skip $(tensor 2) $(pipeline 2)"
fi
