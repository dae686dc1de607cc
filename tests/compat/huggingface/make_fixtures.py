#!/usr/bin/env python3
"""Makes fixtures/: small models with random weights, as Hugging Face transformers builds, saves and runs them.

    python make_fixtures.py [CASE ...]

A case is a folder with config.json, weights (model.safetensors, one file or shards; a folder below another takes that
one's) and expected.safetensors: input_ids [2, 24], logits [2, 24, vocabulary] in fp32, and greedy [64], which is a
prompt of 24 tokens and the 40 most likely ones after it, each found by a forward pass over all tokens before it.

Made with torch 2.11.0 (CPU), transformers 5.24.0, safetensors 0.8.0. The weights come from numpy's generator, so that a
case changes only when its line below does.
"""
import json
import pathlib
import shutil
import sys

import numpy
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "fixtures"
LENGTH, NEW = 24, 40

GPT2 = dict(model_type="gpt2", vocab_size=101, n_positions=64, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=100, eos_token_id=100)
LLAMA = dict(model_type="llama", vocab_size=103, hidden_size=48, intermediate_size=72, num_hidden_layers=3,
             num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5)
QWEN2 = dict(model_type="qwen2", vocab_size=107, hidden_size=40, intermediate_size=56, num_hidden_layers=2,
             num_attention_heads=5, num_key_value_heads=1, max_position_embeddings=64, bos_token_id=3, eos_token_id=4)
NEOX = dict(model_type="gpt_neox", vocab_size=109, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
            num_attention_heads=3, max_position_embeddings=64, bos_token_id=0, eos_token_id=0)

# Case: config, then the size of a shard. 16 positions where a scaling begins to act inside the 24 tokens and their 40.
CASES = {
    "gpt2": (GPT2, None),
    "gpt2_untied_gelu": (GPT2 | dict(tie_word_embeddings=False, activation_function="gelu", n_inner=100,
                                     layer_norm_epsilon=1e-4), None),
    "llama": (LLAMA, "40KB"),
    "llama/linear": (LLAMA | dict(rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=3.0)), None),
    "llama/dynamic": (LLAMA | dict(max_position_embeddings=16, rope_parameters=dict(
        rope_type="dynamic", rope_theta=10000.0, factor=4.0)), None),
    "llama/yarn": (LLAMA | dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)), None),
    "llama/yarn_all_keys": (LLAMA | dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=700.0, factor=4.0, original_max_position_embeddings=16, beta_fast=4.0,
        beta_slow=0.5, mscale=0.8, mscale_all_dim=0.4, truncate=False)), None),
    "llama/llama3": (LLAMA | dict(rope_parameters=dict(
        rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)), None),
    "llama/longrope": (LLAMA | dict(rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, factor=2.0, original_max_position_embeddings=32,
        short_factor=[1.0, 1.1, 1.25, 1.5], long_factor=[1.0, 1.75, 3.0, 4.5])), None),
    "llama/mistral": (LLAMA | dict(model_type="mistral", sliding_window=None), None),
    "llama_bias_tied": (LLAMA | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=12,
                                     num_attention_heads=4, num_key_value_heads=1), None),
    "qwen2": (QWEN2 | dict(tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6)), None),
    "qwen2_untied": (QWEN2 | dict(num_key_value_heads=5, rms_norm_eps=1e-5), None),
    "gpt_neox": (NEOX, None),
    "gpt_neox_serial": (NEOX | dict(
        use_parallel_residual=False, attention_bias=False, hidden_act="gelu_new", num_attention_heads=4,
        rope_parameters=dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=0.5)), None),
}


def build(name, config):
    kwargs = dict(config)
    cls = transformers.CONFIG_MAPPING[kwargs.pop("model_type")]
    model = transformers.AutoModelForCausalLM.from_config(cls(**kwargs), attn_implementation="eager").eval()
    root = name.split("/")[0]
    random = numpy.random.default_rng(sorted(CASES).index(root))
    with torch.no_grad():
        for key, value in sorted(model.named_parameters()):
            x = random.standard_normal(value.shape).astype(numpy.float32)
            if "norm" in key and key.endswith("weight") or ".ln_" in key and key.endswith("weight"):
                x = 1 + 0.2 * x
            elif value.dim() == 1:
                x = 0.1 * x
            else:
                x = 0.15 * x
            value.copy_(torch.from_numpy(x))
    return model


@torch.no_grad()
def run(name, config):
    model = build(name, config)
    vocab = config["vocab_size"]
    random = numpy.random.default_rng(len(name))
    ids = torch.from_numpy(random.integers(0, vocab, (2, LENGTH)))
    logits = model(ids, use_cache=False).logits
    greedy, margin = ids[0].tolist(), float("inf")
    for _ in range(NEW):
        last = model(torch.tensor([greedy]), use_cache=False).logits[0, -1]
        best = last.topk(2).values
        margin = min(margin, float(best[0] - best[1]))
        greedy.append(int(last.argmax()))
    return model, dict(input_ids=ids, logits=logits, greedy=torch.tensor(greedy)), margin


def main():
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or CASES:
        config, shard = CASES[name]
        folder = HERE / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("*.*"):
            file.unlink()
        model, expected, margin = run(name, config)
        temporary = HERE / "temporary"
        model.save_pretrained(temporary, max_shard_size=shard or "5GB")
        (temporary / "generation_config.json").unlink(missing_ok=True)
        for file in temporary.iterdir():
            if file.name == "config.json" or "/" not in name:
                shutil.copyfile(file, folder / file.name)
        shutil.rmtree(temporary)
        save_file({key: value.contiguous() for key, value in expected.items()}, folder / "expected.safetensors")
        print(f"{name:20s} |logit| {expected['logits'].abs().max():.2f} smallest lead {margin:.5f}",
              sorted(f.name for f in folder.glob("*.*")))
        assert margin > 2e-4, f"{name}: two tokens are nearly equally likely; take other weights"


if __name__ == "__main__":
    main()
