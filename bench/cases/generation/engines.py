"""One engine that writes, on one thread, in a Python of its own: `python engines.py ENGINE FORM FOLDER`.

It needs that engine's packages, and nothing of HMI. FOLDER is what `bench.cases.generation.peers` writes.
Each line of its input is `{"prompts": [[id, …], …], "tokens": tokens of each answer}`. Its answer to each is
`{"ids": [[id, …], …], "times": [begin, first tokens, end]}`, in seconds of its CPU time. A line `{}` before
them says that it is ready.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Engine = Callable[[list[list[int]], int], tuple[list[list[int]], list[float]]]
"""(prompts, tokens of each answer) -> the answers, and the CPU time after each step."""
TOGETHER, ROOM = 16, 2048
"""The most sequences, and the most tokens that a step reads."""


def ctranslate2(form: str, folder: Path) -> Engine:
    library: Any = importlib.import_module("ctranslate2")
    if not (folder / "ct2").exists():
        _converted(folder)
    kind = {"int8": "int8", "fp32": "float32"}[form]
    model = library.Generator(str(folder / "ct2"), compute_type=kind, intra_threads=1, inter_threads=1)

    def run(prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], list[float]]:
        times: list[float] = []

        def watch(step: Any) -> bool:
            if step.batch_id == 0:
                times.append(time.process_time())
            return False

        found = model.generate_batch(
            [[str(i) for i in prompt] for prompt in prompts],
            max_length=tokens,
            min_length=tokens,
            end_token=[],
            include_prompt_in_result=False,
            callback=watch,
        )
        return [each.sequences_ids[0] for each in found], [*times, time.process_time()]

    return run


def _converted(folder: Path) -> None:
    """Write the model of `hf` in CTranslate2's form. A token's text is its number."""
    np: Any = importlib.import_module("numpy")
    specs: Any = importlib.import_module("ctranslate2.specs")
    config = json.loads((folder / "hf" / "config.json").read_text())
    tensors = importlib.import_module("safetensors.numpy").load_file(folder / "hf" / "model.safetensors")
    spec = specs.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        config["num_attention_heads"],
        activation=specs.common_spec.Activation.SWISH,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=config["rope_theta"],
        num_heads_kv=config["num_key_value_heads"],
    )
    decoder, words = spec.decoder, tensors["model.embed_tokens.weight"]
    decoder.scale_embeddings = False
    decoder.embeddings.weight, decoder.projection.weight = words, tensors.get("lm_head.weight", words)
    decoder.layer_norm.gamma = tensors["model.norm.weight"]
    for i, layer in enumerate(decoder.layer):
        own = {k.split(".", 3)[3]: v for k, v in tensors.items() if k.startswith(f"model.layers.{i}.")}
        heads, ffn = layer.self_attention, layer.ffn
        heads.layer_norm.gamma = own["input_layernorm.weight"]
        heads.linear[0].weight = np.concatenate([own[f"self_attn.{name}_proj.weight"] for name in "qkv"])
        heads.linear[1].weight = own["self_attn.o_proj.weight"]
        ffn.layer_norm.gamma = own["post_attention_layernorm.weight"]
        ffn.linear_0.weight, ffn.linear_0_noact.weight = (
            own["mlp.gate_proj.weight"],
            own["mlp.up_proj.weight"],
        )
        ffn.linear_1.weight = own["mlp.down_proj.weight"]
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    spec.config.bos_token = spec.config.eos_token = str(config["bos_token_id"])
    spec.config.unk_token = "0"
    spec.register_vocabulary([str(i) for i in range(config["vocab_size"])])
    spec.validate()
    spec.optimize()
    (folder / "ct2").mkdir()
    spec.save(str(folder / "ct2"))


def openvino(form: str, folder: Path) -> Engine:
    """OpenVINO GenAI reads llama.cpp's files."""
    library: Any = importlib.import_module("openvino_genai")
    tensor: Any = importlib.import_module("openvino").Tensor
    np: Any = importlib.import_module("numpy")
    schedule = library.SchedulerConfig()
    schedule.max_num_batched_tokens, schedule.max_num_seqs, schedule.cache_size = ROOM, TOGETHER, 1
    schedule.enable_prefix_caching = schedule.dynamic_split_fuse = False
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    settings |= {"INFERENCE_PRECISION_HINT": "bf16"} if form == "bf16" else {}
    path = folder / {"int8": "q8_0.gguf", "bf16": "f16.gguf"}[form]
    pipe = library.ContinuousBatchingPipeline(str(path), schedule, "CPU", settings)

    def run(prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], list[float]]:
        config = library.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        handles = [
            pipe.add_request(i, tensor(np.array([ids], np.int64)), config) for i, ids in enumerate(prompts)
        ]
        times = []
        while pipe.has_non_finished_requests():
            pipe.step()
            times.append(time.process_time())
        return [list(handle.read_all()[0].generated_ids) for handle in handles], times

    return run


def vllm(form: str, folder: Path) -> Engine:
    """`form` with `_tenants` gives each prompt an adapter of its own."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that this process's CPU time is all of it
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    library: Any = importlib.import_module("vllm")
    precision, _, tenants = form.partition("_")
    adapters = {"enable_lora": True, "max_loras": TOGETHER, "max_lora_rank": 8} if tenants else {}
    options = library.EngineArgs(
        model=str(folder / ("hf-int8" if precision == "int8" else "hf")),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=TOGETHER,
        max_num_batched_tokens=ROOM,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **adapters,
    )
    engine = library.LLMEngine.from_engine_args(options)
    lora: Any = importlib.import_module("vllm.lora.request").LoRARequest

    def run(prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], list[float]]:
        how = library.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        for i, ids in enumerate(prompts):
            given = lora(str(i), i + 1, str(folder / "adapters" / str(i))) if tenants else None
            engine.add_request(str(i), {"prompt_token_ids": ids}, how, lora_request=given)
        found, times = {}, list[float]()
        while engine.has_unfinished_requests():
            for each in engine.step():
                # The engine may add to the number that it was given.
                found[int(each.request_id.partition("-")[0])] = list(each.outputs[0].token_ids)
            times.append(time.process_time())
        return [found[i] for i in range(len(prompts))], times

    return run


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    name, form, folder = sys.argv[1:4]
    engines = {"ctranslate2": ctranslate2, "openvino": openvino, "vllm": vllm}
    run = engines[name](form, Path(folder))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        begun = time.process_time()
        asked = json.loads(line)
        ids, times = run(asked["prompts"], asked["tokens"])
        print(json.dumps({"ids": ids, "times": [begun, times[0], times[-1]]}), file=answers, flush=True)


if __name__ == "__main__":
    main()
