"""Jobs for the tests of launchers: ``main(args)`` does what its arguments say."""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

PRELOAD = ("xml.dom.minidom", "no_such_module")


def main(args):
    action, *rest = args
    return ACTIONS[action](*rest)


def _report(folder):
    """Write down what the process was born with."""
    facts = {
        "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "threads": os.environ["OMP_NUM_THREADS"],
        "given": os.environ.get("CLASSFAIR_TEST"),
        "warm": "xml.dom.minidom" in sys.modules,
        "main": sys.modules["__main__"].__name__,
        "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "files": [str(path) for path in Path("/proc/self/fd").iterdir() if path.exists()],
        "server": os.getppid(),
    }
    Path(folder, "facts.json").write_text(json.dumps(facts))
    return 0


def _sleep(seconds, folder=None):
    if folder:
        Path(folder, "pid").write_text(str(os.getpid()))
    time.sleep(float(seconds))
    return 0


def _deaf(seconds, folder):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return _sleep(seconds, folder)


def _polite(seconds, folder):
    """Stop with 75 when asked to, as a cell does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    return _sleep(seconds, folder)


def _print(text):
    print(text)
    print(text.upper(), file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)


def _raise():
    raise ValueError("no such thing")


def _span(folder, seconds):
    """Write down when the job ran."""
    begin = time.monotonic()
    time.sleep(float(seconds))
    Path(folder, "span.json").write_text(json.dumps([begin, time.monotonic()]))
    return 0


ACTIONS = {
    "report": _report,
    "sleep": _sleep,
    "deaf": _deaf,
    "polite": _polite,
    "print": _print,
    "raise": _raise,
    "span": _span,
    "exit": lambda code: os._exit(int(code)),
    "signal": lambda number: os.kill(os.getpid(), int(number)),
    "crash": lambda: ctypes.string_at(0),
}
