"""Prompts of a latency workload: words by chance, as long as asked for in the server's own tokens. Pure."""

from __future__ import annotations

import hashlib
import random
import re
from typing import Final

from harness.request import Question, completion_body
from rtb.task import LatencyStage

# Short everyday words: about a token each for most models. How many of them make a length is measured, not assumed.
WORDS: Final = re.findall(
    r"\w+",
    """time year people way day man thing woman life child world school state family student group country
    problem hand part place case week company system program question work night point home water room
    mother area money story fact month lot right study book eye job word business issue side kind head
    house service friend father power hour game line end member law car city name team minute idea body
    back parent face level office door health art war""",
)
PROBE_WORDS: Final = (32, 64)


def text(words: int, *seed: object) -> str:
    """So many words, the same for the same seed on any machine."""
    digest = hashlib.sha256("\0".join(str(part) for part in seed).encode()).digest()
    chance = random.Random(digest)
    return " ".join(chance.choice(WORDS) for _ in range(words))


def words_for(tokens: int, measured: tuple[tuple[int, int], tuple[int, int]]) -> int:
    """How many words make up to `tokens` tokens, from two probes of (words, prompt tokens). At least one."""
    (few, few_tokens), (many, many_tokens) = measured
    per_word = (many_tokens - few_tokens) / (many - few)
    if per_word <= 0:
        return max(1, tokens)
    return max(1, int((tokens - (few_tokens - few * per_word)) / per_word))


def requests(
    stage: LatencyStage, instance_id: str, words: int, purpose: str, block: int, count: int
) -> tuple[Question, ...]:
    """`count` requests of the workload. Prompts depend on block and purpose and never on the side."""
    serve, load = stage.serve, stage.workload
    keys = {"ignore_eos": True, **serve.request}
    return tuple(
        Question(
            index=index,
            requested=load.output_len,
            body=completion_body(
                text(words, instance_id, load.seed, purpose, block, index),
                load.output_len,
                model=serve.model,
                endpoint=serve.endpoint,
                **keys,
            ),
        )
        for index in range(count)
    )
