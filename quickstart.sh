#!/usr/bin/env bash
# From nothing to a trained model: sets up, builds, tokenises the King James Bible, trains a small GPT on two ranks with ZeRO-2,
# resumes from its checkpoint in another layout, and prints a sample.
#
#   ./quickstart.sh            results in build/quickstart
#   ./quickstart.sh --cpu      on the CPU even where there is a GPU
#   ./quickstart.sh --out DIR  results in DIR
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

cpu=0 out=build/quickstart
while (($#)); do
  case "$1" in
    --cpu) cpu=1 ;;
    --out)
      [[ $# -ge 2 ]] || { echo "quickstart: --out needs a folder" >&2; exit 2; }
      out="$2"
      shift
      ;;
    *)
      echo "quickstart: unknown option '$1'. fix: use --cpu or --out DIR" >&2
      exit 2
      ;;
  esac
  shift
done

# Chapters get shorter towards the end: the last 7 % of them are the last 5 % of the text.
readonly steps=1200 resumed_steps=40 split=93,7,0 seq=128
readonly model=(--num-layers 4 --hidden-size 256 --num-attention-heads 4 --max-position-embeddings "$seq")
say() { printf '\n== %s\n' "$*"; }

held_out_loss() {  # the last loss on the validation part that the log $1 shows
  grep -iE "valid" "$1" | grep -oiE "loss[ :=]+[0-9.]+" | tail -n 1 | grep -oE "[0-9.]+"
}

# ---- set up and build -----------------------------------------------------------------------------------------------
say "1/6 set-up"
if ((cpu)); then ./setup.sh --cpu; else ./setup.sh; fi

say "2/6 build"
mkdir -p build
gpu_program=ON
if ((cpu)); then gpu_program=OFF; fi
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIREME_CUDA="$gpu_program" >build/configure.log 2>&1 || {
  cat build/configure.log >&2
  exit 1
}
grep -E 'LibTorch:|GPU program:' build/configure.log || true
cmake --build build -j "$(nproc)" --target trireme trireme-engine
trireme=build/bin/trireme

# ---- data -----------------------------------------------------------------------------------------------------------
say "3/6 data: the King James Bible of the package bible-kjv-text, one document a chapter"
mkdir -p "$out"
if [[ ! -e "$out/bible.idx" ]]; then
  # `bible` puts an empty line before and after each chapter's heading; dropping the second makes heading and text one document.
  env -u COLUMNS bible gen1:1-rev22:21 </dev/null | awk 'NF == 0 && ++blank % 2 == 0 {next} {print}' >"$out/bible.txt"
  "$trireme" data build --input "$out/bible.txt" --output "$out/bible" --tokenizer byte
fi
"$trireme" data info "$out/bible"

# ---- train ----------------------------------------------------------------------------------------------------------
gpus=0
if ((!cpu)) && command -v nvidia-smi >/dev/null && ldd build/bin/trireme-engine | grep -q libtorch_cuda; then
  gpus="$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)"
fi
# Ranks of the first part and of the resumed one, with what puts them on GPU or CPU.
case "$gpus" in
  0) first=(--cpu --num_gpus 2) later=(--cpu --num_gpus 4) what="2 CPU ranks" what_later="4 CPU ranks" ;;
  1) first=(--num_gpus 1) later=(--cpu --num_gpus 2) what="1 GPU" what_later="2 CPU ranks" ;;
  *) first=(--num_gpus 2) later=(--num_gpus 1) what="2 GPUs" what_later="1 GPU" ;;
esac

train() {  # $1: config file; the rest goes to `trireme train`. Progress to the screen and to train.log
  local config="$1"
  shift
  "$trireme" launch "${ranks[@]}" train --deepspeed --deepspeed_config "$config" "${model[@]}" --seq-length "$seq" \
    --data-path "$out/bible" --split "$split" --eval-interval 600 --eval-iters 1000000 --save "$out/checkpoint" "$@" 2>&1 | tee -a "$out/train.log"
}

rm -rf "$out/checkpoint" "$out/train.log"
say "4/6 train: $steps steps of 1,024 tokens, ZeRO-2, $what"
started=$SECONDS
ranks=("${first[@]}")
train configs/quickstart.json --train-iters "$steps" --log-json "$out/train.jsonl"
seconds=$((SECONDS - started))
loss="$(held_out_loss "$out/train.log")"

say "5/6 resume from the checkpoint: $resumed_steps more steps, ZeRO-3, $what_later"
ranks=("${later[@]}")
train configs/quickstart_zero3.json --train-iters $((steps + resumed_steps)) --load "$out/checkpoint" --log-json "$out/resumed.jsonl"

say "6/6 a sample"
"$trireme" generate --load "$out/checkpoint" --prompt "And God said, " --max-new-tokens 200

say "result"
bigram_line="$("$trireme" data bigram "$out/bible" --split "$split" --seq-length "$seq")"
bigram="$(grep -oE 'loss [0-9.]+' <<<"$bigram_line" | awk '{print $2}')"
awk -v loss="$loss" -v bigram="$bigram" -v seconds="$seconds" 'BEGIN {
  printf "held-out loss %.4f, add-one bigram %.4f nats per token: %.1f %% below it, after %d s of training\n", loss, bigram, 100 * (1 - loss / bigram), seconds
}'
