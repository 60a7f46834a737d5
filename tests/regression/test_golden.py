"""Every method that ships computes its golden trace; one that does not says where and how far."""

from __future__ import annotations

import copy
import json

import golden
import pytest

NAMES = sorted({*golden.methods(), *(path.stem for path in golden.FOLDER.glob("*.json"))})


@pytest.mark.parametrize("name", NAMES)
def test_a_method_computes_its_golden_trace(name):
    assert golden.complaint(name) == ""


# -- what a golden says when something is wrong ------------------------------------------------


@pytest.fixture(scope="module")
def spec():
    return golden.spec_of("erm")


@pytest.fixture(scope="module")
def fresh(spec):
    """What ERM computes now."""
    return golden.computed(spec)


@pytest.fixture
def doctored(fresh):
    """A golden of it to be changed."""
    return copy.deepcopy(fresh)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of goldens of its own."""
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    return tmp_path


def test_a_trace_that_repeats_is_no_drift(fresh, spec):
    assert golden.drift(fresh, golden.computed(spec)) == ""


def test_a_loss_that_moved_names_method_seed_step_and_distance(doctored, fresh):
    terms = doctored["seeds"]["1"]["steps"][3]["terms"]
    terms["loss"] += 0.05
    told = golden.drift(doctored, fresh)
    assert told.startswith("erm, seed 1: the traces part at step 3 (phase train): loss is ")
    assert f"the golden has {terms['loss']:g}, 0.05 apart where 0.00" in told
    assert "raise the method's revision" in told
    assert "python tests/regression/golden.py erm" in told
    assert "CHANGELOG.md" in told


def test_the_first_step_that_moved_is_named(doctored, fresh):
    for number in (4, 2, 5):
        doctored["seeds"]["0"]["steps"][number]["terms"]["loss"] += 1
    assert "part at step 2 " in golden.drift(doctored, fresh)


def test_a_loss_may_be_off_by_a_ten_thousandth_of_one_and_of_its_size(doctored, fresh):
    terms = doctored["seeds"]["0"]["steps"][0]["terms"]
    exact = terms["loss"]
    terms["loss"] = exact + 0.99e-4 * (1 + exact)
    assert golden.drift(doctored, fresh) == ""
    terms["loss"] = exact + 1.01e-4 * (1 + exact)
    assert "at step 0" in golden.drift(doctored, fresh)


def test_a_loss_that_is_not_a_number_is_a_drift(doctored, fresh):
    fresh = copy.deepcopy(fresh)
    fresh["seeds"]["0"]["steps"][1]["terms"]["loss"] = float("nan")
    assert "at step 1 (phase train): loss is nan" in golden.drift(doctored, fresh)


def test_a_learning_rate_that_moved_is_a_drift(doctored, fresh):
    doctored["seeds"]["0"]["steps"][2]["rates"][0] *= 2
    assert "at step 2 (phase train): learning rate 0 is " in golden.drift(doctored, fresh)


def test_another_term_is_a_drift(doctored, fresh):
    doctored["seeds"]["0"]["steps"][0]["terms"]["extra"] = 0.0
    told = golden.drift(doctored, fresh)
    assert "at step 0" in told
    assert "it gives loss of 1 optimisers, the golden loss, extra of 1 optimisers" in told


def test_another_phase_is_a_drift(doctored, fresh):
    doctored["seeds"]["0"]["steps"][4]["phase"] = "probe"
    assert "at step 4 (phase train): the golden is in phase probe" in golden.drift(doctored, fresh)


def test_another_number_of_steps_is_a_drift(doctored, fresh):
    steps = len(doctored["seeds"]["0"]["steps"])
    doctored["seeds"]["0"]["steps"].pop()
    told = golden.drift(doctored, fresh)
    assert f"the trace has {steps} steps, the golden {steps - 1}" in told


def test_weights_that_the_last_step_moved_are_a_drift(doctored, fresh):
    doctored["seeds"]["0"]["test_loss"] += 0.01
    told = golden.drift(doctored, fresh)
    assert "the traces part in the last step: the loss on the test images is " in told
    assert "0.01 apart" in told


def test_answers_must_be_equal_on_an_equal_machine(doctored, fresh):
    answers = doctored["seeds"]["0"]["answers"]
    other = "1" if answers[17] == "0" else "0"
    doctored["seeds"]["0"]["answers"] = f"{answers[:17]}{other}{answers[18:]}"
    told = golden.drift(doctored, fresh)
    assert f"1 of {len(answers)} test images are answered otherwise" in told
    assert f"image 17: {answers[17]}, the golden has {other}" in told


@pytest.mark.parametrize("key", ["torch", "cpu", "threads"])
def test_answers_may_differ_on_another_machine(doctored, fresh, key):
    doctored[key] = "another"
    doctored["seeds"]["0"]["answers"] = "0" * len(doctored["seeds"]["0"]["answers"])
    assert golden.drift(doctored, fresh) == ""


@pytest.mark.parametrize("key", ["revision", "protocol"])
def test_a_golden_of_another_revision_or_protocol_asks_for_a_new_one(doctored, spec, key):
    doctored[key] = 7
    told = golden.outdated(doctored, golden.what(spec))
    assert told == (
        f"the golden of erm is of {key} 7, it is 1 now; "
        "run `python tests/regression/golden.py erm` and commit it"
    )


def test_a_golden_of_other_settings_names_them(doctored, spec):
    doctored["settings"] = {"margin": 2}
    told = golden.outdated(doctored, golden.what(spec))
    assert "is of other settings (margin: 2 -> None); run `python" in told


def test_a_method_without_a_golden_asks_for_one(folder):
    told = golden.complaint("erm")
    assert told == (
        "erm has no golden trace; run `python tests/regression/golden.py erm` and commit it"
    )


def test_a_golden_without_a_method_is_found():
    assert "golden/gone.json belongs to no method" in golden.complaint("gone")


# -- writing ---------------------------------------------------------------------------------


def test_a_golden_survives_its_file(folder, fresh):
    golden.write(fresh)
    assert golden.read("erm") == json.loads(json.dumps(fresh))
    assert golden.drift(golden.read("erm"), fresh) == ""


def test_the_command_writes_a_golden_that_the_test_accepts(folder, capsys):
    assert golden.main(["erm"]) == 0
    assert capsys.readouterr().out == "erm: written\n"
    assert golden.complaint("erm") == ""


def test_the_command_refuses_numbers_that_moved_under_the_same_revision(folder, doctored, capsys):
    doctored["seeds"]["0"]["steps"][0]["terms"]["loss"] += 1
    golden.write(doctored)
    before = (folder / "erm.json").read_bytes()
    assert golden.main(["erm"]) == 1
    assert "not written: erm, seed 0: the traces part at step 0" in capsys.readouterr().out
    assert (folder / "erm.json").read_bytes() == before
    assert golden.main(["erm", "--force"]) == 0
    assert golden.complaint("erm") == ""


def test_the_command_writes_anew_for_a_new_revision(folder, doctored):
    doctored["revision"] = 7
    doctored["seeds"]["0"]["steps"][0]["terms"]["loss"] += 1
    golden.write(doctored)
    assert golden.main(["erm"]) == 0
    assert golden.complaint("erm") == ""


def test_the_command_names_the_methods_it_knows(capsys):
    with pytest.raises(SystemExit) as caught:
        golden.main(["ermm"])
    assert caught.value.code == 2
    assert "no method ermm; there are " in capsys.readouterr().err


def test_computing_a_golden_leaves_the_number_of_threads_alone(spec):
    import torch

    before = torch.get_num_threads()
    with golden.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
