"""Tokenising text: `trireme data build` against encode_batch of the `tokenizers` package, by turns, on the same threads.

    pip install tokenizers==0.23.3
    python3 peer_tokenizers.py --trireme ../../build/bin/trireme --input corpus.txt            # the text is repeated up to --megabytes
    python3 peer_tokenizers.py --trireme ../../build/bin/trireme --input corpus.txt --pattern llama3 --tokenizer tokenizer.json

Ours is timed as a whole process: start, reading the tokenizer.json, reading text, writing .bin/.idx. The peer is timed inside
encode_batch alone, in batches of documents that lie in memory; special tokens are off. Both see the same documents (an empty
line ends one), and the number of tokens must agree.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

PEER = """
import sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
documents = [d for d in open(sys.argv[2], encoding="utf-8", newline="").read().split("\\n\\n") if d.strip("\\n")]
documents = [d.strip("\\n") for d in documents]
tokens, begin = 0, time.perf_counter()
for i in range(0, len(documents), 1000):
    tokens += sum(len(e.ids) for e in tokenizer.encode_batch(documents[i:i + 1000], add_special_tokens=False))
print(time.perf_counter() - begin, tokens + len(documents))
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trireme", required=True)
    parser.add_argument("--input", required=True, nargs="+")
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--pattern", default="gpt2")
    parser.add_argument("--tokenizer", help="a tokenizer.json; none: one is trained on the input")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", default="/tmp")
    a = parser.parse_args()

    text = "".join(open(f, encoding="utf-8", newline="").read().rstrip("\n") + "\n\n" for f in a.input)
    path = f"{a.work}/peer_tokenizers.txt"
    with open(path, "w", encoding="utf-8", newline="") as f:
        for _ in range(int(a.megabytes * 1e6 / len(text.encode())) + 1):
            f.write(text)
    size = os.path.getsize(path) / 1e6
    tokenizer = a.tokenizer or f"{a.work}/peer_tokenizers.json"
    if not a.tokenizer:
        subprocess.run([a.trireme, "data", "train-tokenizer", "--input", *a.input, "--vocab-size", str(a.vocab_size), "--pattern", a.pattern,
                        "--output", tokenizer, "--workers", str(a.threads)], check=True, stderr=subprocess.DEVNULL)
    environment = dict(os.environ, RAYON_NUM_THREADS=str(a.threads), TOKENIZERS_PARALLELISM="true")
    ratios, rates = [], []
    for i in range(a.rounds):
        seconds, tokens = subprocess.run([sys.executable, "-c", PEER, tokenizer, path], env=environment, check=True, capture_output=True,
                                         text=True).stdout.split()
        begin = time.perf_counter()
        out = subprocess.run([a.trireme, "data", "build", "--input", path, "--output", f"{a.work}/peer_tokenizers_out", "--tokenizer", tokenizer,
                              "--workers", str(a.threads)], check=True, capture_output=True, text=True).stdout
        ours = time.perf_counter() - begin
        counted = int(out.split(" documents, ")[1].split(" tokens")[0].replace(",", ""))
        assert counted == int(tokens), f"{counted} tokens, the peer has {tokens}"
        ratios.append(float(seconds) / ours)
        rates.append((size / ours, size / float(seconds)))
        print(f"round {i + 1}: trireme {rates[-1][0]:.1f} MB/s, tokenizers {rates[-1][1]:.1f} MB/s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"{size:.1f} MB, {tokens} tokens, {a.threads} threads: median ratio {statistics.median(ratios):.2f}, trireme "
          f"{statistics.median(r[0] for r in rates):.1f} MB/s, tokenizers {statistics.median(r[1] for r in rates):.1f} MB/s")


main()
