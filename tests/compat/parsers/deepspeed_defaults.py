"""Each key of a ds_config.json that DeepSpeed reads, with the default that DeepSpeed has: lines "path<TAB>JSON".

  python deepspeed_defaults.py > deepspeed_defaults.tsv

Made with DeepSpeed 0.19.8 and PyTorch 2.11.0. Checked sections give the fields of their classes; loose ones what
DeepSpeedConfig holds after a file that leaves them out; parameters of optimizers and schedulers are those of the
classes that DeepSpeed builds (optimizer.params.lr@Lamb is Lamb's).
"""

import contextlib
import inspect
import io
import json
import logging
import sys
import warnings
from enum import Enum

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
_stdout = io.StringIO()
with contextlib.redirect_stdout(_stdout):
    import torch
    from pydantic import BaseModel
    from deepspeed.ops.adam import FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import FusedLion
    from deepspeed.runtime import lr_schedules
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
    from deepspeed.runtime.zero.offload_config import (DeepSpeedZeroOffloadOptimizerConfig,
                                                       DeepSpeedZeroOffloadParamConfig)
    from deepspeed.comm.config import CommsLoggerConfig
    config = DeepSpeedConfig({"train_batch_size": 1})

rows = {}


def add(path, value):
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, torch.dtype):
        value = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[value]
    rows[path] = json.dumps(list(value) if isinstance(value, tuple) else value)


def add_model(path, model):  # a class or an instance of pydantic's
    cls = model if inspect.isclass(model) else type(model)
    for name, field in cls.model_fields.items():
        # pydantic fills these aside from the file; deprecated ones are old names.
        if (field.json_schema_extra or {}).get("deprecated"):
            continue
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            add_model(f"{path}.{field.alias or name}", default)
        elif default is not None and not isinstance(default, (bool, int, float, str, list, tuple, Enum, torch.dtype, dict)):
            add(f"{path}.{field.alias or name}", None)
        else:
            add(f"{path}.{field.alias or name}", default)


def add_dict(path, values):
    for key, value in values.items():
        if isinstance(value, dict) and value:
            add_dict(f"{path}.{key}", value)
        else:
            add(f"{path}.{key}", value)


def add_signature(path, cls, kind):
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if name in ("self", "params", "model_params", "optimizer") or name.startswith("_"):
            continue
        required = parameter.default is inspect.Parameter.empty
        rows[f"{path}.{name}@{kind}"] = '"required"' if required else json.dumps(
            list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default)


for key in ("gradient_clipping", "prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op",
            "communication_data_type", "seq_parallel_communication_data_type", "managed_gradient_accumulation",
            "disable_allgather", "dump_state", "log_level", "memory_breakdown", "steps_per_print",
            "wall_clock_breakdown", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
            "dataloader_drop_last"):
    add(key, getattr(config, key))
add_model("zero_optimization", config.zero_config)
add_model("zero_optimization.offload_optimizer", DeepSpeedZeroOffloadOptimizerConfig)
add_model("zero_optimization.offload_param", DeepSpeedZeroOffloadParamConfig)
add_model("zero_optimization.leaf_module", DeepSpeedZeroLeafModuleConfig)
add_model("fp16", config.float16_config)
add_model("bf16", config.bfloat16_config)
add_model("tensor_parallel", config.tensor_parallel_config)
add_model("compile", config.compile_config)
add_model("hybrid_engine", config.hybrid_engine)
add_model("timers.throughput", config.timers_config)
add_model("comms_logger", CommsLoggerConfig)
for monitor in ("tensorboard", "csv_monitor", "wandb", "comet"):
    add_model(monitor, getattr(config.monitor_config, monitor))
add_dict("activation_checkpointing", vars(config.activation_checkpointing_config))
add_dict("flops_profiler", vars(config.flops_profiler_config))
add_dict("pipeline", config.pipeline)
add_dict("aio", config.aio_config)
add_dict("data_efficiency", config.data_efficiency_config)
add_dict("expert_parallel", {k: v if isinstance(v, (bool, int, float, str, type(None))) else None
                             for k, v in vars(config.expert_parallel_config).items() if not k.startswith("_")})
add("data_types.grad_accum_dtype", config.grad_accum_dtype)
for cls, kind in ((FusedAdam, "Adam"), (FusedLamb, "Lamb"), (FusedLion, "Lion"), (torch.optim.Adagrad, "Adagrad"),
                  (torch.optim.SGD, "SGD")):
    add_signature("optimizer.params", cls, kind)
for kind in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"):
    add_signature("scheduler.params", getattr(lr_schedules, kind), kind)

for path in sorted(rows):
    sys.stdout.write(f"{path}\t{rows[path]}\n")
