#!/usr/bin/env bash
# "trireme": {"fill": true} on one GPU that is made smaller: what was chosen, planned and measured memory, the step, and whether the losses are
# those of the run that keeps everything. LibTorch's allocator gets no more than each row grants, so a row that ends has fitted.
#   tests/bench/fill_gpu.sh [BIN_DIR [WORK_DIR]]        BIN_DIR: folder of the program trireme, default build/bin
# MODEL (gpt-1.3b), SEQ (1024), MICRO (8), STEPS (12) and ROWS (GiB, "60 40 30 24 18") may be set; DEVICE=cpu tries the script. The first
# row, `all`, grants the whole device. Ends with 1 if a run fails or losses differ by more than TOLERANCE (1e-3: an update on the CPU rounds
# otherwise than the GPU's). About 30 s a row on an H200.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
bin="${1:-$root/build/bin}"
work="${2:-$(mktemp -d)}"
model="${MODEL:-gpt-1.3b}" seq="${SEQ:-1024}" micro="${MICRO:-8}" steps="${STEPS:-12}" tolerance="${TOLERANCE:-1e-3}"
mkdir -p "$work"
cat "$root"/README.md "$root"/ARCHITECTURE.md "$root"/docs/*.md "$root"/docs/errors/*.md >"$work/text.txt"
"$bin/trireme" data build --input "$work/text.txt" --output "$work/tokens" --tokenizer byte >/dev/null 2>&1
cat >"$work/fill.json" <<JSON
{"train_batch_size": $((2 * micro)), "train_micro_batch_size_per_gpu": $micro, "gradient_clipping": 1.0, "bf16": {"enabled": true},
 "steps_per_print": 10, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}}, "zero_optimization": {"stage": 3},
 "trireme": {"fill": true}}
JSON

failed=0
printf '%-5s %12s %12s %9s %11s  %s\n' GiB planned measured 'step, s' 'loss, rel.' chosen
for gib in all ${ROWS:-60 40 30 24 18}; do
  grant=()
  [[ "$gib" == all ]] || grant=(--device-memory-gib "$gib")
  rm -f "$work/$gib.jsonl"
  if ! timeout 600 "$bin/trireme" train --deepspeed_config "$work/fill.json" --model_name "$model" --seq-length "$seq" --data-path "$work/tokens" \
    --split 100,0,0 --train-iters "$steps" --eval-interval 0 --log-json "$work/$gib.jsonl" --device "${DEVICE:-cuda}" "${grant[@]}" \
    >"$work/$gib.log" 2>&1; then
    printf '%-5s FAILED: %s\n' "$gib" "$(grep -m1 -E 'error|fill:' "$work/$gib.log" || tail -1 "$work/$gib.log")"
    failed=1
    continue
  fi
  chosen="$(grep -m1 -oE 'fill: .*' "$work/$gib.log")"
  value() { sed -nE "s/.*\"$1\": ?([-0-9.e+]+).*/\1/p" "$work/$2.jsonl"; }
  step="$(value seconds "$gib" | tail -n +4 | sort -g | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}')"
  difference="$(paste <(value loss "$gib") <(value loss all) | awk '{d=$1-$2; if (d<0) d=-d; if (d/$2>most) most=d/$2} END {printf "%.2e", most}')"
  printf '%-5s %12s %12s %9.4f %11s  %s\n' "$gib" "$(sed -E 's/.*planned ([0-9.]+ [A-Za-z]+) of.*/\1/' <<<"$chosen")" \
    "$(value memory "$gib" | tail -1 | awk '{printf "%.2f GiB", $1 / 1073741824}')" "$step" "$difference" \
    "$(sed -E 's/fill: (.*); planned.*/\1/' <<<"$chosen")"
  awk "BEGIN {exit !($difference <= $tolerance)}" || failed=1
done
exit "$failed"
