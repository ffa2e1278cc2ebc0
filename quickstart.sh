#!/usr/bin/env bash
# From nothing to a trained model on a fresh Debian 12 machine: installs what is missing, builds,
# trains a small Qwen2 model with random weights on the King James Bible under ZeRO-3 on two CPU
# processes, resumes it once, and shows the Hugging Face folder it gives back.
# Run again it does only what is left to do; `./quickstart.sh --again` trains anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

trireme=build/release/trireme
work=build/quickstart
model=examples/tiny_qwen2
run=$work/run
first_steps=60
all_steps=120

say() { printf '\n==> %s\n' "$*"; }

install_and_build() {
  tools/setup --without-launchers
  cmake --preset release >"$work/configure.log" || {
    cat "$work/configure.log" >&2
    return 1
  }
  cmake --build --preset release --target trireme
}

# Rows of whole verses of one chapter, at most 700 characters; every fiftieth row is held out.
# The text has neither quotation marks nor backslashes, so a row needs no escapes.
make_data() {
  [[ -s $work/train.jsonl && -s $work/eval.jsonl ]] && return
  tools/setup bible-kjv
  bible -f Gen1:1-Rev22:21 </dev/null | LC_ALL=C awk -v train="$work/train.jsonl.tmp" -v heldout="$work/eval.jsonl.tmp" '
    function flush_row() {
      if (row == "") return
      printf "{\"text\": \"%s\"}\n", row > (++num_rows % 50 == 0 ? heldout : train)
      row = ""
    }
    {
      chapter = $1
      sub(/:.*/, "", chapter)
      verse = substr($0, length($1) + 2)
      if (chapter != last || length(row) + length(verse) >= 700) flush_row()
      row = row (row == "" ? "" : " ") verse
      last = chapter
    }
    END { flush_row() }'
  mv "$work/eval.jsonl.tmp" "$work/eval.jsonl"
  mv "$work/train.jsonl.tmp" "$work/train.jsonl"
}

# train STEPS [FLAG VALUE]...
train() {
  local steps=$1
  shift
  local command=("$trireme" launch --nproc_per_node 2 -- train
    --model_name_or_path "$model" --init_from_config true
    --data_path "$work/train.jsonl" --eval_path "$work/eval.jsonl" --output_dir "$run"
    --zero_stage 3 --per_device_train_batch_size 4 --gradient_accumulation_steps 2
    --learning_rate 3e-3 --lr_scheduler_type constant_with_warmup --warmup_steps 10
    --weight_decay 0.1 --max_steps "$steps" --logging_steps 10
    --save_strategy steps --save_steps 30 --save_total_limit 2
    --eval_strategy steps --eval_steps 60 --seed 42 "$@")
  printf '%q ' "${command[@]}"
  printf '\n\n'
  "${command[@]}"
}

show_losses() {
  awk -F'[:,] ' '
    /"loss"/ { loss[++n] = $6; step[n] = $2 }
    END { for (i = 1; i <= n; i += 17) printf "  step %3d  loss %.3f\n", step[i], loss[i] }
  ' "$run/metrics.jsonl"
}

[[ ${1:-} != --again ]] || rm -rf "$run"
mkdir -p "$work"

say "Installing what is missing and building (the first time takes some minutes)"
install_and_build
say "Text and model"
make_data
wc -l "$work"/{train,eval}.jsonl
echo "$model: $(tr -d ' \n' <"$model/config.json" | cut -c1-100)..."

if [[ -f $run/model.safetensors && -d $run/checkpoint-$all_steps ]]; then
  say "This run is complete already; ./quickstart.sh --again trains anew"
else
  if ! compgen -G "$run/checkpoint-*" >/dev/null; then
    say "Training $first_steps steps: 2 processes, ZeRO-3"
    train "$first_steps"
  fi
  say "Resuming from the last checkpoint up to step $all_steps"
  train "$all_steps" --resume_from_checkpoint true
fi

say "The loss of every 17th step of both runs ($run/metrics.jsonl)"
show_losses
say "A Hugging Face model folder: $run"
ls -l "$run"
say "What to type next"
cat <<NEXT
  your model, your data ({"text": ...}, {"prompt": ..., "completion": ...} or {"input_ids": ..., "labels": ...} a line):
    $trireme launch --nproc_per_node 2 -- train --model_name_or_path YOUR_MODEL_FOLDER \\
        --data_path YOUR.jsonl --output_dir out --zero_stage 3
  what memory that would take on eight ranks, without starting any:
    $trireme plan --world_size 8 --zero_stage 3 --model_name_or_path YOUR_MODEL_FOLDER \\
        --data_path YOUR.jsonl
  one rank's step as a program: add --print-program
  every flag: $trireme train --help, docs/configuration.md
NEXT
