#!/usr/bin/env bash
# Predictions against real runs: calibrates the machine, trains a small GPT in layouts of 2 to 4 CPU ranks (real processes over Gloo),
# and compares the mean step with what `trireme plan --cluster` says. One line a layout; ends with 1 if one is off by more than 15 %.
#   tests/bench/predict_cpu.sh [BIN_DIR [WORK_DIR]]     BIN_DIR: folder of the program trireme, default build/bin
# CLUSTER=FILE takes an earlier calibration; STEPS, LAYOUTS ("dp2_zero1 tp2 ...") and TOLERANCE (0.15) may be set. Needs an idle
# machine: about a minute for the calibration and as long for the runs.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
bin="${1:-$root/build/bin}"
work="${2:-$(mktemp -d)}"
steps="${STEPS:-20}"
tolerance="${TOLERANCE:-0.15}"
layouts="${LAYOUTS:-dp2_zero1 dp2_zero3 tp2 pp2 tp2_pp2 dp4_zero2}"
warm=5
mkdir -p "$work"
cat "$root"/README.md "$root"/ARCHITECTURE.md "$root"/docs/*.md >"$work/text.txt"
"$bin/trireme" data build --input "$work/text.txt" --output "$work/tokens" --tokenizer byte >/dev/null 2>&1
cluster="${CLUSTER:-$work/machine.json}"
if [[ -z "${CLUSTER:-}" ]]; then "$bin/trireme" doctor --calibrate --device cpu --nvme-path "$work" --out "$cluster"; fi
model=(--num-layers 4 --hidden-size 256 --num-attention-heads 4 --vocab-size 257 --seq-length 128)

config() { # ZERO TP PP
  cat <<JSON
{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "steps_per_print": 1000,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}}, "zero_optimization": {"stage": $1},
 "tensor_parallel": {"tp_size": $2}, "pipeline_parallel": {"pp_size": $3}}
JSON
}

measured() { # NAME RANKS: mean seconds of a step after the first few
  rm -f "$work/$1.jsonl"
  "$bin/trireme" launch --bind_cores_to_rank --cpu --num_gpus "$2" --master_port 0 train --deepspeed --deepspeed_config "$work/$1.json" "${model[@]}" \
    --data-path "$work/tokens" --split 100,0,0 --train-iters "$steps" --eval-interval 0 --log-json "$work/$1.jsonl" >"$work/$1.log" 2>&1
  sed -nE 's/.*"seconds": ?([-0-9.e+]+).*/\1/p' "$work/$1.jsonl" | tail -n "+$((warm + 1))" |
    awk '{s += $1; q += $1 * $1} END {m = s / NR; v = q / NR - m * m; printf "%.6f %.3f", m, (v > 0 ? sqrt(v) : 0) / m}'
}

predicted() { # NAME RANKS
  "$bin/trireme" plan "$work/$1.json" "${model[@]}" --num_gpus "$2" --cluster "$cluster" --json 2>/dev/null |
    sed -nE 's/.*"step_seconds": ?([-0-9.e+]+).*/\1/p' | head -n 1
}

failed=0
printf '%-12s %5s %12s %8s %12s %8s\n' layout ranks measured spread predicted ratio
for layout in $layouts; do
  case "$layout" in
    dp2_zero0) shape="0 1 1 2" ;; dp2_zero1) shape="1 1 1 2" ;; dp2_zero2) shape="2 1 1 2" ;; dp2_zero3) shape="3 1 1 2" ;;
    tp2) shape="0 2 1 2" ;; pp2) shape="0 1 2 2" ;; tp2_pp2) shape="0 2 2 4" ;; dp4_zero2) shape="2 1 1 4" ;; dp4_zero1) shape="1 1 1 4" ;;
    dp2_pp2) shape="1 1 2 4" ;; tp2_dp2) shape="1 2 1 4" ;; *) echo "no such layout: $layout" >&2; exit 2 ;;
  esac
  read -r zero tp pp ranks <<<"$shape"
  config "$zero" "$tp" "$pp" >"$work/$layout.json"
  read -r seconds spread <<<"$(measured "$layout" "$ranks")"
  expected="$(predicted "$layout" "$ranks")"
  line="$(awk -v l="$layout" -v r="$ranks" -v m="$seconds" -v s="$spread" -v p="$expected" -v t="$tolerance" 'BEGIN {
    ratio = p / m
    printf "%-12s %5d %9.1f ms %6.1f %% %9.1f ms %8.3f%s", l, r, 1e3 * m, 100 * s, 1e3 * p, ratio, (ratio > 1 + t || ratio < 1 - t) ? "  OFF" : ""
  }')"
  echo "$line"
  if [[ "$line" == *OFF ]]; then failed=1; fi
done
exit $failed
