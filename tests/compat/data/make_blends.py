"""Writes fixtures/blends.json: blends of the token files in fixtures/ by Megatron-LM's own builder and index helpers.

Made with Python 3.11, numpy 2.4.6, torch 2.11.0, megatron-core 0.16.1:
    pip install numpy==2.4.6 torch==2.11.0 megatron-core==0.16.1
    python make_blends.py fixtures
"""
import json
import sys

import numpy
import torch
from megatron.core.datasets import helpers_cpp
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import get_blend_from_list, normalize

VERSIONS = {"numpy": numpy.__version__, "torch": torch.__version__, "megatron-core": "0.16.1"}


class Tokenizer:
    vocab_size, eod, pad, unique_identifiers = 300, 256, -1, {"name": "fixture"}


def indices(weights, size):
    datasets, samples = numpy.zeros(size, dtype=numpy.int16), numpy.zeros(size, dtype=numpy.int64)
    normalized = normalize(normalize(weights))
    helpers_cpp.build_blending_indices(datasets, samples, normalized, len(weights), size, False)
    return {"weights": weights, "size": size, "normalized": [w.hex() for w in map(float, normalized)],
            "datasets": datasets.tolist(), "samples": samples.tolist()}


def exhaustive(sizes):
    datasets, samples = numpy.zeros(sum(sizes), dtype=numpy.int16), numpy.zeros(sum(sizes), dtype=numpy.int64)
    helpers_cpp.build_exhaustive_blending_indices(datasets, samples, sizes, len(sizes))
    return {"sizes": sizes, "datasets": datasets.tolist(), "samples": samples.tolist()}


def blend(folder, words, seq, samples, seed):
    prefixes = [w if w.replace(".", "").isdigit() else f"{folder}/{w}" for w in words]
    config = GPTDatasetConfig(random_seed=seed, sequence_length=seq, split="1", blend=get_blend_from_list(prefixes), tokenizer=Tokenizer(),
                              reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, path_to_cache=None,
                              mid_level_dataset_surplus=0.005)
    train = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()[0]
    tokens = []
    for i in range(len(train)):
        row = train[i]
        tokens.append(row["tokens"].tolist() + [int(row["labels"][-1])])
    return {"words": words, "seq_length": seq, "num_samples": samples, "seed": seed, "tokens": tokens}


def main(folder):
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=0, world_size=1)
    out = {"versions": VERSIONS, "indices": [], "exhaustive": [], "blends": []}
    out["indices"] = [indices([0.3, 0.7], 50), indices([1.0], 5), indices([30.0, 50.0, 20.0], 60), indices([0.1] * 11, 40),
                      indices([1 / 3, 1 / 7, 2.5, 1e-3], 80), indices([float(i * i + 1) for i in range(140)], 300), indices([7, 7, 7], 30)]
    out["exhaustive"] = [exhaustive([3, 9]), exhaustive([5]), exhaustive([1, 20, 7, 7]), exhaustive([4, 4, 4])]
    for words, seq, samples, seed in ((["0.3", "megatron_uint16", "0.7", "megatron_int32"], 4, 20, 1234), (["0.3", "megatron_uint16", "0.7", "megatron_int32"], 5, 60, 7),
                                      (["5", "megatron_int32", "1", "megatron_uint16"], 3, 31, 1), (["megatron_uint16", "megatron_int32"], 4, 25, 1234),
                                      (["megatron_uint16", "megatron_int32", "megatron_int32"], 6, 30, 2)):
        out["blends"].append(blend(folder, words, seq, samples, seed))
    with open(f"{folder}/blends.json", "w") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


main(sys.argv[1])
