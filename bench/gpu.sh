#!/usr/bin/env bash
# Tokens a second on this machine's GPUs, ours beside the peers (bench/peers/torch_fsdp2.py, LLM.Q), in
# one run, with random weights and random tokens of sequence 4096 and equal micro-batch and
# accumulation.
#
#   bench/gpu.sh [BUNDLE]           BUNDLE: folder or archive made by the target `bundle`
#
# Environment:
#   CASES   lines "SIZE GPUS MICRO ACCUMULATION ZERO RECOMPUTE [PEER [FLAGS...]]"; SIZE: 0.5b, 1.5b,
#           3b, 7b, 14b or 32b, and 32b/16 is 16 of its blocks; PEER: none | full (its activation
#           checkpointing) | skip; FLAGS: of `trireme train`, such as --tensor_parallel_size 2.
#           Default: what fits the GPUs that are here.
#   NODE    4 or 8: the cases of a full node of so many GPUs instead (bench/node_cases.sh)
#   PLAN    1: only the planned memory of each case; needs no GPU
#   STEPS   measured steps (5); WARM steps before them (3)
#   OUT     where logs, metrics and the table go (a temporary folder)
#   CACHE   folder of measured algorithms (a temporary one: the first case of a size measures them,
#           which its start shows)
#   EXTRA   further flags of `trireme train`; the files of --profile_steps are kept in OUT, and fill
#           the column `idle`: the share of the traced time in which no operation ran on the compute
#           stream, of the rank that has most of it: exposed communication, and a pipeline's bubble
#   LLMQ    LLM.Q, the native trainer: a folder of its build (bench/peers/llmq.sh), for the cases of
#           data ranks alone
# The table gives the median step, and the seconds from the start of our process to the end of its
# first step; FLOP a token = 6 N (without an untied input embedding) + 6 layers hidden sequence. Memory
# is of rank 0, in GiB: planned, and after the first step, both with context and libraries.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bundle=${1:-$root/build/release/bundle}
steps=${STEPS:-5}
warm=${WARM:-3}
sequence=4096
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${OUT:-$work/out}
mkdir -p "$out"

. "$root/tools/open_bundle.sh"
. "$root/bench/models.sh"
bundle=$(open_bundle "$bundle" "$work/bundle")
trireme=$bundle/bin/trireme
gpus=$(count_gpus || true)

default_cases() {
  echo "0.5b 1 8 1 0 none none"
  echo "1.5b 1 4 1 0 none none"
  echo "3b   1 2 1 0 none none"
  echo "7b   1 2 8 0 activation skip"
  ((gpus < 2)) || echo "7b   2 2 1 3 none none"
}
if [[ -n ${NODE:-} ]]; then
  cases=$("$root/bench/node_cases.sh" "$NODE")
else
  cases=${CASES:-$(default_cases)}
fi

# Rows of random tokens that every vocabulary has.
make_data() {
  awk -v rows="$1" -v length_=$sequence 'BEGIN {
    srand(1)
    for (r = 0; r < rows; r++) {
      printf "{\"input_ids\":["
      for (i = 0; i < length_; i++) printf "%s%d", i ? "," : "", int(rand() * 151936)
      print "]}"
    } }' > "$work/tokens-$1.jsonl"
}

# Runs the command in a process group of its own until metrics.jsonl has the steps, then ends it: the
# export of a model is not what is measured.
run_until_steps() {
  local metrics=$1 wanted=$2 log=$3 begin=$EPOCHREALTIME first='' pid
  shift 3
  setsid "$@" > "$log" 2>&1 &
  pid=$!
  # Whatever ends this script ends the run as well.
  (while kill -0 $$ && kill -0 "$pid"; do sleep 0.5; done; kill -KILL -- "-$pid") 2> /dev/null &
  while kill -0 "$pid" 2> /dev/null; do
    if [[ -z $first && -s $metrics ]]; then
      first=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
      echo "$first" > "${log%.log}.start"
    fi
    if [[ -f $metrics ]] && (($(wc -l < "$metrics") >= wanted)); then
      kill -KILL -- "-$pid" 2> /dev/null || true
    fi
    sleep 0.2
  done
  wait "$pid" 2> /dev/null || true
  sleep 2  # ranks of a launcher end after it, and give their memory back
  [[ -f $metrics ]] && (($(wc -l < "$metrics") >= wanted))
}

# Median of the step seconds after the warm-up.
median_step() {
  tail -n "+$((warm + 1))" "$1" | sed -n 's/.*"step_seconds": \([0-9.e+-]*\).*/\1/p' | sort -g |
    awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'
}

# GPUs that share one copy of the model under these flags.
gpus_a_copy() {
  local copy=1
  while (($# > 1)); do
    case $1 in
      --tensor_parallel_size | --pipeline_parallel_size) copy=$((copy * $2)) ;;
    esac
    shift
  done
  echo "$copy"
}

# What of a case `trireme train` and `trireme plan` have in common.
flags_of() {
  local size=$1 micro=$2 accumulation=$3 zero=$4 recompute=$5 model=$work/model-${1/\//-}
  make_model "$size" "$model"
  echo "--device cuda --model_name_or_path $model --init_from_config true" \
    "--max_seq_length $sequence --per_device_train_batch_size $micro" \
    "--gradient_accumulation_steps $accumulation --max_steps $((warm + steps)) --bf16 true" \
    "--zero_stage $zero --recompute $recompute"
}

ours() {
  local size=$1 num=$2 micro=$3 accumulation=$4 zero=$5 recompute=$6 name=$7 flags=$8
  local rows=$((micro * accumulation * num > 32 ? micro * accumulation * num : 32))
  [[ -f $work/tokens-$rows.jsonl ]] || make_data "$rows"
  local command=("$trireme")
  ((num == 1)) || command+=(launch --nproc_per_node "$num" --)
  # shellcheck disable=SC2206,SC2207
  command+=(train $(flags_of "$size" "$micro" "$accumulation" "$zero" "$recompute")
    --data_path "$work/tokens-$rows.jsonl" --output_dir "$work/run-$name" --learning_rate 1e-5
    --lr_scheduler_type constant --save_strategy no --logging_steps 1
    --algorithm_cache "${CACHE:-$work/algorithms}" ${EXTRA:-} $flags)
  echo "${command[*]}" > "$out/$name.command"
  if run_until_steps "$work/run-$name/metrics.jsonl" $((warm + steps)) "$out/$name.log" \
    "${command[@]}"; then
    cp "$work/run-$name/metrics.jsonl" "$out/$name.metrics.jsonl"
    for trace in "$work/run-$name"/trace_rank*.json; do
      [[ ! -f $trace ]] || cp "$trace" "$out/$name.$(basename "$trace")"
    done
    median_step "$work/run-$name/metrics.jsonl"
  fi
}

peer() {
  local size=$1 num=$2 micro=$3 accumulation=$4 checkpointing=$5 name=$6
  [[ $checkpointing != skip ]] || return 0
  python3 -m torch.distributed.run --nproc_per_node "$num" "$root/bench/peers/torch_fsdp2.py" --size "$size" \
    --seq $sequence --micro "$micro" --accum "$accumulation" --ac "$checkpointing" \
    --warm "$warm" --steps "$steps" > "$out/$name.peer.log" 2>&1 || true
  sed -n 's/^RESULT .*"step_s": \([0-9.]*\).*/\1/p' "$out/$name.peer.log"
}

# Tokens a second of one GPU.
llmq() {
  local name=$5
  "$root/bench/peers/llmq.sh" "$LLMQ" "$1" "$2" "$3" "$4" $((warm + steps)) "$warm" \
    > "$out/$name.llmq.log" 2>&1 || true
  sed -n 's/^tokens a second of one GPU: //p' "$out/$name.llmq.log"
}

# GiB that the table in a log plans for the device.
planned_memory() {
  awk '$1 == "total" && $2 == "device" { gsub(",", "", $3); printf "%.1f", $3 / 2^30; exit }' "$1"
}

# GiB in use after the first step: "GPU memory: 7.5 GiB of arenas, ...; 512.0 MiB of context ..."
used_memory() {
  awk '/GPU memory: .* of arenas/ {
    unit["KiB"] = 2^-20; unit["MiB"] = 2^-10; unit["GiB"] = 1
    for (i = 2; i < NF; i++) if ($(i + 1) == "of") sum += $(i - 1) * unit[$i]
    printf "%.1f", sum
    exit }' "$1"
}

# The largest share of a trace that the compute stream spent without an operation, in per cent.
idle_share() {
  local trace
  for trace in "$out/$1".trace_rank*.json; do
    [[ ! -f $trace ]] || "$root/bench/trace_table.sh" "$trace"
  done | sed -n 's/.*outside of operations .* (\(.*\)%)$/\1/p' | sort -g | tail -n 1
}

# The planned memory of each case. Of pipelines the fullest stage counts, which `plan` shows one by
# one; --rank R is a rank of each.
plan_cases() {
  local size num micro accumulation zero recompute flags most rank planned
  while read -r size num micro accumulation zero recompute _ flags; do
    [[ -n $size ]] || continue
    most=0
    for ((rank = 0; rank < num; rank++)); do
      # shellcheck disable=SC2046,SC2086
      "$trireme" plan --world_size "$num" --rank "$rank" \
        $(flags_of "$size" "$micro" "$accumulation" "$zero" "$recompute") ${EXTRA:-} $flags \
        > "$work/plan.txt" || return
      planned=$(planned_memory "$work/plan.txt")
      most=$(awk -v a="$most" -v b="$planned" 'BEGIN { print (a > b ? a : b) }')
    done
    printf '%-6s %4d %5d %5d %4d %-17s %6.1f GiB  %s\n' "$size" "$num" "$micro" "$accumulation" \
      "$zero" "$recompute" "$most" "$flags"
  done <<< "$cases"
}

if [[ -n ${PLAN:-} ]]; then
  plan_cases
  exit
fi
((gpus > 0)) || { echo "gpu.sh: no GPU on this machine" >&2; exit 2; }
{
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sort | uniq -c
  printf '%-6s %4s %5s %5s %4s %-17s %7s %8s %7s %6s %6s %6s %10s %7s %5s %10s %5s\n' model gpus \
    micro accum zero recompute 'start s' 'tokens/s' 'TFLOP/s' planned used idle% 'peer tok/s' \
    'TFLOP/s' ratio 'LLM.Q' ratio
} | tee "$out/table.txt"
while read -r size num micro accumulation zero recompute checkpointing flags; do
  [[ -n $size ]] || continue
  if ((num > gpus)); then
    echo "$size on $num GPUs: only $gpus here" | tee -a "$out/table.txt"
    continue
  fi
  name=${size/\//-}-g$num-m$micro-a$accumulation-z$zero-$recompute${flags:+-$(tr -dc 'a-z0-9' <<< "$flags")}
  # shellcheck disable=SC2086
  copy=$(gpus_a_copy $flags)
  read -r _ tera < <(counts_of "$size")
  mine=$(ours "$size" "$num" "$micro" "$accumulation" "$zero" "$recompute" "$name" "$flags" || true)
  theirs=$(peer "$size" "$num" "$micro" "$accumulation" "${checkpointing:-none}" "$name" || true)
  native=
  if [[ -n ${LLMQ:-} ]] && ((copy == 1)); then
    native=$(llmq "$size" "$num" "$micro" "$accumulation" "$name" || true)
  fi
  rm -rf "$work/run-$name"
  awk -v size="$size" -v g="$num" -v m="$micro" -v a="$accumulation" -v z="$zero" \
    -v r="$recompute" -v mine="${mine:-0}" -v theirs="${theirs:-0}" -v native="${native:-0}" \
    -v tera="$tera" -v s=$sequence -v copy="$copy" \
    -v start="$(cat "$out/$name.start" 2> /dev/null || echo -)" \
    -v planned="$(planned_memory "$out/$name.log")" -v used="$(used_memory "$out/$name.log")" \
    -v idle="$(idle_share "$name")" '
    function ratio(peer) { return (own > 0 && peer > 0) ? sprintf("%.2f", own / peer) : "-" }
    function known(text) { return text == "" ? "-" : text }
    BEGIN {
      tokens = m * a * s / copy
      own = mine > 0 ? tokens / mine : 0
      peer = theirs > 0 ? tokens / theirs : 0
      printf "%-6s %4d %5d %5d %4d %-17s %7s %8.0f %7.1f %6s %6s %6s %10.0f %7.1f %5s %10.0f %5s\n",
        size, g, m, a, z, r, start, own, own * tera, known(planned), known(used), known(idle), peer,
        peer * tera, ratio(peer), native, ratio(native) }' | tee -a "$out/table.txt"
  [[ -z $flags ]] || echo "       $flags" | tee -a "$out/table.txt"
  # A run that gave no figure says why.
  [[ -n $mine ]] || tail -n 5 "$out/$name.log" | sed 's/^/    ours: /' | tee -a "$out/table.txt"
done <<< "$cases"
echo "tokens/s and TFLOP/s are of one GPU; 0: no figure, see $out"
