"""The kit passes a sound method, and finds each mistake by the check that is meant for it."""

from __future__ import annotations

import re
import unittest

import broken_methods
import pytest
import torch

from classfair_registry.specs import Capabilities
from classfair_registry.testing import CHECKS, check_method, conformance_cases, run_case
from classfair_registry.testing import globals as process
from classfair_registry.testing.kit import Conformance


@pytest.mark.parametrize("case", conformance_cases(broken_methods.REFERENCE), ids=str)
def test_a_sound_method_passes(case):
    run_case(case)


@pytest.mark.parametrize("mistake", broken_methods.EXACT)
def test_a_mistake_fails_the_check_meant_for_it_and_no_other(mistake):
    spec, meant = broken_methods.EXACT[mistake]
    failed = {result.name: result.sentence for result in check_method(spec) if _failed(result)}
    assert list(failed) == [meant], failed
    assert "; " in failed[meant], "the sentence names no mend"


def _failed(result):
    return result.outcome == "failed"


@pytest.mark.parametrize("mistake", broken_methods.ALSO)
def test_a_mistake_is_named_with_its_mend(mistake):
    spec, meant, words = broken_methods.ALSO[mistake]
    result = Conformance(spec).result(meant)
    assert result.outcome == "failed"
    assert re.search(words, result.sentence), result.sentence
    assert "\n" not in result.sentence


def test_every_check_has_a_mistake_that_it_finds():
    meant = {entry[1] for entry in [*broken_methods.EXACT.values(), *broken_methods.ALSO.values()]}
    same_as_distributed, needs_a_gpu = {"gloo"}, {"captured"}
    assert meant == {check.name for check in CHECKS} - same_as_distributed - needs_a_gpu


def test_every_check_has_a_promise_of_one_sentence_and_earlier_needs():
    seen: set[str] = set()
    for check in CHECKS:
        assert check.promise.endswith("."), check.name
        assert set(check.needs) <= seen
        seen.add(check.name)


def test_a_check_is_not_judged_before_what_it_needs_passes():
    spec, _ = broken_methods.EXACT["unseeded randomness"]
    result = Conformance(spec).result("resume")
    assert (result.outcome, result.passed) == ("blocked", False)
    assert "'repeat'" in result.sentence


def test_a_case_fails_with_its_sentence_and_is_skipped_if_blocked():
    spec, _ = broken_methods.EXACT["unseeded randomness"]
    cases = {case.check: case for case in conformance_cases(spec)}
    with pytest.raises(AssertionError, match=r"restless-repeat: .* draw random numbers from torch"):
        run_case(cases["repeat"])
    with pytest.raises(unittest.SkipTest, match="restless-resume: not judged before 'repeat'"):
        run_case(cases["resume"])


def test_only_what_a_spec_claims_is_a_case():
    modest = broken_methods.spec(
        broken_methods.Reference, capabilities=Capabilities(resume="restart")
    )
    names = {case.check for case in conformance_cases(modest)}
    assert names.isdisjoint({"resume", "distributed", "gloo", "captured"})
    unclaimed = Conformance(modest).result("distributed")
    assert (unclaimed.outcome, unclaimed.passed) == ("unclaimed", True)


def test_the_checks_leave_the_process_as_it_was():
    before, random = process.read(), torch.get_rng_state()
    for mistake in ("another default dtype", "a seeded global generator"):
        Conformance(broken_methods.EXACT[mistake][0]).result("global_state")
    assert process.changed(before) == []
    assert torch.equal(random, torch.get_rng_state())


def test_settings_go_over_the_example_of_the_spec():
    spec = broken_methods.spec(
        broken_methods.Reference, settings=broken_methods.Unexplained, example={"scale": 2.0}
    )
    assert Conformance(spec).subject.settings.scale == 2.0
    assert Conformance(spec, {"scale": 3.0}).subject.settings.scale == 3.0


def test_a_thorough_run_takes_real_processes_too():
    conformance = Conformance(broken_methods.REFERENCE, quick=False)
    result = conformance.result("gloo")
    assert result.outcome == "passed", result.sentence


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
def test_a_sound_step_can_be_captured():
    result = Conformance(broken_methods.REFERENCE).result("captured")
    assert result.outcome == "passed", result.sentence
