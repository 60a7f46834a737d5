"""What the fork server imports before it forks; importing this module is what does it.

Elsewhere, where no ``CLASSFAIR_WARM`` names modules, it does nothing.

The server only imports: no tensor operation and no question to CUDA, for a child that is forked
after its parent used threads hangs.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import warnings
from collections.abc import Iterable

from classfair_plugins.launchers.local import BLOCKED, WARM


def _import(names: Iterable[str]) -> None:
    """Import modules, and those that they name in ``PRELOAD``."""
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
        except (Exception, SystemExit):  # noqa: BLE001, S112 - the job meets it and can log it
            continue
        _import(getattr(module, "PRELOAD", ()))


def _warm_up(names: str) -> None:
    # Children are born deaf to the Ctrl-C that a terminal sends to all of them: the runner decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nor does the server die with a signal to all, or nobody would learn how its children end.
    # Blocked rather than ignored: what is sent to a child in its first moments waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    _import(filter(None, names.split(",")))
    gc.freeze()  # Collecting in a child would otherwise copy the pages that it shares.


if WARM in os.environ:
    _warm_up(os.environ.pop(WARM))
