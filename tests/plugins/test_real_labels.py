"""The ReaL metric: several right answers, images without any, other data sets, no timm."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from test_metrics import make

from classfair_plugins.metrics import real_labels
from classfair_registry.predictions import Predictions

(SPEC,) = real_labels.classfair_metrics()


@pytest.fixture
def timm(tmp_path, monkeypatch) -> Path:
    """Put a package in place of timm, whose labels are those of the tests."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "timm" / "data" / "_info"
    folder.mkdir(parents=True)
    (tmp_path / "timm" / "__init__.py").write_text("raise ImportError('must not be imported')")
    labels = [[0], [0, 2], [], [3], [1]] + [[]] * 49_995
    (folder / "imagenet_real_labels.json").write_text(json.dumps(labels))
    monkeypatch.syspath_prepend(tmp_path)
    real_labels._labels.cache_clear()
    yield folder / "imagenet_real_labels.json"
    real_labels._labels.cache_clear()


def judged(numbers: list[int], answers: list[int], form: str = "n1/ILSVRC2012_val_{:08}.JPEG"):
    names = np.array([form.format(number) for number in numbers])
    made: Predictions = make([0] * len(answers), answers)
    return dataclasses.replace(made, names=names)


def test_any_of_an_image_s_labels_is_right_and_images_without_labels_do_not_count(timm):
    assert SPEC.compute(judged([1, 2, 3, 4, 5], [0, 2, 1, 1, 1])) == pytest.approx(75)
    assert SPEC.compute(judged([2, 1], [0, 3])) == pytest.approx(50)
    assert SPEC.compute(judged([4], [3], "ILSVRC2012_val_{:08}.jpg")) == 100
    assert math.isnan(SPEC.compute(judged([3], [1])))
    assert math.isnan(SPEC.compute(judged([50_001], [1])))


def test_on_another_data_set_it_is_not_defined(timm):
    assert math.isnan(SPEC.compute(judged([1, 2], [0, 0], "Abyssinian_{}.jpg")))
    assert math.isnan(SPEC.compute(make([0, 1], [0, 1])))


@pytest.mark.parametrize("content", ["[[1]]", "{", "{}", None])
def test_without_whole_labels_it_is_not_defined(timm, content):
    timm.unlink() if content is None else timm.write_text(content)
    assert math.isnan(SPEC.compute(judged([1], [0])))


def test_without_timm_it_is_not_defined(timm, monkeypatch):
    monkeypatch.setattr(real_labels.importlib.util, "find_spec", lambda name: None)
    assert math.isnan(SPEC.compute(judged([1], [0])))
