"""The messages of an attempt: all of them for the trajectory, a shortened copy for a model with a full context."""

from __future__ import annotations

from typing import Any

CUT = "[output left out: the conversation had grown too long; run the command again if you need it]"
_KEPT = 2  # the newest observations are what the model works on
_SHORT = 2000


class Conversation:
    """Messages in mini-SWE-agent's shape: `extra` holds facts that are never sent."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages: list[dict[str, Any]] = list(messages)
        self._cut_before = 0
        self._short_tail = False

    def add(self, *messages: dict[str, Any]) -> None:
        self.messages.extend(messages)

    def to_send(self) -> list[dict[str, Any]]:
        """What the model sees: without `extra`, with older observations left out once the context was full."""
        sent = []
        for index, message in enumerate(self.messages):
            if message["role"] == "exit":
                continue
            copy = {key: value for key, value in message.items() if key != "extra"}
            if self._is_observation(index):
                if index < self._cut_before:
                    copy["content"] = CUT
                elif self._short_tail and len(copy["content"]) > _SHORT:
                    half = _SHORT // 2
                    copy["content"] = f"{copy['content'][:half]}\n{CUT}\n{copy['content'][-half:]}"
            sent.append(copy)
        return sent

    def shorten(self) -> bool:
        """Leave out the older half of the observations shown; at last shorten the newest. False: no more."""
        shown = [index for index in range(self._cut_before, len(self.messages)) if self._is_observation(index)]
        if len(shown) > _KEPT:
            count = max(1, min(len(shown) - _KEPT, len(shown) // 2))
            self._cut_before = shown[count - 1] + 1
            return True
        if not self._short_tail and any(len(self.messages[index]["content"]) > _SHORT for index in shown):
            self._short_tail = True
            return True
        return False

    def _is_observation(self, index: int) -> bool:
        return "returncode" in self.messages[index].get("extra", {})
