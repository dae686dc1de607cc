#!/usr/bin/env bash
# Every layout of two GPUs over NCCL against one GPU: a small GPT and a small LLaMA, 30 steps each. One JSON line a row on stdout:
# the largest relative difference of the losses, and the median time of a step.
#   tests/bench/two_gpus.sh [BIN_DIR [WORK_DIR]]        BIN_DIR: folder of the program trireme, default build/bin
# The rate is low enough that the run is stable: at 1e-3 the GPT's loss rises now and then, and magnifies rounding a thousandfold.
# TYPES="fp32 fp64 bf16" and MODELS="gpt llama" choose what runs. Needs two GPUs; about 4 s a row.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
bin="${1:-$root/build/bin}"
work="${2:-$(mktemp -d)}"
types="${TYPES:-fp32 fp64 bf16}"
models="${MODELS:-gpt llama}"
steps=30
mkdir -p "$work"
cat "$root"/README.md "$root"/ARCHITECTURE.md "$root"/docs/*.md "$root"/docs/errors/*.md >"$work/text.txt"
"$bin/trireme" data build --input "$work/text.txt" --output "$work/tokens" --tokenizer byte >/dev/null 2>&1
cat >"$work/llama.json" <<'JSON'
{"model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
 "vocab_size": 257, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"}
JSON
cat >"$work/gpt.json" <<'JSON'
{"model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 8, "vocab_size": 257, "n_positions": 512, "activation_function": "gelu_new"}
JSON

config() { # ZERO TP PP VIRTUAL SCHEDULE SEQUENCE TYPE
  local bf16=false
  [[ "$7" == bf16 ]] && bf16=true
  cat <<JSON
{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "bf16": {"enabled": $bf16}, "steps_per_print": 1000,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}}, "zero_optimization": {"stage": $1},
 "tensor_parallel": {"tp_size": $2}, "pipeline_parallel": {"pp_size": $3},
 "trireme": {"sequence_parallel": $6, "pipeline": {"virtual_stages": $4, "schedule": "$5"}}}
JSON
}

train() { # NAME GPUS MODEL TYPE
  local flags=()
  [[ "$4" == fp64 ]] && flags+=(--fp64)
  rm -f "$work/$1.jsonl"
  "$bin/trireme" launch --num_gpus "$2" train --deepspeed --deepspeed_config "$work/$1.json" --model_name "$work/$3.json" \
    --data-path "$work/tokens" --split 100,0,0 --seq-length 256 --train-iters $steps --eval-interval 0 --log-json "$work/$1.jsonl" \
    "${flags[@]}" >"$work/$1.log" 2>&1
}

value() { sed -E "s/.*\"$1\": ?([-0-9.e+]+).*/\1/" "$2"; }

compare() { # NAME REFERENCE MODEL TYPE
  local seconds
  seconds="$(value seconds "$work/$1.jsonl" | tail -n +6 | sort -g | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}')"
  paste <(value loss "$work/$1.jsonl") <(value loss "$work/$2.jsonl") | awk -v name="$1" -v model="$3" -v type="$4" -v seconds="$seconds" '
    {d=$1-$2; if (d<0) d=-d; r=d/$2; if (r>most) most=r; last=$1; n+=1}
    END {printf "{\"row\": \"%s\", \"model\": \"%s\", \"type\": \"%s\", \"steps\": %d, \"loss\": %s, \"difference\": %.3g, \"step_seconds\": %s}\n",
         name, model, type, n, last, most, seconds}'
}

rows=("zero0 0 1 1 1 1f1b false" "zero1 1 1 1 1 1f1b false" "zero2 2 1 1 1 1f1b false" "zero3 3 1 1 1 1f1b false"
  "tp2 0 2 1 1 1f1b false" "tp2_sequence 0 2 1 1 1f1b true" "pp2 0 1 2 1 1f1b false" "pp2_interleaved 0 1 2 2 1f1b false"
  "pp2_zero_bubble 0 1 2 1 zero-bubble false")
failed=0
for model in $models; do
  for type in $types; do
    one="one_${model}_$type"
    config 0 1 1 1 1f1b false "$type" >"$work/$one.json"
    train "$one" 1 "$model" "$type" || { tail -5 "$work/$one.log" >&2; exit 1; }
    for row in "${rows[@]}"; do
      read -r name zero tp pp virtual schedule sequence <<<"$row"
      name="${name}_${model}_$type"
      config "$zero" "$tp" "$pp" "$virtual" "$schedule" "$sequence" "$type" >"$work/$name.json"
      if train "$name" 2 "$model" "$type"; then
        compare "$name" "$one" "$model" "$type"
      else
        failed=1
        printf '{"row": "%s", "failed": "%s"}\n' "$name" "$(grep -m1 error "$work/$name.log" | tr -d '"' | head -c 200)"
      fi
    done
  done
done
exit $failed
