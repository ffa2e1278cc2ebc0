#!/usr/bin/env bash
# Where the time of traced steps goes, kernel by kernel, from a file that `trireme train
# --profile_steps A:B` wrote.
#
#   bench/trace_table.sh TRACE.json
#
# One line for each operation (products apart by the size of their result): time of all calls, its
# share of the traced time, calls, and the rate reached: TFLOP/s, and TB/s of bytes read and written
# once. Then how long each stream was busy, and what of the compute stream no operation filled.
set -euo pipefail
sed -n 's/^{"ph":"X"/&/p' "$1" | tr -d '{}"' | tr ',' '\n' | awk -F: '
  function ends() {
    if (name == "") return
    if (first == "" || ts < first) first = ts
    if (ts + dur > last) last = ts + dur
    if (!inner) { busy[tid] += dur; return }
    key = name ~ /^linear/ ? sprintf("%s %dx%d", name, amount, cols) : name
    time[key] += dur; calls[key]++; flop[key] += flops; moved[key] += bytes
    if (tid == 0) filled += dur
  }
  $1 == "ph" { ends(); inner = 0; amount = cols = flops = bytes = 0; name = "" }
  $1 == "name" { name = $2 }
  $1 == "tid" { tid = $2 + 0 }
  $1 == "ts" { ts = $2 + 0 }
  $1 == "dur" { dur = $2 + 0 }
  $1 == "amount" { inner = 1; amount = $2 + 0 }
  $1 == "cols" { cols = $2 + 0 }
  $1 == "flops" { flops = $2 + 0 }
  $1 == "bytes" { bytes = $2 + 0 }
  END {
    ends()
    wall = last - first
    printf "%-44s %9s %6s %6s %8s %6s\n", "operation", "ms", "share", "calls", "TFLOP/s", "TB/s"
    sorted = "sort -k2,2nr -t \"\t\" | tr \"\t\" \" \""
    for (key in time) {
      printf "%-44s\t%9.2f\t%5.1f%%\t%6d\t%8.0f\t%6.2f\n", key, time[key] / 1e3,
        100 * time[key] / wall, calls[key], flop[key] / time[key] / 1e6,
        moved[key] / time[key] / 1e6 | sorted
    }
    close(sorted)
    for (tid in busy) printf "stream %d busy %.2f ms\n", tid, busy[tid] / 1e3
    printf "traced %.2f ms; compute stream outside of operations %.2f ms (%.1f%%)\n", wall / 1e3,
      (wall - filled) / 1e3, 100 * (wall - filled) / wall
  }'
