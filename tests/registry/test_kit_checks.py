"""The kit passes a sound method, and finds each mistake by the check that is meant for it."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest

import broken_methods
import pytest
import torch

from classfair_registry.specs import Capabilities
from classfair_registry.testing import CHECKS, check_method, conformance_cases, run_case
from classfair_registry.testing import globals as process
from classfair_registry.testing.kit import Conformance
from classfair_registry.testing.processes import Place
from classfair_registry.testing.subject import Broken


@pytest.mark.parametrize(
    "case", [case for spec in broken_methods.SOUND for case in conformance_cases(spec)], ids=str
)
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


def test_the_checks_are_quiet(caplog, recwarn):
    assert Conformance(broken_methods.spec(broken_methods.Talks)).result("runs").passed
    assert not caplog.records
    assert not list(recwarn)
    broken_methods.LOG.warning("now it is heard")
    assert [record.message for record in caplog.records] == ["now it is heard"]


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


def test_a_function_is_found_by_another_process_in_a_file_of_its_own(tmp_path):
    file = tmp_path / "a_plugin_file.py"
    file.write_text("class Outer:\n    def made():\n        return 7\n")
    here = Place("a_plugin_module_of_one_file", str(file), "Outer.made")
    assert here.find()() == 7
    assert Place.of(here.find()) == here
    del sys.modules[here.module]
    assert here.find()() == 7


def test_what_no_other_process_can_find_is_refused():
    with pytest.raises(Broken, match="at module level"):
        Place.of(lambda setup, settings: None)


def test_the_kit_needs_neither_pytest_nor_the_engine():
    code = (
        "import sys, classfair_registry.testing; "
        "print([n for n in ('pytest', 'classfair', 'classfair_plugins') if n in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_a_method_can_be_named_instead_of_given():
    assert [str(case) for case in conformance_cases("erm")][:2] == ["erm-spec", "erm-splits"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
def test_a_sound_step_can_be_captured():
    result = Conformance(broken_methods.REFERENCE).result("captured")
    assert result.outcome == "passed", result.sentence
