# Frequencies of rotary positions by Hugging Face transformers' ROPE_INIT_FUNCTIONS, computed in double:
#   python make_rope.py > frequencies.txt
# One case a line: name, factor on cosines and sines, inverse frequencies. rope_test.cpp has the same cases by name.
import sys

import torch
import transformers

torch.float = torch.float32 = torch.float64  # the functions compute in float, which hides what differs
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXConfig, GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


def case(name, head, positions, length, fraction=1.0, theta=10000.0, **rope):
    rope = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": fraction, **rope}
    kind = rope["rope_type"]
    if kind == "default" and fraction != 1.0:
        config = GPTNeoXConfig(hidden_size=head * 2, num_attention_heads=2, max_position_embeddings=positions,
                               rope_parameters=rope)
        inverse, factor = GPTNeoXRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        config = LlamaConfig(hidden_size=head * 2, num_attention_heads=2, head_dim=head,
                             max_position_embeddings=positions, rope_parameters=rope)
        if kind == "default":
            inverse, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        else:
            inverse, factor = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=length)
    print(name, repr(float(factor)), *(repr(float(x)) for x in inverse))


print(f"# python {sys.version.split()[0]}, torch {torch.__version__}, transformers {transformers.__version__}")
case("plain", 64, 2048, 2048)
case("theta", 128, 8192, 8192, theta=500000.0)
case("part", 80, 2048, 2048, fraction=0.25)
case("linear", 32, 4096, 4096, rope_type="linear", factor=2.5)
case("dynamic_short", 32, 512, 300, rope_type="dynamic", factor=4.0)
case("dynamic_long", 32, 512, 1500, rope_type="dynamic", factor=4.0)
case("yarn", 128, 131072, 131072, theta=1e6, rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)
case("yarn_betas", 64, 16384, 100, rope_type="yarn", factor=8.0, original_max_position_embeddings=2048, beta_fast=20.0,
     beta_slow=2.0, attention_factor=1.25)
case("yarn_mscale", 64, 163840, 100, rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, mscale=1.0,
     mscale_all_dim=0.8, truncate=False)
short, long = [1 + 0.01 * i for i in range(16)], [1 + 0.5 * i for i in range(16)]
for name, length in (("longrope_short", 4096), ("longrope_long", 4097)):
    case(name, 32, 131072, length, rope_type="longrope", factor=32.0, original_max_position_embeddings=4096,
         short_factor=short, long_factor=long)
case("longrope_factor", 64, 131072, 8, fraction=0.5, rope_type="longrope", factor=32.0, attention_factor=1.1,
     original_max_position_embeddings=4096, short_factor=short, long_factor=long)
case("llama3", 128, 131072, 131072, theta=500000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
     high_freq_factor=4.0, original_max_position_embeddings=8192)
case("llama3_factors", 64, 131072, 10, theta=500000.0, rope_type="llama3", factor=32.0, low_freq_factor=1.5,
     high_freq_factor=6.0, original_max_position_embeddings=8192)
