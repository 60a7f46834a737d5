"""The command line: choose rows, measure them, print the table and write it as JSON."""

from __future__ import annotations

import argparse
import datetime as dt
import fnmatch
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from classfair import machine
from speed import engine, growth, loaders, losses, starts, steps
from speed.figures import Result, Row, show, table
from speed.measure import Effort

VERSION = 1
"""Of the JSON's shape."""


def all_rows() -> list[Row]:
    """Return every row in the order of the table."""
    return [row for part in (steps, losses, engine, loaders, starts, growth) for row in part.rows()]


def chosen(rows: Sequence[Row], patterns: Sequence[str] | None) -> list[Row]:
    """Return the rows that match any of the patterns; without patterns, all."""
    if not patterns:
        return list(rows)
    return [row for row in rows if any(fnmatch.fnmatch(row.name, p) for p in patterns)]


def measured(row: Row, effort: Effort) -> Result:
    """Measure a row; whatever goes wrong in it is its result."""
    torch.set_num_threads(row.threads or effort.threads)
    try:
        return Result(row, row.measure(effort))
    except Exception as error:  # noqa: BLE001 - the other rows are measured all the same
        return Result(row, error=f"{type(error).__name__}: {error}")


def report(results: Sequence[Result], effort: Effort, started: dt.datetime) -> dict[str, Any]:
    """Return what is written as JSON."""
    return {
        "version": VERSION,
        "started": started.isoformat(timespec="seconds"),
        "quick": effort.quick,
        "threads": effort.threads,
        "machine": machine.describe(torch.device("cpu"), "off") | {"load": os.getloadavg()[0]},
        "source": machine.git_state(),
        "rows": [result.to_json() for result in results],
    }


def title(made: dict[str, Any]) -> str:
    """Return what stands above the table."""
    where = made["machine"]
    quick = "; a quick look, too short to judge by" if made["quick"] else ""
    return (
        f"{where['device_name']}, {made['threads']} threads, {where['cpu_capability']}, "
        f"torch {where['packages']['torch']}, load {where['load']:.1f}, {made['started']}{quick}\n"
        "Medians with half the distance of the quartiles; ratios are medians over pairs."
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python benchmark/speed", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="rows by name, as in step.*; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="small and few: does it run?")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=Path("speed.json"), metavar="FILE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; the exit code is 1 if a row could not be measured."""
    given, started = parse(arguments), dt.datetime.now(dt.UTC)
    rows = chosen(all_rows(), given.only)
    if given.list or not rows:
        print("\n".join(row.name for row in rows or all_rows()))
        return 0 if rows else 2
    effort, results = Effort(given.quick, given.threads), []
    for number, row in enumerate(rows, 1):
        print(f"[{number}/{len(rows)}] {row.name}", file=sys.stderr, flush=True)
        results.append(measured(row, effort))
    made = report(results, effort, started)
    given.out.write_text(json.dumps(made, indent=1, allow_nan=False) + "\n")
    show(table(results, title(made)))
    return 1 if any(result.error for result in results) else 0
