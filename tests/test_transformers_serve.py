"""`transformers serve` as a server under test, for real: a tiny random Llama, served as its version wants it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.client import perform
from harness.request import PATHS, Plan, Question, completion_body
from harness.serve_blocks import serve_block
from harness.server import Ready, serving
from rtb.local_sandbox import open_local_sandbox
from rtb.sandbox import Limits

MODEL = """
import sys
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, __version__

words = {character: number for number, character in enumerate([*map(chr, range(32, 127)), "\\n", "<eos>"])}
made = Tokenizer(models.WordLevel(words, unk_token=" "))
made.pre_tokenizer, made.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<eos>")
tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\\n{% endfor %}"
tokenizer.save_pretrained(sys.argv[1])
torch.manual_seed(0)
last = len(words) - 1
config = LlamaConfig(
    vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=None, eos_token_id=last, pad_token_id=last,
)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
print(__version__)
"""


def test_transformers_serve_answers_and_is_stopped(tmp_path: Path) -> None:
    folder = os.environ.get("RTB_TRANSFORMERS_BIN")
    if not folder:
        pytest.skip("set RTB_TRANSFORMERS_BIN to a folder with `python` and `transformers`, torch beside it")
    base = tmp_path / "base"
    base.mkdir()
    made = subprocess.run(
        [f"{folder}/python", "-c", MODEL, str(base / "model")],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    version = made.stdout.split()[-1]
    serve = serve_block("transformers", version, "model").model_copy(update={"ready_timeout_seconds": 300.0})
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    with (
        open_local_sandbox(base, env={}, path=path, limits=Limits()) as sandbox,
        serving(sandbox, serve, tmp_path / "server.log") as ready,
    ):
        assert isinstance(ready, Ready), str(ready)
        questions = tuple(
            Question(index=n, body=completion_body(f"{n} + 3?", 6, model="model", endpoint="chat", **serve.request))
            for n in range(2)
        )
        plan = Plan(address=ready.address, path=PATHS["chat"], questions=questions, timeout_seconds=120)
        records = perform(plan)
    assert [record.status for record in records] == [200, 200], records
    assert [record.completion_tokens for record in records] == [6, 6]
    assert [record.error for record in records] == [None, None]
    assert [record.finish for record in records] == ["length", "length"]
    assert all(record.chunks >= 6 for record in records)
