"""The checks by name, their order, and how they are run."""

from __future__ import annotations

import dataclasses
import traceback
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from classfair_registry.manager import discover
from classfair_registry.specs import MethodSpec
from classfair_registry.testing import claims, edges, exactness, graphs, looking, several
from classfair_registry.testing.globals import isolated
from classfair_registry.testing.subject import Broken, Subject


def _always(_subject: Subject) -> str:
    return ""


def _if_exact(subject: Subject) -> str:
    exact = subject.spec.capabilities.resume == "exact"
    return "" if exact else "the spec claims restarts only"


def _if_distributed(subject: Subject) -> str:
    return "" if subject.spec.capabilities.distributed else "the spec claims one process only"


def _if_thorough(subject: Subject) -> str:
    return _if_distributed(subject) or ("left out of the quick checks" if subject.quick else "")


def _if_capturable(subject: Subject) -> str:
    if not subject.spec.capabilities.capturable:
        return "the spec claims no captured steps"
    return "" if torch.cuda.is_available() else "there is no CUDA device"


@dataclasses.dataclass(frozen=True)
class Check:
    """One promise and how it is tested.

    Attributes:
        name: on the command line and in test names.
        test: raises Broken if the promise is not kept; its docstring is the promise.
        needs: checks without which this one's answer would mean nothing.
        unclaimed: returns why a method need not keep it, or nothing.
    """

    name: str
    test: Callable[[Subject], None]
    needs: tuple[str, ...] = ()
    unclaimed: Callable[[Subject], str] = _always

    @property
    def promise(self) -> str:
        """The promise in one sentence."""
        return (self.test.__doc__ or "").splitlines()[0]


_MADE_WELL = ("global_state", "optimizers")

CHECKS: tuple[Check, ...] = (
    Check("spec", claims.spec_is_complete),
    Check("splits", claims.reads_declared_splits),
    Check("runs", claims.runs, ("splits",)),
    Check("global_state", looking.leaves_globals_alone, ("runs",)),
    Check("optimizers", claims.optimizes_by_setup, ("runs",)),
    Check("phases", claims.phases_add_up, ("runs",)),
    Check("shapes", claims.has_the_right_shapes, ("runs",)),
    Check("finite", claims.is_finite, _MADE_WELL),
    Check("learns", claims.learns, ("finite",)),
    Check("checkpoint", exactness.can_be_saved, _MADE_WELL),
    Check("repeat", exactness.repeats, _MADE_WELL),
    Check("resume", exactness.resumes, ("repeat", "checkpoint"), _if_exact),
    Check("predict", looking.is_not_changed_by_looking, ("repeat",)),
    Check("regimes", claims.fits_its_regimes, ("finite",)),
    Check("absent_class", edges.survives_absent_classes, ("finite",)),
    Check("class_of_one", edges.survives_a_class_of_one, ("absent_class",)),
    Check("constant_features", edges.survives_constant_features, ("finite",)),
    Check("zero_features", edges.survives_zero_features, ("constant_features",)),
    Check("batch_of_one", edges.survives_batches_of_one, ("class_of_one", "constant_features")),
    Check("large_logits", edges.survives_large_logits, ("finite",)),
    Check("bf16", edges.runs_in_bfloat16, ("finite",)),
    Check("distributed", several.equals_one_process, ("repeat", "absent_class"), _if_distributed),
    Check("gloo", several.equals_one_process_over_gloo, ("distributed",), _if_thorough),
    Check("captured", graphs.captured_steps_equal_eager_ones, ("repeat",), _if_capturable),
)
"""In the order in which they are run. Each catches one cause: what an earlier one would have caught
too is not judged before that one is mended."""

_BY_NAME = {check.name: check for check in CHECKS}


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """What a check found.

    Attributes:
        name: of the check.
        outcome: ``passed``, ``failed``, ``blocked`` (a check that it needs failed) or
            ``unclaimed`` (the spec does not promise it, or it cannot be tested here).
        sentence: what is wrong and how to mend it, or why it was not judged; empty if it passed.
    """

    name: str
    outcome: Literal["passed", "failed", "blocked", "unclaimed"]
    sentence: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong as far as this check can say."""
        return self.outcome in ("passed", "unclaimed")


class Conformance:
    """The checks of one method; each is made once, when it is first asked for."""

    def __init__(
        self, spec: MethodSpec, settings: Mapping[str, Any] | None = None, *, quick: bool = True
    ) -> None:
        self.subject = Subject(spec, settings, quick=quick)
        self._results: dict[str, CheckResult] = {}

    def result(self, name: str) -> CheckResult:
        """Return what a check found."""
        if name not in self._results:
            self._results[name] = self._judge(_BY_NAME[name])
        return self._results[name]

    def _judge(self, check: Check) -> CheckResult:
        reason = check.unclaimed(self.subject)
        if reason:
            return CheckResult(check.name, "unclaimed", reason)
        missing = next((name for name in check.needs if not self.result(name).passed), None)
        if missing:
            return CheckResult(check.name, "blocked", f"not judged before {missing!r} passes")
        try:
            with isolated():
                check.test(self.subject)
        except Broken as broken:
            return CheckResult(check.name, "failed", str(broken))
        except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
            return CheckResult(check.name, "failed", _sentence(error))
        return CheckResult(check.name, "passed")


def _sentence(error: Exception) -> str:
    """Say what was raised and where: the innermost line outside of torch and of this kit."""
    others = tuple(str(Path(file).parent) for file in (__file__, torch.__file__))
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    frame = (own or list(frames))[-1]
    text = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {text} ({Path(frame.filename).name}, line {frame.lineno}: "
        f"{frame.line}); mend what raises it"
    )


def check_method(
    spec: MethodSpec, settings: Mapping[str, Any] | None = None, quick: bool = True
) -> list[CheckResult]:
    """Run every check on a method.

    Args:
        spec: of the method.
        settings: by name, over those of ``spec.example``.
        quick: seconds instead of half a minute: fewer stops, fewer worlds, no processes.
    """
    conformance = Conformance(spec, settings, quick=quick)
    return [conformance.result(check.name) for check in CHECKS]


@dataclasses.dataclass(frozen=True)
class Case:
    """One check of one method, for a parametrised test."""

    conformance: Conformance
    check: str

    def __str__(self) -> str:
        return f"{self.conformance.subject.spec.name}-{self.check}"


def conformance_cases(
    method: str | MethodSpec, settings: Mapping[str, Any] | None = None, quick: bool = True
) -> list[Case]:
    """Return the checks that apply to a method, for ``pytest.mark.parametrize``.

    Args:
        method: its spec, or the name under which an installed plugin provides it.
        settings: by name, over those of the spec's example.
        quick: see :func:`check_method`.
    """
    spec = discover().get("methods", method) if isinstance(method, str) else method
    conformance = Conformance(spec, settings, quick=quick)
    claimed = [check for check in CHECKS if not check.unclaimed(conformance.subject)]
    return [Case(conformance, check.name) for check in claimed]


def run_case(case: Case) -> None:
    """Make one check.

    Raises:
        AssertionError: with the sentence that says what is wrong and how to mend it.
        unittest.SkipTest: if a check that this one needs failed; its own case says why.
    """
    result = case.conformance.result(case.check)
    if result.outcome == "blocked":
        raise unittest.SkipTest(f"{case}: {result.sentence}")
    if not result.passed:
        raise AssertionError(f"{case}: {result.sentence}")
