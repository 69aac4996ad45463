"""Models for the GPU runs: the demo's trained model in Hugging Face format, and configurations of 8B and 3B shape."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
HEAD = 128


def make_models(overlay: Path, work: Path) -> None:
    """Write rtb_models/ below `overlay`. `work`: a folder for the demo's history. Needs numpy and safetensors."""
    import numpy as np
    from safetensors.numpy import save_file

    source = demo_history(work) / "models" / "tally"
    config = json.loads((source / "config.json").read_text())
    with np.load(source / "weights.npz") as stored:
        weights = {name: stored[name] for name in stored.files}
    tally, theta = padded(weights, config)
    folder = overlay / "rtb_models" / "tally"
    shape = llama(config["hidden_size"], config["intermediate_size"], config["num_layers"], config["num_heads"])
    shape |= {"num_key_value_heads": config["num_kv_heads"], "torch_dtype": "float16", **rotation(theta)}
    shape |= {"max_position_embeddings": 1024, "vocab_size": config["vocab_size"]}
    write_model(folder, shape, source)
    save_file(tally, str(folder / "model.safetensors"), metadata={"format": "pt"})
    large = llama(4096, 14336, 32, 32) | {"num_key_value_heads": 8, **rotation(500000.0)}
    write_model(overlay / "rtb_models" / "llama-8b", large | {"vocab_size": config["vocab_size"]}, source)
    write_model(overlay / "rtb_models" / "llama-8b-128k", large | {"vocab_size": 128256}, source)
    small = llama(3072, 8192, 28, 24) | {"num_key_value_heads": 8, "vocab_size": 128256, **rotation(500000.0)}
    write_model(overlay / "rtb_models" / "llama-3b-128k", small, source)


def lay_demo(overlay: Path, work: Path) -> None:
    """For a rehearsal: the demo's server and its model."""
    history = demo_history(work)
    shutil.copytree(history / "tinyserve", overlay / "tinyserve", dirs_exist_ok=True)
    shutil.copytree(history / "models", overlay / "models", dirs_exist_ok=True)


def demo_history(work: Path) -> Path:
    history = work / "history"
    shutil.rmtree(history, ignore_errors=True)
    subprocess.run([sys.executable, str(ROOT / "scripts" / "build-demo-history"), str(history)], check=True)
    return history


def llama(hidden: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "head_dim": HEAD,
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": None, "eos_token_id": 0, "torch_dtype": "bfloat16",
    }  # fmt: skip


def rotation(theta: float) -> dict[str, Any]:
    """In the words of older and newer readers of a configuration."""
    return {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def padded(weights: dict[str, Any], config: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The same model with heads of 128: zeros are added, and the base of the rotation is chosen so that each pair of
    the old half turns as before (theta ** (128 / old)). Queries grow by sqrt(128 / old) against the smaller scale."""
    import numpy as np

    old, heads, kv = config["head_dim"], config["num_heads"], config["num_kv_heads"]
    half = old // 2

    def wide(matrix: Any, count: int) -> Any:
        made = np.zeros((count, HEAD, matrix.shape[1]), dtype=np.float32)
        rows = matrix.astype(np.float32).reshape(count, old, -1)
        made[:, :half], made[:, HEAD // 2 : HEAD // 2 + half] = rows[:, :half], rows[:, half:]
        return made.reshape(count * HEAD, -1)

    found = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["final_norm"]}
    found["lm_head.weight"] = weights["lm_head"]
    for layer in range(config["num_layers"]):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        parts = np.split(weights[ours + "qkv"], [heads * old, (heads + kv) * old])
        q, k = wide(parts[0], heads) * (HEAD / old) ** 0.5, wide(parts[1], kv)
        v = np.zeros((kv, HEAD, parts[2].shape[1]), dtype=np.float32)
        v[:, :old] = parts[2].reshape(kv, old, -1)
        out = np.zeros((weights[ours + "attention_out"].shape[0], heads, HEAD), dtype=np.float32)
        out[:, :, :old] = weights[ours + "attention_out"].reshape(-1, heads, old)
        gate, up = np.split(weights[ours + "gate_up"], 2)
        found |= {
            theirs + "self_attn.q_proj.weight": q, theirs + "self_attn.k_proj.weight": k,
            theirs + "self_attn.v_proj.weight": v.reshape(kv * HEAD, -1),
            theirs + "self_attn.o_proj.weight": out.reshape(-1, heads * HEAD),
            theirs + "mlp.gate_proj.weight": gate, theirs + "mlp.up_proj.weight": up,
            theirs + "mlp.down_proj.weight": weights[ours + "down"],
            theirs + "input_layernorm.weight": weights[ours + "attention_norm"],
            theirs + "post_attention_layernorm.weight": weights[ours + "feed_forward_norm"],
        }  # fmt: skip
    half_precision = {name: np.ascontiguousarray(value.astype(np.float16)) for name, value in found.items()}
    return half_precision, float(config["rope_theta"] ** (HEAD / old))


def write_model(folder: Path, config: dict[str, Any], source: Path) -> None:
    """config.json and a tokenizer that takes the longest known piece first, as the demo's does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    pieces = json.loads((source / "vocab.json").read_text())
    pieces += [f"<|filler-{number}|>" for number in range(256 - len(pieces))]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": 0, "content": pieces[0], "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
        ],
        # No piece has a space inside, so that words can be cut before each space; then a word costs little.
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext", "invert": False},
        "model": {
            "type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "",
            "max_input_chars_per_word": 100000,
            "vocab": {piece: number for number, piece in enumerate(pieces)},
        },
        "decoder": {"type": "Fuse"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": pieces[0], "unk_token": "?"}
    settings |= {"clean_up_tokenization_spaces": False, "model_max_length": 16384}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
