"""Ctrl-C and SIGTERM, at a moment that suits."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Turns the first request to stop into a KeyboardInterrupt at a moment that suits.

    A second one does not wait for such a moment. Threads other than the main one have no signals.
    """

    def __init__(self) -> None:
        self.asked = self._raised = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # A background job of a shell ignores Ctrl-C, and is right to.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's
        if self.asked:
            self._raised = True
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """Raise KeyboardInterrupt once if a stop was asked for."""
        if self.asked and not self._raised:
            self._raised = True
            raise KeyboardInterrupt
