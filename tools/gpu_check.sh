#!/usr/bin/env bash
# Proves the bundle on this machine's GPUs. Builds nothing.
#
#   tools/gpu_check.sh [BUNDLE] [PART...]
#
# BUNDLE: folder or archive made with -DTRIREME_BUNDLE_TESTS=ON (default build/release/bundle).
# PARTS (default all): device ops golden equivalence selftest trace runs kill sanitizer
# Tests whose ranks outnumber the GPUs are skipped. `selftest` compares every layout of all GPUs, then
# $LAYOUTS random ones (24); `runs` and `kill` use all GPUs too. A test or layout that takes more than
# $SECONDS_EACH seconds (300) has failed. Logs go to $OUT, or a temporary folder. The last line is
# 'N passed, N failed, N skipped'; exit code 1 when anything failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bundle=${1:-$root/build/release/bundle}
(($# == 0)) || shift
parts=("$@")
((${#parts[@]} > 0)) || parts=(device ops golden equivalence selftest trace runs kill sanitizer)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=${OUT:-$work}

. "$root/tools/open_bundle.sh"
bundle=$(open_bundle "$bundle" "$work/bundle") || exit 2
bin=$bundle/bin
gpus=$(count_gpus)
((gpus > 0)) || { echo "gpu_check: no GPU on this machine" >&2; exit 2; }
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

export TRIREME_TEST_DEVICE=cuda TRIREME_SOURCE_DIR=$root
passed=0 failed=0 skipped=0

# watched LOG COMMAND...: adds its output to the log; killed (137) where nothing comes for too long.
watched() {
  local log=$1 pid
  shift
  touch "$log"
  "$@" >> "$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2> /dev/null; do
    sleep 0.2
    (($(date +%s) - $(stat -c %Y "$log") <= ${SECONDS_EACH:-300})) || kill -KILL "$pid" 2> /dev/null
  done
  wait "$pid"
}

# tests PROGRAM: one GoogleTest program; its tests are counted one by one. Where it crashes or hangs,
# the test it stood in has failed and the rest goes on.
tests() {
  local program=$1 log=$logs/$1.log begun=() known=-1 stopped=0 code good bad left
  if [[ ! -x $bin/$program ]]; then
    echo "FAILED  $program is not in the bundle (-DTRIREME_BUNDLE_TESTS=ON)"
    failed=$((failed + 1))
    return
  fi
  : > "$log"
  while true; do
    watched "$log" "$bin/$program" --gtest_brief=0 --gtest_color=no \
      --gtest_filter="-$(IFS=:; echo "${begun[*]}")"
    code=$?
    mapfile -t begun < <(sed -n 's/^\[ RUN      \] //p' "$log")
    ((code > 1)) || break
    stopped=$((stopped + 1))
    echo "STOPPED $program with exit code $code in ${begun[-1]:-its start}"
    tail -n 10 "$log"
    ((${#begun[@]} > known)) || break
    known=${#begun[@]}
  done
  good=$(grep -c '^\[       OK \] ' "$log")
  left=$(grep -c '^\[  SKIPPED \] .* ms)$' "$log")
  bad=$(($(grep -c '^\[  FAILED  \] .* ms)$' "$log") + stopped))
  ((code == 0 || bad > 0)) || bad=1
  passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + left))
  echo "$program: $good passed, $bad failed, $left skipped"
  grep -B 6 '^\[  FAILED  \] .* ms)$' "$log" | head -n 60
}

# outcome NAME CODE [LOG]
outcome() {
  if (($2 == 0)); then
    echo "OK      $1"
    passed=$((passed + 1))
  else
    echo "FAILED  $1"
    failed=$((failed + 1))
    [[ -z ${3:-} ]] || tail -n 60 "$3"
  fi
}

# train RANKS FOLDER FLAGS...: a short run of a tiny model, in a new folder
train() {
  rm -rf "$2"
  train_on "$@"
}

# train_on RANKS FOLDER FLAGS...: the same, in the folder as it is
train_on() {
  local ranks=$1 folder=$2 command=("$bin/trireme")
  shift 2
  ((ranks == 1)) || command+=(launch --nproc_per_node "$ranks" --)
  timeout 600 "${before[@]}" "${command[@]}" train --device cuda \
    --model_name_or_path "$root/tests/golden/data/qwen2" \
    --data_path "$root/tests/golden/data/qwen2/train.jsonl" --output_dir "$folder" \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --max_steps 6 \
    --save_strategy no "$@" > "$folder.log" 2>&1
}

# What two equal runs must have in common: losses and norms of every step, and the model.
print_of() {
  sed 's/, "tokens_per_second".*//' "$1/metrics.jsonl"
  (cd "$1" && sha256sum ./*.safetensors)
}

runs() {
  local ranks precision
  before=()
  for ranks in $(printf '%s\n' 1 2 "$gpus" | sort -nu); do
    if ((ranks > gpus)); then
      skipped=$((skipped + 4))
      continue
    fi
    for precision in f32 bf16; do
      local name=run-$ranks-$precision flags=(--deterministic true --zero_stage $((ranks == 1 ? 0 : 3)))
      [[ $precision == f32 ]] || flags+=(--bf16 true)
      train "$ranks" "$work/$name-a" "${flags[@]}" && train "$ranks" "$work/$name-b" "${flags[@]}"
      local code=$?
      cp "$work/$name-a.log" "$logs/" 2> /dev/null
      outcome "$name: two runs end" $code "$work/$name-a.log"
      ((code == 0)) || continue
      diff <(print_of "$work/$name-a") <(print_of "$work/$name-b") > "$work/$name.diff"
      outcome "$name: two runs are equal in every bit" $? "$work/$name.diff"
    done
  done
}

# Every layout of all GPUs, and random ones of at most as many, against a single process.
selftest() {
  local command=("$bin/trireme" selftest --layouts --device cuda)
  rm -f "$logs/selftest-every.log" "$logs/selftest.log"
  watched "$logs/selftest-every.log" "${command[@]}" --every
  outcome "selftest: every layout of $gpus GPUs" $? "$logs/selftest-every.log"
  watched "$logs/selftest.log" "${command[@]}" --count "${LAYOUTS:-24}"
  outcome "selftest: ${LAYOUTS:-24} random layouts on $gpus GPUs" $? "$logs/selftest.log"
}

# steps_of FOLDER: lines of its log of steps
steps_of() {
  wc -l 2> /dev/null < "$1/metrics.jsonl" || echo 0
}

# wait_for_steps N FOLDER PID: until the log has N steps, as long as the process lives.
wait_for_steps() {
  until (($(steps_of "$2") >= $1)); do
    kill -0 "$3" 2> /dev/null || return 1
    sleep 0.02
  done
}

# One of all workers is killed while it trains; the same command resumes. The result must be that of
# a run which nothing disturbed.
kill_one() {
  if ((gpus < 2)); then
    skipped=$((skipped + 4))
    return
  fi
  before=()
  local folder=$work/killed flags=(--zero_stage 3 --bf16 true --deterministic true --max_steps 40
    --save_strategy steps --save_steps 5) died begin end
  train "$gpus" "$work/whole" "${flags[@]}"
  outcome "kill: a run that nothing disturbs ends" $? "$work/whole.log"

  train "$gpus" "$folder" "${flags[@]}" --debug_comm_delay_ms 5 &
  wait_for_steps 12 "$folder" $! && kill -KILL "$(pgrep -f "trireme train .*$folder " | tail -n 1)"
  begin=$EPOCHREALTIME died=$(steps_of "$folder")
  wait $!
  (($? == 137))
  outcome "kill: the job ends with the code of the killed worker" $? "$folder.log"

  train_on "$gpus" "$folder" "${flags[@]}" --resume_from_checkpoint true &
  wait_for_steps $((died + 1)) "$folder" $!
  end=$EPOCHREALTIME
  wait $!
  outcome "kill: killed after step $died, $(awk "BEGIN { printf \"%.1f\", $end - $begin }") s to the next" \
    $? "$folder.log"
  diff <(print_of "$work/whole") <(print_of "$folder") > "$folder.diff"
  outcome "kill: equal in every bit to the run that nothing disturbed" $? "$folder.diff"
}

sanitizer() {
  local tool
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer \
    /opt/nvidia/nsight-compute/*/host/target-linux-x64/compute-sanitizer 2> /dev/null | head -n 1)
  if [[ -z $tool ]]; then
    echo "SKIPPED memcheck: no compute-sanitizer here"
    skipped=$((skipped + 2))
    return
  fi
  before=("$tool" --tool memcheck --error-exitcode 9 --target-processes all)
  local precision flags
  for precision in f32 bf16; do
    flags=(--max_steps 2 --deterministic true)  # nothing is measured
    [[ $precision == f32 ]] || flags+=(--bf16 true)
    train 1 "$work/memcheck-$precision" "${flags[@]}"
    outcome "memcheck, tiny model, $precision" $? <(grep -A 14 '^=========' \
      "$work/memcheck-$precision.log" | head -n 60)
    cp "$work/memcheck-$precision.log" "$logs/" 2> /dev/null
  done
}

for part in "${parts[@]}"; do
  case $part in
    device) tests device_contract ;;
    ops) tests contract_ops ;;
    golden) tests golden ;;
    equivalence)
      tests equivalence_layouts
      tests equivalence_identity
      ;;
    selftest) selftest ;;
    trace) tests trace_test ;;
    runs) runs ;;
    kill) kill_one ;;
    sanitizer) sanitizer ;;
    *) echo "gpu_check: no part '$part'" >&2; exit 2 ;;
  esac
done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
