"""Writes fixtures/: token files and sample orders by Megatron-LM's own code, shuffles by NumPy, a token file by DeepSpeed.

Made with Python 3.11, numpy 2.4.6, torch 2.11.0, megatron-core 0.16.1, deepspeed 0.19.8:
    pip install numpy==2.4.6 torch==2.11.0 megatron-core==0.16.1 deepspeed==0.19.8
    python make_fixtures.py fixtures
"""
import json
import os
import sys

import numpy
import torch
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDatasetBuilder
from megatron.core.datasets.blended_megatron_dataset_config import convert_split_vector_to_split_matrix, parse_and_normalize_split
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split

VERSIONS = {"numpy": numpy.__version__, "torch": torch.__version__, "megatron-core": "0.16.1", "deepspeed": "0.19.8"}


class Tokenizer:
    vocab_size, eod, pad, unique_identifiers = 300, 256, -1, {"name": "fixture"}


def write_tokens(folder, name, dtype, lengths, limit):
    """Each document's tokens count on from the one before, so that a token tells its place; the last in two sequences."""
    builder = IndexedDatasetBuilder(f"{folder}/{name}.bin", dtype=dtype)
    at = 0
    for i, length in enumerate(lengths):
        ids = torch.tensor([(at + j) % limit for j in range(length)], dtype=torch.int64)
        at += length
        if i + 1 == len(lengths):
            builder.add_item(ids[:1])
            builder.add_item(ids[1:])
        else:
            builder.add_item(ids)
        builder.end_document()
    builder.finalize(f"{folder}/{name}.idx")


def order(folder, name, begin, end, seq, samples, seed):
    dataset = IndexedDataset(f"{folder}/{name}", mmap=True)
    config = GPTDatasetConfig(random_seed=seed, sequence_length=seq, split="1", tokenizer=Tokenizer(), reset_position_ids=False,
                              reset_attention_mask=False, eod_mask_loss=False, path_to_cache="/tmp/megatron-cache", mid_level_dataset_surplus=0.005)
    d = GPTDataset(dataset, f"{folder}/{name}", numpy.arange(begin, end, dtype=numpy.int32), samples, Split.train, config)
    tokens = [d._query_document_sample_shuffle_indices(i)[0].tolist() for i in range(min(len(d), 3))]
    return {"file": name, "begin": begin, "end": end, "seq_length": seq, "num_samples": samples or 0, "seed": seed,
            "document_index": d.document_index.tolist(), "sample_index": d.sample_index.tolist(), "shuffle_index": d.shuffle_index.tolist(),
            "first_samples": tokens}


def main(folder):
    os.makedirs(folder, exist_ok=True)
    write_tokens(folder, "megatron_uint16", numpy.uint16, [5, 3, 7, 4, 6], 300)
    write_tokens(folder, "megatron_int32", numpy.int32, [9, 1, 30, 2, 2, 17, 8, 0, 25, 13], 300)
    for code in ("uint8", "int8", "int16", "int64"):
        write_tokens(folder, f"megatron_{code}", getattr(numpy, code), [5, 3, 7, 4, 6], 100)
    builder = MMapIndexedDatasetBuilder(f"{folder}/deepspeed_uint16.bin", dtype=numpy.uint16)
    for ids in ([7, 8, 65499], [1], [2, 3]):
        builder.add_item(torch.tensor(ids, dtype=torch.int32))
        builder.end_document()
    builder.finalize(f"{folder}/deepspeed_uint16.idx")

    orders = []
    for seed in (1234, 1, 4294967295):
        for samples in (None, 1, 8, 11, 12, 13, 40):
            orders.append(order(folder, "megatron_uint16", 0, 6, 4, samples, seed))
        for samples in (None, 5, 30, 47, 60):
            orders.append(order(folder, "megatron_int32", 0, 11, 7, samples, seed))
            orders.append(order(folder, "megatron_int32", 2, 9, 5, samples, seed))
    shuffles = []
    for seed, size in ((0, 2), (1234, 10), (1, 33), (7, 64), (42, 65), (43, 129), (3, 1000)):
        random = numpy.random.RandomState(seed)
        first, second = numpy.arange(size), numpy.arange(size)
        random.shuffle(first)
        random.shuffle(second)
        shuffles.append({"seed": seed, "first": first.tolist(), "second": second.tolist()})
    splits = []
    for text in ("969,30,1", "95,5,0", "1", "8,1,1", "98,2", "0.5,0.25,0.25", "90,5,5"):
        matrix = convert_split_vector_to_split_matrix(parse_and_normalize_split(text))
        for n in (0, 1, 3, 10, 50, 150, 250, 999, 1000, 2378, 12345679):
            ranges = [[int(round(s[0] * float(n))), int(round(s[1] * float(n)))] if s is not None else None for s in matrix]
            splits.append({"split": text, "n": n, "ranges": ranges})
    with open(f"{folder}/orders.json", "w") as f:
        json.dump({"versions": VERSIONS, "orders": orders, "shuffles": shuffles, "splits": splits}, f, separators=(",", ":"))
        f.write("\n")


main(sys.argv[1])
