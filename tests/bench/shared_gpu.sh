#!/usr/bin/env bash
# Layouts of two ranks that share one GPU, and offload on one rank, against one rank: a small GPT in bf16, 100 steps each, as processes of
# `trireme launch --oversubscribe`. A table on stdout: the last loss, the largest relative difference of the losses, device memory of rank 0
# (what LibTorch's allocator has reserved at most) after step 3 and at the end, host memory (resident set) then, seconds of a step and of the run.
#   tests/bench/shared_gpu.sh [BIN_DIR [WORK_DIR]]        BIN_DIR: folder of the program trireme, default build/bin
# Ends with 1 if a run fails, if losses differ by more than TOLERANCE (default 0.01: bf16 noise; the row `split` shows how much of it another
# split into micro-batches makes on one rank), or if device memory grows after step 3. ROWS="tp2 pp2" chooses rows, STEPS their length.
# LAUNCH=--cpu tries the script without a GPU. About 20 s a row on an H200.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
bin="${1:-$root/build/bin}"
work="${2:-$(mktemp -d)}"
steps="${STEPS:-100}"
tolerance="${TOLERANCE:-0.01}"
launch="${LAUNCH:---oversubscribe}"
[[ "$launch" == --cpu ]] || export CUDA_VISIBLE_DEVICES="$(cut -d, -f1 <<<"${CUDA_VISIBLE_DEVICES:-0}")"
mkdir -p "$work"
cat "$root"/README.md "$root"/ARCHITECTURE.md "$root"/docs/*.md "$root"/docs/errors/*.md >"$work/text.txt"
"$bin/trireme" data build --input "$work/text.txt" --output "$work/tokens" --tokenizer byte >/dev/null 2>&1
cat >"$work/gpt.json" <<'JSON'
{"model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 8, "vocab_size": 257, "n_positions": 512, "activation_function": "gelu_new"}
JSON

config() { # ZERO TP PP MICRO OFFLOAD
  local zero="\"stage\": $1"
  [[ "$5" == none ]] || zero+=", \"offload_optimizer\": {\"device\": \"$5\", \"pin_memory\": true}"
  cat <<JSON
{"train_batch_size": 32, "train_micro_batch_size_per_gpu": $4, "gradient_clipping": 1.0, "bf16": {"enabled": true}, "steps_per_print": 10,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}}, "zero_optimization": {$zero},
 "tensor_parallel": {"tp_size": $2}, "pipeline_parallel": {"pp_size": $3}}
JSON
}

train() { # NAME RANKS
  rm -f "$work/$1.jsonl"
  timeout 300 "$bin/trireme" launch "$launch" --num_gpus "$2" train --deepspeed_config "$work/$1.json" --model_name "$work/gpt.json" \
    --data-path "$work/tokens" --split 100,0,0 --seq-length 256 --train-iters "$steps" --eval-interval 0 --log-json "$work/$1.jsonl" \
    >"$work/$1.log" 2>&1
}

value() { sed -E "s/.*\"$1\": ?([-0-9.e+]+).*/\1/" "$work/$2.jsonl"; }

failed=0
fail() { # NAME REASON
  printf '%-12s FAILED: %s\n' "$1" "$2"
  failed=1
}

report() { # NAME SECONDS
  local step difference three last
  step="$(value seconds "$1" | tail -n +6 | sort -g | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}')"
  difference="$(paste <(value loss "$1") <(value loss one) | awk '{d=$1-$2; if (d<0) d=-d; if (d/$2>most) most=d/$2} END {printf "%.2e", most}')"
  three="$(value memory "$1" | sed -n 3p)"
  last="$(value memory "$1" | tail -1)"
  printf '%-12s %10.5f %12s %12.1f %12.1f %12.1f %12.1f %10.4f %8s\n' "$1" "$(value loss "$1" | tail -1)" "$difference" \
    "$(awk "BEGIN {print $three / 1048576}")" "$(awk "BEGIN {print $last / 1048576}")" \
    "$(value host_memory "$1" | sed -n 3p | awk '{print $1 / 1048576}')" "$(value host_memory "$1" | tail -1 | awk '{print $1 / 1048576}')" "$step" "$2"
  [[ "$(value loss "$1" | wc -l)" == "$steps" ]] || fail "$1" "$(value loss "$1" | wc -l) of $steps steps are there"
  awk "BEGIN {exit !($difference <= $tolerance)}" || fail "$1" "losses differ by $difference from one rank's, more than $tolerance"
  [[ "$launch" == --cpu || "$three" == "$last" ]] || fail "$1" "device memory grew from $three to $last bytes after step 3"
}

run() { # NAME RANKS
  local begin=$SECONDS
  if train "$1" "$2"; then
    report "$1" $((SECONDS - begin))
  else
    fail "$1" "$(grep -m1 -E 'error|signal|hangs' "$work/$1.log" || echo "ended after $((SECONDS - begin)) s; see $work/$1.log")"
  fi
}

all=("split 1 0 1 1 2 none" "tp2 2 0 2 1 4 none" "pp2 2 0 1 2 4 none" "zero1 2 1 1 1 4 none" "zero2 2 2 1 1 4 none" "zero3 2 3 1 1 4 none"
  "tp2_pp2 4 0 2 2 4 none" "offload 1 2 1 1 4 cpu" "offload_dp2 2 2 1 1 4 cpu")
printf '%-12s %10s %12s %12s %12s %12s %12s %10s %8s\n' row loss difference MiB@3 "MiB@$steps" host@3 "host@$steps" step_s run_s
config 0 1 1 4 none >"$work/one.json"
run one 1
[[ $failed == 0 ]] || exit 1
for row in "${all[@]}"; do
  read -r name ranks zero tp pp micro offload <<<"$row"
  [[ -z "${ROWS:-}" || " $ROWS " == *" $name "* ]] || continue
  config "$zero" "$tp" "$pp" "$micro" "$offload" >"$work/$name.json"
  run "$name" "$ranks"
done
exit $failed
