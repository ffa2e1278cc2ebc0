# shellcheck shell=bash
# Sourced by the benchmarks: shapes of the Qwen2.5 models, without their weights. SIZE is 0.5b, 1.5b, 3b,
# 7b, 14b or 32b, and 32b/16 is 16 of its blocks. Reads $sequence, the tokens of a row.

# hidden layers heads kv_heads ffn vocabulary tied
shape_of() {
  local shape
  case ${1%/*} in
    0.5b) shape="896 24 14 2 4864 151936 true" ;;
    1.5b) shape="1536 28 12 2 8960 151936 true" ;;
    3b) shape="2048 36 16 2 11008 151936 true" ;;
    7b) shape="3584 28 28 4 18944 152064 false" ;;
    14b) shape="5120 48 40 8 13824 152064 false" ;;
    32b) shape="5120 64 40 8 27648 152064 false" ;;
    *) echo "no model of size $1" >&2; exit 2 ;;
  esac
  if [[ $1 == */* ]]; then
    awk -v depth="${1#*/}" '{ $2 = depth; print }' <<< "$shape"
  else
    echo "$shape"
  fi
}

# parameters, and FLOP a token in TFLOP
counts_of() {
  shape_of "$1" | awk -v s="$sequence" '{
    h = $1; l = $2; kv = $4 * h / $3; f = $5; v = $6
    block = h * h + h + 2 * (kv * h + kv) + h * h + 3 * h * f + 2 * h
    n = l * block + h + v * h * ($7 == "true" ? 1 : 2)
    printf "%.0f %.9f\n", n, (6 * (n - ($7 == "true" ? 0 : v * h)) + 6 * l * h * s) / 1e12 }'
}

# make_model SIZE FOLDER
make_model() {
  local hidden layers heads kv_heads ffn vocab tied
  read -r hidden layers heads kv_heads ffn vocab tied < <(shape_of "$1")
  mkdir -p "$2"
  cat > "$2/config.json" <<JSON
{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "bos_token_id": 151643,
 "eos_token_id": 151643, "hidden_size": $hidden, "num_hidden_layers": $layers,
 "num_attention_heads": $heads, "num_key_value_heads": $kv_heads, "intermediate_size": $ffn,
 "vocab_size": $vocab, "tie_word_embeddings": $tied,
 "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
 "rope_theta": 1000000.0, "initializer_range": 0.02, "use_sliding_window": false,
 "torch_dtype": "bfloat16"}
JSON
}
