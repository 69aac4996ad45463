"""A completion server with an absolute schedule: token i leaves at arrival + TTFT + i * gap, whatever came before.

Its latency is known, so that a client and a decision rule can be tested against the truth. Standard library only.
Run: python mock_server.py --listen unix:PATH|HOST:PORT --ttft-ms 100 --gap-ms 10 [--fault NAME] [--answers FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

chance = random.Random(1)
FAULTS = (
    "none", "role_chunk", "bundle", "early_count", "empty_text", "error_event", "short", "no_usage", "final_usage",
    "close", "status_500", "no_json", "stop", "hang", "one_chunk", "split_bytes", "close_long", "close_some",
    "short_later", "crash_third", "half_frame", "status_500_later",
    "drip_health", "flood", "endless_head",
)  # fmt: skip


def listen(address: str) -> socket.socket:
    if address.startswith("unix:"):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        server = socket.create_server((host, int(port)))
    server.listen(128)
    return server


def sleep_until(moment: float) -> None:
    """Sleep to an absolute moment of the monotonic clock; the last stretch in small steps."""
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left if left < 0.002 else left - 0.001)


class Connection(threading.Thread):
    def __init__(self, options: argparse.Namespace, connection: socket.socket) -> None:
        super().__init__(daemon=True)
        self.options = options
        self.connection = connection
        self.held = b""

    def run(self) -> None:
        with self.connection:
            try:
                while self.answer():
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass

    def request(self) -> tuple[str, dict[str, Any]] | None:
        while b"\r\n\r\n" not in self.held:
            data = self.connection.recv(65536)
            if not data:
                return None
            self.held += data
        head, _, self.held = self.held.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        sizes = [int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")]
        size = sizes[0] if sizes else 0
        while len(self.held) < size:
            self.held += self.connection.recv(65536)
        body, self.held = self.held[:size], self.held[size:]
        return lines[0].split(" ")[1], json.loads(body) if body else {}

    def plain(self, status: str, text: str) -> None:
        body = text.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.connection.sendall(head.encode() + body)

    def answer(self) -> bool:
        found = self.request()
        if found is None:
            return False
        arrived = time.perf_counter()
        path, body = found
        if path == "/health" and self.options.fault == "drip_health":
            for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10**6:
                self.connection.sendall(bytes([byte]))
                time.sleep(0.2)
        if path != "/health" and self.options.fault in ("flood", "endless_head"):
            part = b"x" * (1 << 20)
            self.connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"\r\n" * (self.options.fault == "flood"))
            while True:
                self.connection.sendall(part)
        if path == "/health":
            self.plain("200 OK", "{}")
        elif self.options.fault == "status_500" or (
            self.options.fault == "status_500_later" and body.get("max_tokens", 0) > 2
        ):
            self.plain("500 Internal Server Error", '{"error": "planted"}')
        elif self.options.fault == "hang":
            time.sleep(3600)
        elif not body.get("stream"):
            self.plain("200 OK", json.dumps({"choices": [{"text": "x", "finish_reason": "length"}]}))
        else:
            return self.stream(body, arrived)
        return True

    def send_event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        chunk = b"%x\r\n%s\r\n" % (len(event), event)
        if self.options.fault == "split_bytes":
            for byte in range(len(chunk)):
                self.connection.sendall(chunk[byte : byte + 1])
        else:
            self.connection.sendall(chunk)

    def stream(self, body: dict[str, Any], arrived: float) -> bool:
        fault, options = self.options.fault, self.options
        pieces = self.pieces(body)
        asked = len(pieces)
        if fault == "crash_third" and next(options.streams) == 3:
            os._exit(7)
        if fault == "short" or (fault == "short_later" and self.is_later()):
            pieces = pieces[: asked // 2]
        self.connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if fault == "role_chunk":
            self.send_event('{"choices": [{"delta": {"role": "assistant", "content": ""}}]}')
        size = {"bundle": 4, "one_chunk": asked}.get(fault, 1)
        for first in range(0, len(pieces), size):
            # A request may bring its own schedule: then one process stands for many launches.
            ttft, gap = body.get("mock_ttft_ms", options.ttft_ms), body.get("mock_gap_ms", options.gap_ms)
            sleep_until(arrived + (ttft + first * gap) * options.factor / 1000)
            count = min(first + size, len(pieces))
            last = count == len(pieces)
            text = "" if fault == "empty_text" and count % 4 else "".join(pieces[first:count])
            ended = ("stop" if fault == "stop" or options.answers else "length") if last else None
            choice: dict[str, Any] = {"index": 0, "finish_reason": ended}
            choice |= {"delta": {"content": text}} if "messages" in body else {"text": text}
            event: dict[str, Any] = {"object": "text_completion", "choices": [choice]}
            if fault not in ("no_usage", "final_usage"):
                claimed = asked if fault == "early_count" and first else count
                event["usage"] = {"prompt_tokens": 3, "completion_tokens": claimed}
            if fault == "half_frame" and body["max_tokens"] > 2 and not last:
                self.connection.sendall(b'fff\r\ndata: {"choices": [{"text": "h')
                return False
            self.send_event("{broken" if fault == "no_json" and first else json.dumps(event))
            if fault == "error_event" and first:
                self.send_event('{"error": {"message": "planted", "code": 500}}')
                break
            if fault == "close" and first:
                return False
            breaks = fault == "close_long" or (fault == "close_some" and chance.random() < 0.1)
            if breaks and not last and body["max_tokens"] > 2:
                return False
        if fault != "no_usage":
            self.send_event(
                json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(pieces)}})
            )
        self.send_event("[DONE]")
        self.connection.sendall(b"0\r\n\r\n")
        return True

    def is_later(self) -> bool:
        """Whether the server has been started before in this tree: true from the second launch on."""
        return bool(self.options.launch > 1)

    def pieces(self, body: dict[str, Any]) -> list[str]:
        if self.options.answers:
            answers = json.loads(Path(self.options.answers).read_text())
            asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
            text = next((text for part, text in answers.items() if asked.rstrip().endswith(part)), "I do not know.")
            return [word + " " for word in text.split(" ")]
        return ["" if number % 5 == 4 else "t " for number in range(int(body["max_tokens"]))]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--ttft-ms", type=float, default=50)
    parser.add_argument("--gap-ms", type=float, default=5)
    parser.add_argument("--noise", type=float, default=0.0, help="sd of ln(speed) of one launch")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--answers")
    parser.add_argument("--exit-code", type=int, default=None, help="print a line and end at once")
    options = parser.parse_args()
    if options.exit_code is not None:
        sys.stderr.write("planted: the model file is not there\n")
        return int(options.exit_code)
    speed = random.Random(options.seed if options.seed is not None else int.from_bytes(os.urandom(8)))
    options.factor = 2.718281828459045 ** speed.gauss(0, options.noise)
    counter = Path(".launches")
    options.streams = itertools.count(1)
    options.launch = int(counter.read_text()) + 1 if counter.is_file() else 1
    if options.fault == "short_later":
        counter.write_text(str(options.launch))
    server = listen(options.listen)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        connection, _ = server.accept()
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Connection(options, connection).start()


if __name__ == "__main__":
    sys.exit(main())
