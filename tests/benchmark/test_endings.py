"""What is written down of a cell that left no word itself."""

import signal

import pytest

from classfair.endings import explain, last_words
from classfair_registry.specs import JobState


def ended(code, reason=""):
    return JobState("ended", code, reason)


@pytest.mark.parametrize("code", [75, -signal.SIGTERM, -signal.SIGUSR1])
def test_who_was_asked_to_stop_did_not_fail(tmp_path, code):
    assert explain(ended(code), tmp_path) is None


@pytest.mark.parametrize("code", [75, -signal.SIGTERM, -signal.SIGKILL, 0])
def test_but_over_its_time_it_did(tmp_path, code):
    failure = explain(ended(code, "timeout"), tmp_path, 90)
    assert failure.kind == "timeout"
    assert "limit of 90 minutes" in failure.message


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (None, "killed", "nobody saw how it ended"),
        (-signal.SIGKILL, "killed", "run fewer cells at a time"),
        (-signal.SIGBUS, "killed", "killed by SIGBUS; its last line was: the end"),
        (-250, "killed", "killed by signal 250"),
        (1, "error", "the end"),
        (0, "plugin", "exit code 0 before it was done; its last line was: the end"),
        (7, "plugin", "exit code 7"),
    ],
)
def test_each_exit_code_has_its_kind_and_message(tmp_path, code, kind, said):
    (tmp_path / "log.txt").write_text("== 2026 process 1\nthe end\n")
    failure = explain(ended(code), tmp_path)
    assert failure.kind == kind
    assert said in failure.message
    assert failure.log == f"{tmp_path.name}/log.txt"
    assert failure.traceback == "the end"


def test_without_a_log_there_is_still_a_message(tmp_path):
    failure = explain(ended(1), tmp_path)
    assert failure.message == "ended with exit code 1 and left no word"
    assert failure.traceback is None


def test_the_last_words_are_those_of_the_last_try(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("== 1 process 1\nold\n== 2 process 2\nnew\n\nnewer\n")
    assert last_words(log) == ["new", "newer"]


def test_of_a_long_log_only_the_end_is_read(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("== 1 process 1\n" + "".join(f"line {n}\n" for n in range(10_000)))
    words = last_words(log)
    assert words[-1] == "line 9999"
    assert len(words) == 30
