"""Render chat templates, which are untrusted programs, in separate processes (L5.5)."""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import LifoQueue
from typing import Any

from clearhead.errors import ClearheadError

MAX_RENDER_SECONDS = 5.0
MAX_PROCESSES = 4  # so that a slow template does not delay the others
RENDERER_MODULE = "clearhead.generate.chat_template_worker"

Message = Mapping[str, str]


class ChatTemplateProcess:
    """A process that renders templates one after another, started when first needed.

    It is killed when a template takes too long, and ends when this process ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self._inherited: subprocess.Popen[str] | None = None  # kept, so that no buffer is flushed

    def render(self, template: str, messages: Sequence[Message]) -> str:
        """Render a conversation, up to where the assistant answers."""
        request = {"template": template, "messages": [dict(message) for message in messages]}
        with self._lock:
            response = self._request(json.dumps(request))
        if "error" in response:
            reason = response["error"].split("\n")[0].removesuffix(".")
            raise ClearheadError(f"the chat template cannot render this conversation: {reason}.")
        return str(response["prompt"])

    def close(self) -> None:
        """End the process; another request starts a new one."""
        with self._lock:
            self._stop()

    def forget_parent(self) -> None:
        """After a fork, leave the process to the parent."""
        self._lock = threading.Lock()
        self._inherited = self.process
        self.process = None

    def _request(self, line: str) -> dict[str, Any]:
        process = self._running_process()
        is_late = threading.Event()

        def kill() -> None:
            is_late.set()
            process.kill()

        response = ""
        timer = threading.Timer(MAX_RENDER_SECONDS, kill)
        timer.start()
        try:
            response = _exchange(process, line)
        finally:
            timer.cancel()
            timer.join()
            if is_late.is_set() or not response:  # after an interrupt, the response is yet to come
                self._stop()
        if response:
            return dict(json.loads(response))
        if is_late.is_set():
            return {"error": f"it takes longer than {MAX_RENDER_SECONDS:g} seconds"}
        return {"error": f"its process ended with status {process.returncode}"}

    def _running_process(self) -> subprocess.Popen[str]:
        if self.process is not None and self.process.poll() is None:
            return self.process
        self._stop()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", RENDERER_MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="ascii",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C interrupts only this process
            )
        except OSError as error:
            raise ClearheadError(
                f"cannot start a process for the chat template: {error.strerror}."
            ) from None
        if not _read_line(process):  # it is ready
            status = process.wait()
            raise ClearheadError(f"the process for chat templates ended with status {status}.")
        self.process = process
        return process

    def _stop(self) -> None:
        if self.process is not None:
            process = self.process
            self.process = None
            with suppress(BrokenPipeError), process:
                process.kill()


def _exchange(process: subprocess.Popen[str], line: str) -> str:
    """Send a request; the response is empty if the process ends."""
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return _read_line(process)


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    return line if line.endswith("\n") else ""


class ChatTemplatePool:
    """Processes that render templates at the same time, started when the others are busy."""

    def __init__(self) -> None:
        self.processes = [ChatTemplateProcess() for _ in range(MAX_PROCESSES)]
        self._make_idle()

    def _make_idle(self) -> None:
        # The last one used comes first: it is running, and it may have compiled the template.
        self._idle = LifoQueue[ChatTemplateProcess]()
        for process in self.processes:
            self._idle.put(process)

    def render(self, template: str, messages: Sequence[Message]) -> str:
        """Render a conversation, up to where the assistant answers."""
        process = self._idle.get()
        try:
            return process.render(template, messages)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End the processes; other requests start new ones."""
        for process in self.processes:
            process.close()

    def forget_parent(self) -> None:
        """After a fork, leave the processes to the parent."""
        for process in self.processes:
            process.forget_parent()
        self._make_idle()


RENDERER = ChatTemplatePool()
atexit.register(RENDERER.close)
os.register_at_fork(after_in_child=RENDERER.forget_parent)


def render_chat_template(template: str, messages: Sequence[Message]) -> str:
    """Render a conversation, up to where the assistant answers."""
    return RENDERER.render(template, messages)
