"""Run with ``python benchmark/speed``; ``--help`` says how."""

import sys
from pathlib import Path

if not __package__:
    # Python put this folder first, as if its modules stood alone; they are a package beside others.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from speed.bench import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
