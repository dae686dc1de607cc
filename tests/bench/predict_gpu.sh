#!/usr/bin/env bash
# Predictions against real runs on one GPU: calibrates the machine, trains GPTs of 1.42, 2.78 and 6.86 billion parameters for some steps,
# and compares tokens/s with what `trireme plan --cluster` says. One line a run; ends with 1 if one is off by more than 8 %, or if the
# prediction puts two runs whose tokens/s differ by more than 5 % in the other order.
#   tests/bench/predict_gpu.sh [BIN_DIR [WORK_DIR]]     BIN_DIR: folder of the program trireme, default build/bin
# CLUSTER=FILE takes an earlier calibration; STEPS, RUNS ("1.3b_keep 6.7b_cheap ...") and TOLERANCE (0.08) may be set. Needs one GPU
# of 140 GB (fewer: choose RUNS) that nothing else uses; about four minutes.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
bin="${1:-$root/build/bin}"
work="${2:-$(mktemp -d)}"
steps="${STEPS:-14}"
tolerance="${TOLERANCE:-0.08}"
runs="${RUNS:-1.3b_keep 1.3b_cheap 1.3b_full 2.7b_keep 2.7b_cheap 6.7b_cheap 6.7b_full}"
warm=4
mkdir -p "$work"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"
cat "$root"/README.md "$root"/ARCHITECTURE.md "$root"/docs/*.md >"$work/text.txt"
"$bin/trireme" data build --input "$work/text.txt" --output "$work/tokens" --tokenizer byte >/dev/null 2>&1
cluster="${CLUSTER:-$work/machine.json}"
if [[ -z "${CLUSTER:-}" ]]; then "$bin/trireme" doctor --calibrate --nvme-path "$work" --out "$cluster"; fi

failed=0
rates=""
printf '%-12s %12s %12s %14s %14s %8s\n' run step spread tokens/s predicted ratio
for run in $runs; do
  model="gpt-${run%%_*}"
  case "$run" in 1.3b*) batch=(16 4) ;; 2.7b*) batch=(16 2) ;; *) batch=(8 1) ;; esac
  case "$run" in *_keep) recompute=() ;; *_cheap) recompute=(--recompute-granularity selective) ;; *) recompute=(--recompute-granularity full) ;; esac
  cat >"$work/$run.json" <<JSON
{"train_batch_size": ${batch[0]}, "train_micro_batch_size_per_gpu": ${batch[1]}, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
 "steps_per_print": 1000, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}}}
JSON
  flags=(--model_name "$model" --untie --seq-length 2048 "${recompute[@]}")
  rm -f "$work/$run.jsonl"
  if ! "$bin/trireme" launch --num_gpus 1 --master_port 0 train --deepspeed --deepspeed_config "$work/$run.json" "${flags[@]}" \
    --data-path "$work/tokens" --split 100,0,0 --train-iters "$steps" --eval-interval 0 --log-json "$work/$run.jsonl" >"$work/$run.log" 2>&1; then
    echo "$run failed: $(tail -n 3 "$work/$run.log")"
    failed=1
    continue
  fi
  read -r seconds spread <<<"$(sed -nE 's/.*"seconds": ?([-0-9.e+]+).*/\1/p' "$work/$run.jsonl" | tail -n "+$((warm + 1))" |
    awk '{s += $1; q += $1 * $1} END {m = s / NR; v = q / NR - m * m; printf "%.6f %.4f", m, (v > 0 ? sqrt(v) : 0) / m}')"
  expected="$("$bin/trireme" plan "$work/$run.json" "${flags[@]}" --num_gpus 1 --cluster "$cluster" --json 2>/dev/null |
    sed -nE 's/.*"step_seconds": ?([-0-9.e+]+).*/\1/p' | head -n 1)"
  line="$(awk -v l="$run" -v b="${batch[0]}" -v m="$seconds" -v s="$spread" -v p="$expected" -v t="$tolerance" 'BEGIN {
    ratio = m / p  # of predicted to measured tokens/s
    printf "%-12s %9.1f ms %10.1f %% %14.0f %14.0f %8.3f%s", l, 1e3 * m, 100 * s, b * 2048 / m, b * 2048 / p, ratio,
           (ratio > 1 + t || ratio < 1 - t) ? "  OFF" : ""
  }')"
  echo "$line"
  if [[ "$line" == *OFF ]]; then failed=1; fi
  rates+="$(awk -v l="$run" -v b="${batch[0]}" -v m="$seconds" -v p="$expected" 'BEGIN {print l, b / m, b / p}')"$'\n'
done
awk 'NF == 3 {name[++n] = $1; measured[n] = $2; predicted[n] = $3}
  END {
    for (i = 1; i <= n; ++i)
      for (k = 1; k <= n; ++k)
        if (measured[i] > 1.05 * measured[k]) {
          pairs++
          if (predicted[i] <= predicted[k]) { wrong++; print "order: " name[i] " is faster than " name[k] ", and was predicted slower" }
        }
    printf "order: %d of %d pairs that differ by over 5 %% as predicted\n", pairs - wrong, pairs
    exit wrong > 0
  }' <<<"$rates" || failed=1
exit $failed
