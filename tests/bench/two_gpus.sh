#!/usr/bin/env bash
# Two GPUs over NCCL, in under 8 minutes; one JSON line a row on stdout, exit code 1 if one of them fails. Needs two GPUs.
#   tests/bench/two_gpus.sh [BIN_DIR [WORK_DIR]]        BIN_DIR: folder of the program trireme, default build/bin
# PARTS="layouts selfcheck kill big" chooses parts:
#   layouts    a small GPT and a small LLaMA, 30 steps in each layout, against one GPU: the largest relative difference of the losses (at most 2e-6
#              in fp32, 1e-12 in fp64, 0.01 in bf16), whether memory grows after step 3, the median time of a step (three types run at once: no
#              benchmark). TYPES="fp32 fp64 bf16" and MODELS="gpt llama" choose. The rate is low enough that the run is stable: at 1e-3 the GPT's
#              loss rises now and then, and magnifies rounding a thousandfold.
#   selfcheck  trireme selfcheck on both GPUs: seconds, exit code
#   kill       SIGKILL to rank 1 in the middle of a step: seconds until the job has ended, its message, processes left
#   big        gpt-6.7b with ZeRO-1 and ZeRO-3, gpt-13b: tokens/s, planned and reserved memory of a GPU, and from a trace of one step the share in
#              which the compute lane stands still. BIG="zero1 zero3 13b" chooses.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
bin="${1:-$root/build/bin}"
work="${2:-$(mktemp -d)}"
parts="${PARTS:-layouts selfcheck kill big}"
types="${TYPES:-fp32 fp64 bf16}"
models="${MODELS:-gpt llama}"
big_runs="${BIG:-zero1 zero3 13b}"
steps=30
failed=0
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

config() { # ZERO TP PP VIRTUAL SCHEDULE SEQUENCE OFFLOAD TYPE
  local bf16=false zero="\"stage\": $1"
  [[ "$8" == bf16 ]] && bf16=true
  [[ "$7" == none ]] || zero+=", \"offload_optimizer\": {\"device\": \"$7\", \"pin_memory\": true}"
  cat <<JSON
{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "bf16": {"enabled": $bf16}, "steps_per_print": 1000,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}}, "zero_optimization": {$zero},
 "tensor_parallel": {"tp_size": $2}, "pipeline_parallel": {"pp_size": $3},
 "trireme": {"sequence_parallel": $6, "pipeline": {"virtual_stages": $4, "schedule": "$5"}}}
JSON
}

train() { # NAME GPUS MODEL TYPE
  local flags=()
  [[ "$4" == fp64 ]] && flags+=(--fp64)
  rm -f "$work/$1.jsonl"
  timeout 120 "$bin/trireme" launch --master_port 0 --num_gpus "$2" train --deepspeed --deepspeed_config "$work/$1.json" --model_name "$work/$3.json" \
    --data-path "$work/tokens" --split 100,0,0 --seq-length 256 --train-iters $steps --eval-interval 0 --log-json "$work/$1.jsonl" \
    "${flags[@]}" >"$work/$1.log" 2>&1
}

value() { sed -E "s/.*\"$1\": ?([-0-9.e+]+).*/\1/" "$2"; }
reason() { grep -m1 -E 'error|signal|hangs' "$1" | tr -d '"\\' | head -c 300; }

compare() { # NAME REFERENCE MODEL TYPE; ends with 1 where the losses differ by more than the type allows, or memory grows
  local seconds three last allowed=0.01
  [[ "$4" == fp32 ]] && allowed=2e-6
  [[ "$4" == fp64 ]] && allowed=1e-12
  seconds="$(value seconds "$work/$1.jsonl" | tail -n +6 | sort -g | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}')"
  three="$(value memory "$work/$1.jsonl" | sed -n 3p)"
  last="$(value memory "$work/$1.jsonl" | tail -1)"
  paste <(value loss "$work/$1.jsonl") <(value loss "$work/$2.jsonl") | awk -v name="$1" -v model="$3" -v type="$4" -v seconds="$seconds" \
    -v allowed=$allowed -v grown=$((last - three)) -v steps=$steps '
    {d=$1-$2; if (d<0) d=-d; r=d/$2; if (r>most) most=r; last=$1; n+=1}
    END {good = most <= allowed && grown <= 0 && n == steps
         printf "{\"row\": \"%s\", \"model\": \"%s\", \"type\": \"%s\", \"steps\": %d, \"loss\": %s, \"difference\": %.3g, \"allowed\": %s, \"memory_grown\": %d, \"step_seconds\": %s, \"good\": %s}\n",
         name, model, type, n, last, most, allowed, grown, seconds, good ? "true" : "false"; exit !good}'
}

rows=("zero0 0 1 1 1 1f1b false none" "zero1 1 1 1 1 1f1b false none" "zero2 2 1 1 1 1f1b false none" "zero3 3 1 1 1 1f1b false none"
  "tp2 0 2 1 1 1f1b false none" "tp2_sequence 0 2 1 1 1f1b true none" "pp2 0 1 2 1 1f1b false none" "pp2_interleaved 0 1 2 2 1f1b false none"
  "pp2_zero_bubble 0 1 2 1 zero-bubble false none" "offload 2 1 1 1 1f1b false cpu")

# One row in all types at once: processes of their own, which share the GPUs.
row_of() { # ROW MODEL
  local name zero tp pp virtual schedule sequence offload type gpus=2 base pids=()
  read -r base zero tp pp virtual schedule sequence offload <<<"$1"
  [[ "$base" == one ]] && gpus=1
  for type in $types; do
    name="${base}_$2_$type"
    config "$zero" "$tp" "$pp" "$virtual" "$schedule" "$sequence" "$offload" "$type" >"$work/$name.json"
    train "$name" "$gpus" "$2" "$type" &
    pids+=($!)
  done
  for type in $types; do
    name="${base}_$2_$type"
    if ! wait "${pids[0]}"; then
      failed=1
      printf '{"row": "%s", "failed": "%s"}\n' "$name" "$(reason "$work/$name.log")"
    elif [[ "$base" != one ]]; then
      compare "$name" "one_$2_$type" "$2" "$type" || failed=1
    fi
    pids=("${pids[@]:1}")
  done
}

layouts() {
  local model row
  for model in $models; do
    row_of "one 0 1 1 1 1f1b false none" "$model"
    for row in "${rows[@]}"; do row_of "$row" "$model"; done
  done
}

selfcheck() {
  local begin=$SECONDS status=0
  "$bin/trireme" selfcheck --ranks 2 --device cuda >"$work/selfcheck.log" 2>&1 || status=$?
  printf '{"row": "selfcheck", "exit_code": %d, "seconds": %d, "last": "%s"}\n' $status $((SECONDS - begin)) \
    "$(tail -n 1 "$work/selfcheck.log" | tr -d '"\\')"
  ((status == 0 && SECONDS - begin < 180)) || failed=1
}

ranks_of() { # LAUNCHER: process ids of its ranks with their RANK, one a line
  local pid
  for pid in $(pgrep -P "$1" 2>/dev/null); do
    ranks_of "$pid"
    if grep -qz '^RANK=' "/proc/$pid/environ" 2>/dev/null && [[ "$(tr '\0' ' ' <"/proc/$pid/cmdline")" == *trireme-engine* ]]; then
      echo "$pid $(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^RANK=//p')"
    fi
  done
}

kill_a_rank() {
  local launcher ranks victim begin status=0 left=0 pid line
  config 3 1 1 1 1f1b false none bf16 >"$work/killed.json"
  rm -f "$work/killed.jsonl"
  "$bin/trireme" launch --master_port 0 --num_gpus 2 train --deepspeed_config "$work/killed.json" --model_name "$work/gpt.json" \
    --data-path "$work/tokens" --split 100,0,0 --seq-length 256 --train-iters 1000000 --eval-interval 0 --log-json "$work/killed.jsonl" \
    >"$work/killed.log" 2>&1 &
  launcher=$!
  for _ in $(seq 300); do
    [[ "$(wc -l 2>/dev/null <"$work/killed.jsonl" || echo 0)" -gt 40 ]] && break
    sleep 0.2
  done
  ranks="$(ranks_of $launcher)"
  victim="$(awk '$2 == 1 {print $1; exit}' <<<"$ranks")"
  [[ -n "$victim" ]] || { kill $launcher || true; printf '{"row": "kill", "failed": "no rank 1 among: %s"}\n' "$ranks"; failed=1; return; }
  begin=$(date +%s.%N)
  kill -9 "$victim"
  wait $launcher || status=$?
  line="$(grep -m1 -E 'rank 1 was at' "$work/killed.log" | tr -d '"\\' | head -c 400)"
  for pid in $(awk '{print $1}' <<<"$ranks"); do [[ -e "/proc/$pid" ]] && left=$((left + 1)); done
  printf '{"row": "kill", "seconds": %.1f, "exit_code": %d, "processes_left": %d, "message": "%s"}\n' \
    "$(awk "BEGIN {print $(date +%s.%N) - $begin}")" $status $left "$line"
  [[ $status != 0 && $left == 0 && "$line" == *step* ]] || failed=1
}

# Share of the traced steps in which the compute lane does nothing, from its first instruction to its last.
idle_share() { # TRACE
  grep '"ph":"X"' "$1" | grep '"tid":0,' | sed -E 's/.*"ts":([0-9.]+),"dur":([0-9.]+).*/\1 \2/' | sort -g |
    awk 'NR == 1 {first = $1} {busy += $2; if ($1 + $2 > end) end = $1 + $2} END {printf "%.4f", 1 - busy / (end - first)}'
}

big_run() { # NAME MODEL ZERO PP MICRO SCHEDULE STEPS FLAGS...
  local name="$1" model="$2" zero="$3" pp="$4" micro="$5" schedule="$6" count="$7"
  shift 7
  cat >"$work/$name.json" <<JSON
{"train_batch_size": 32, "train_micro_batch_size_per_gpu": $micro, "gradient_clipping": 1.0, "bf16": {"enabled": true}, "steps_per_print": 1,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}}, "zero_optimization": {"stage": $zero},
 "pipeline_parallel": {"pp_size": $pp}, "trireme": {"pipeline": {"schedule": "$schedule"}}}
JSON
  rm -f "$work/$name.jsonl"
  if ! timeout 240 "$bin/trireme" launch --master_port 0 --num_gpus 2 train --deepspeed_config "$work/$name.json" --model_name "$model" --untie \
    --data-path "$work/tokens" --split 100,0,0 --seq-length 2048 --train-iters "$count" --eval-interval 0 --log-json "$work/$name.jsonl" \
    --trace "$work/$name.trace.json" "$@" >"$work/$name.log" 2>&1; then
    printf '{"row": "%s", "failed": "%s"}\n' "$name" "$(reason "$work/$name.log")"
    failed=1
    return
  fi
  local seconds planned
  seconds="$(value seconds "$work/$name.jsonl" | tail -n +3 | sort -g | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}')"
  planned="$(grep -m1 -oE 'planned per rank: [0-9.]+ [A-Za-z]+' "$work/$name.log" | sed 's/planned per rank: //')"
  printf '{"row": "%s", "step_seconds": %s, "tokens_per_second_per_gpu": %.0f, "planned": "%s", "reserved_gib": %.2f, "compute_waits": [%s, %s], "losses": [%s]}\n' \
    "$name" "$seconds" "$(awk "BEGIN {print 32 * 2048 / 2 / $seconds}")" "$planned" \
    "$(value memory "$work/$name.jsonl" | tail -1 | awk '{print $1 / 1073741824}')" "$(idle_share "$work/$name.trace.json")" \
    "$(idle_share "$work/$name.trace.json.rank1")" "$(value loss "$work/$name.jsonl" | paste -sd, -)"
}

big() {
  local run
  for run in $big_runs; do
    case "$run" in
      zero1) big_run zero1_6.7b gpt-6.7b 1 1 4 1f1b 8 ;;
      zero3) big_run zero3_6.7b gpt-6.7b 3 1 4 1f1b 8 ;;
      13b) big_run pp2_13b gpt-13b 0 2 1 1f1b 6 ;;
    esac
  done
}

for part in $parts; do
  case "$part" in
    layouts) layouts ;;
    selfcheck) selfcheck ;;
    kill) kill_a_rank ;;
    big) big ;;
    *) echo "two_gpus: unknown part '$part'. fix: use layouts, selfcheck, kill or big" >&2; exit 2 ;;
  esac
done
exit $failed
