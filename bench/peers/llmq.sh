#!/usr/bin/env bash
# Steps of LLM.Q (IST-DASLab/llmq) with random weights and random tokens of sequence 4096.
#
#   bench/peers/llmq.sh BUILD SIZE GPUS MICRO ACCUMULATION STEPS WARM [FLAGS of its train...]
#
# BUILD holds bin/train and lib/ of its build (Release, sm_90a, threads, no MPI, no cuFile; b77d969
# needs no patch with g++ 12 and CUDA 13). Weights, gradients, activations and both moments are bf16 and
# graphs are captured, as in its benchmarks/H100x1.md. Where memory does not suffice, its flags that
# save some are added one by one. The last line is the median of the steps after the first WARM.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
(($# >= 7)) || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
build=$1 size=$2 gpus=$3 micro=$4 accumulation=$5 steps=$6 warm=$7
shift 7
sequence=4096
. "$root/bench/models.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$build/lib:${LD_LIBRARY_PATH:-}
ulimit -c 0

# make_tokens COUNT SEED: a header of 1024 bytes (magic; int32 version, bytes a token, tokens,
# vocabulary, masks), then the tokens as int32.
make_tokens() {
  LC_ALL=C awk -v n="$1" -v seed="$2" -v v=151936 '
    function word(x) {
      printf "%c%c%c%c", x % 256, int(x / 256) % 256, int(x / 65536) % 256, int(x / 16777216)
    }
    BEGIN {
      srand(seed)
      printf "BIN.TOK\n"
      word(2); word(4); word(n); word(v); word(0)
      for (i = 7; i < 256; i++) word(0)
      for (i = 0; i < n; i++) word(int(rand() * v))
    }'
}

# Parts of the logits, as its benchmarks cut them: a quarter at 1.5b, half at 7b, 16k tokens at 3b,
# 32k at 0.5b.
head_chunks() {
  local tokens=$((micro * sequence)) parts
  case $size in
    1.5b) parts=4 ;;
    3b) parts=$(((tokens + 16383) / 16384)) ;;
    0.5b) parts=$(((tokens + 32767) / 32768)) ;;
    *) parts=2 ;;
  esac
  while ((tokens % parts)); do parts=$((parts + 1)); done
  echo "$parts"
}

# The folder of the trained model cannot be made, which ends the run after its last step.
attempt() {
  rm -f "$work/log.json"
  "$build/bin/train" --model="$work/model" --from-scratch --train-file="$work/train.bin" \
    --eval-file="$work/eval.bin" --gpus="$gpus" --batch-size="$micro" \
    --grad-accumulation="$accumulation" --steps="$steps" --seq-len=$sequence --model-dtype=bf16 \
    --matmul-dtype=bf16 --opt-m-dtype=bf16 --opt-v-dtype=bf16 --learning-rate=1e-5 \
    --lmhead-chunks="$(head_chunks)" --ckpt-interval=0 --eval-every-n-steps=0 --log-gpu-util=0 \
    --save-training-state=false --use-cuda-graphs --out-dir=/dev/null/none \
    --log-file="$work/log.json" "$@" > "$work/log.txt" 2>&1 || true
  cat "$work/log.txt"
  sed -n 's/.*"log": "step".*"duration_ms": \([0-9]*\).*/\1/p' "$work/log.json" \
    > "$work/durations" 2> /dev/null || true
  (($(wc -l < "$work/durations") == steps))
}

make_model "$size" "$work/model"
tokens=$(((steps * accumulation * micro * gpus + 2 * gpus + 1) * sequence + 1))
make_tokens $((tokens > 2000000 ? tokens : 2000000)) 1 > "$work/train.bin"
# One sequence: too few for a batch, so that the evaluation at the end does nothing.
make_tokens $((sequence + 1)) 2 > "$work/eval.bin"

savings=(--attn-bwd-chunks=2 --recompute-swiglu --recompute-norm --recompute-ffn)
added=()
until attempt "${added[@]}" "$@"; do
  if ! grep -qE 'OOM when allocating|out of memory|cudaErrorMemoryAllocation' "$work/log.txt" ||
    ((${#added[@]} == ${#savings[@]})); then
    exit 1
  fi
  added=("${savings[@]:0:$((${#added[@]} + 1))}")
done
echo "added flags: ${added[*]:-none}"
tail -n "+$((warm + 1))" "$work/durations" | sort -n |
  awk -v tokens=$((micro * accumulation * sequence)) '
    { a[NR] = $1 }
    END { printf "tokens a second of one GPU: %.0f\n", tokens * 1000 / a[int((NR + 1) / 2)] }'
