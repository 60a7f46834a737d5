"""One thread for every test: the runs are tiny, and sums depend on the number of threads."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
