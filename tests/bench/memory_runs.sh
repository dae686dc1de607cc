#!/usr/bin/env bash
# Memory and step time of eleven runs on one GPU, predicted and measured: 1.42, 2.78 and 6.86 billion parameters in bf16, with kept, cheap and whole
# recomputation, offload, and ranks that share the GPU. One JSON line a row on stdout, a table on stderr at the end.
#   tests/bench/memory_runs.sh [BIN_DIR [WORK_DIR]]        BIN_DIR: folder of the program trireme, default build/bin
# predicted_gib: what the plans of all ranks of the row add up to, with their contexts. measured_gib: the most that the driver said was taken
# (nvidia-smi, ten times a second) less what was taken before; without nvidia-smi what the ranks measured themselves. A row is `within` if they differ by
# at most the larger of 3 % and 1 GiB. predicted_step_s: `trireme plan --cluster`, for rows of one rank; step_s: the median after the second step.
# CLUSTER: a description of this machine (`trireme doctor --calibrate` writes one), default h200-pair. ROWS="keep offload" chooses rows, STEPS their
# length, BUDGET_S (default 360) how long all may take: rows that would begin later are skipped. TINY=1 LAUNCH=--cpu tries the script without a GPU.
# Ends with 1 if a row fails or is not within. About 5 minutes on an H200 with 126 GiB of host memory.
set -uo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
bin="${1:-$root/build/bin}"
work="${2:-$(mktemp -d)}"
steps="${STEPS:-6}"
cluster="${CLUSTER:-h200-pair}"
launch="${LAUNCH:---oversubscribe}"
budget="${BUDGET_S:-360}"
[[ "$launch" == --cpu ]] || export CUDA_VISIBLE_DEVICES="$(cut -d, -f1 <<<"${CUDA_VISIBLE_DEVICES:-0}")"
mkdir -p "$work"
cat "$root"/README.md "$root"/ARCHITECTURE.md "$root"/docs/*.md "$root"/docs/errors/*.md >"$work/text.txt"
"$bin/trireme" data build --input "$work/text.txt" --output "$work/tokens" --tokenizer byte >"$work/data.log" 2>&1 || { cat "$work/data.log" >&2; exit 1; }

model_words() { # NAME
  if [[ "${TINY:-}" == 1 ]]; then
    echo "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 512 --max-position-embeddings 1024 --untie"
    return
  fi
  case "$1" in
    1.42B) echo "--model_name gpt-1.3b --untie" ;;
    2.78B) echo "--model_name gpt-2.7b --untie" ;;
    6.86B) echo "--model_name gpt-6.7b --untie" ;;
  esac
}

config() { # RANKS ZERO TP MICRO RECOMPUTE OFFLOAD
  local zero="\"stage\": $2" recompute=""
  [[ "$6" == none ]] || zero+=", \"offload_optimizer\": {\"device\": \"$6\", \"pin_memory\": true}"
  [[ "$5" == none ]] || recompute=", \"trireme\": {\"recompute\": \"$5\"}"
  cat <<JSON
{"train_micro_batch_size_per_gpu": $4, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "bf16": {"enabled": true}, "steps_per_print": 1,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}}, "zero_optimization": {$zero},
 "tensor_parallel": {"tp_size": $3}$recompute}
JSON
}

used_mib() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --id="${CUDA_VISIBLE_DEVICES:-0}" 2>/dev/null | head -1; }

# The figure that stands after "NAME": in the part of the account that begins with PART.
account() { # FILE PART NAME
  tail -1 "$1" | sed -E "s/.*\"$2\": \{([^}]*)\}.*/\1/" | grep -oE "\"$3\": [0-9]+" | head -1 | grep -oE "[0-9]+$"
}
value() { sed -E "s/.*\"$1\": ?([-0-9.e+]+).*/\1/" "$2"; }

failed=0
table=""
run() { # NAME MODEL RANKS ZERO TP MICRO RECOMPUTE OFFLOAD STEPS
  local name="$1" ranks="$3" json="$work/$1.jsonl" log="$work/$1.log" begin=$SECONDS before sampler=0 words
  words="$(model_words "$2")"
  config "$3" "$4" "$5" "$6" "$7" "$8" >"$work/$name.json"
  rm -f "$json"
  before="$(used_mib || true)"
  : >"$work/$name.used"
  if [[ "$launch" != --cpu && -n "$before" ]]; then
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --id="$CUDA_VISIBLE_DEVICES" --loop-ms=100 >"$work/$name.used" 2>/dev/null &
    sampler=$!
  fi
  # shellcheck disable=SC2086
  timeout "${TIMEOUT:-120}" "$bin/trireme" launch "$launch" --num_gpus "$ranks" train --deepspeed_config "$work/$name.json" $words \
    --data-path "$work/tokens" --split 100,0,0 --seq-length 1024 --train-iters "$9" --eval-interval 0 --log-json "$json" >"$log" 2>&1
  local code=$?
  [[ $sampler == 0 ]] || { kill $sampler; wait $sampler 2>/dev/null; }
  if [[ $code != 0 || ! -s "$json" || "$(wc -l <"$json")" != "$9" ]]; then
    failed=1
    printf '{"row": "%s", "failed": "exit code %s after %s s: %s"}\n' "$name" "$code" $((SECONDS - begin)) \
      "$(grep -m1 -E 'error|signal|hangs' "$log" | tr -d '"\\' | head -c 300)"
    return
  fi
  local planned own measured reserved step predicted_step="null" source
  planned="$(account "$json" planned total)"
  own="$(account "$json" measured total)"
  reserved="$(account "$json" measured reserved_peak)"
  if [[ -s "$work/$name.used" ]]; then
    measured="$(sort -g "$work/$name.used" | tail -1 | awk -v before="$before" '{printf "%.0f", ($1 - before) * 1048576}')"
    source=driver
  else
    measured="$(awk "BEGIN {printf \"%.0f\", $own * $ranks}")"
    source=process
  fi
  step="$(value seconds "$json" | tail -n +3 | sort -g | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}')"
  if [[ "$ranks" == 1 ]]; then
    # shellcheck disable=SC2086
    predicted_step="$("$bin/trireme" plan "$work/$name.json" $words --num_gpus 1 --seq-length 1024 --cluster "$cluster" 2>"$work/$name.plan" |
      sed -nE 's/.*a step takes ([0-9.e+-]+) s.*/\1/p' | head -1)"
    [[ -n "$predicted_step" ]] || predicted_step=null
  fi
  local line
  line="$(awk -v name="$name" -v model="$2" -v ranks="$ranks" -v zero="$4" -v micro="$6" -v recompute="$7" -v offload="$8" -v planned="$planned" \
    -v measured="$measured" -v reserved="$reserved" -v source="$source" -v step="$step" -v predicted="$predicted_step" -v seconds=$((SECONDS - begin)) 'BEGIN {
    g = 1073741824; p = planned * ranks / g; m = measured / g; d = p - m; if (d < 0) d = -d; limit = 0.03 * m > 1 ? 0.03 * m : 1;
    printf "{\"row\": \"%s\", \"model\": \"%s\", \"ranks\": %d, \"zero\": %d, \"micro_batch\": %d, \"recompute\": \"%s\", \"offload\": \"%s\", ", name, model, ranks, zero, micro, recompute, offload;
    printf "\"predicted_gib\": %.2f, \"measured_gib\": %.2f, \"measured_by\": \"%s\", \"reserved_gib_a_rank\": %.2f, \"difference_gib\": %.2f, \"within\": %s, ", p, m, source, reserved / g, p - m, d <= limit ? "true" : "false";
    printf "\"predicted_step_s\": %s, \"step_s\": %s, \"step_ratio\": %s, \"run_s\": %d}\n", predicted, step, predicted == "null" ? "null" : sprintf("%.3f", predicted / step), seconds}')"
  printf '%s\n' "$line"
  [[ "$line" == *'"within": true'* ]] || failed=1
  table+="$line"$'\n'
}

# name model ranks zero tp micro recompute offload; rows that exchange gradients through the host take fewer steps.
all=("keep 1.42B 1 0 1 8 none none $steps" "cheap 1.42B 1 0 1 16 cheap none $steps" "full 1.42B 1 0 1 16 full none $steps"
  "keep_2.78B 2.78B 1 0 1 4 none none $steps" "full_2.78B 2.78B 1 0 1 16 full none $steps" "full_6.86B 6.86B 1 0 1 2 full none $steps"
  "offload 2.78B 1 2 1 8 none cpu $steps" "zero1_dp2 1.42B 2 1 1 4 none none 3" "zero2_dp2 1.42B 2 2 1 4 none none 3"
  "zero3_dp2 1.42B 2 3 1 4 full none 3" "tp2 1.42B 2 0 2 4 none none 3")
for row in "${all[@]}"; do
  read -r name rest <<<"$row"
  [[ -z "${ROWS:-}" || " $ROWS " == *" $name "* ]] || continue
  if ((SECONDS > budget)); then
    printf '{"row": "%s", "skipped": "%s s are over"}\n' "$name" "$budget"
    continue
  fi
  # shellcheck disable=SC2086
  run "$name" $rest
done
{
  printf '%-12s %10s %10s %10s %8s %12s %10s %7s\n' row predicted measured reserved within predicted_s step_s ratio
  sed -nE 's/.*"row": "([^"]*)".*"predicted_gib": ([^,]*), "measured_gib": ([^,]*),.*"reserved_gib_a_rank": ([^,]*),.*"within": ([^,]*), "predicted_step_s": ([^,]*), "step_s": ([^,]*), "step_ratio": ([^,]*),.*/\1 \2 \3 \4 \5 \6 \7 \8/p' <<<"$table" |
    awk '{printf "%-12s %10s %10s %10s %8s %12s %10s %7s\n", $1, $2, $3, $4, $5, $6, $7, $8}'
} >&2
exit $failed
