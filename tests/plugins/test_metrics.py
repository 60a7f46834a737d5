"""Every metric against values worked out by hand on fourteen images of four classes.

| class | images | answers | accuracy |
| --- | --- | --- | --- |
| 0 | 4 | 0 0 0 0 | 1 |
| 1 | 4 | 1 1 1 0 | 0.75 |
| 2 | 4 | 2 2 0 3 | 0.5 |
| 3 | 2 | 3 2 | 0.5 |

Four classes are cut into thirds of 2, 1, 1; classes 2 and 3 share the second cut half and half.
"""

import dataclasses
import hashlib
import math
import subprocess
import sys

import numpy as np
import pytest

from classfair_plugins.metrics import accuracy, calibration, features, margins
from classfair_registry.crossfit import halves
from classfair_registry.predictions import Predictions
from classfair_registry.specs import MetricSpec

LABEL = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 2
ANSWER = [0, 0, 0, 0, 1, 1, 1, 0, 2, 2, 0, 3, 3, 2]
RIGHT = np.equal(LABEL, ANSWER)
HALF_SURE = [3, 7, 10, 11]
"""Images with confidence 0.5, one of them right; the ten others have 0.9, nine of them right."""


def make(label, answer, **given) -> Predictions:
    """Return predictions with these answers; what is not given is not defined."""
    label, answer = np.asarray(label), np.asarray(answer)
    classes = int(max(label.max(), answer.max())) + 1
    images, nothing = len(label), np.full(len(label), np.nan)
    arrays = {
        "index": np.arange(images),
        "label": label,
        "top5": np.column_stack([answer, (answer + 1) % classes]),
        "names": np.array([""] * images),
        "temperature": np.array([np.nan]),
        "mean_probability": np.full((classes, classes), np.nan),
    }
    for field in dataclasses.fields(Predictions):
        per_class = field.name.startswith(("vector", "feature"))
        default = np.full(classes, np.nan) if per_class else nothing
        arrays.setdefault(field.name, default)
    ranking = given.pop("ranking", None)
    predictions = Predictions(**arrays | given | {"ranking": ranking})
    predictions.check("made")
    return predictions


def by_hand() -> Predictions:
    p_max = np.where(np.isin(np.arange(14), HALF_SURE), 0.5, 0.9)
    p_label = np.array([0.8] * 4 + [0.7] * 3 + [0.3] + [0.4] * 4 + [0.5, 0.5])
    p_other = np.array([0.2] * 4 + [0.3] * 3 + [0.7] + [0.5] * 4 + [0.4, 0.4])
    return make(
        LABEL,
        ANSWER,
        p_label=p_label,
        p_other=p_other,
        p_max=p_max,
        p_label_scaled=p_label / 2,
        p_other_scaled=p_other / 2,
        p_max_scaled=np.full(14, 0.75),
        mean_probability=np.array(
            [[0.7, 0.1, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1], [0.25, 0, 0.5, 0.25], [0, 0.5, 0, 0.5]]
        ),
        vector_angle=np.array([80.0, 70.0, 70.0, 90.0]),
        feature_mean_square=np.array([1.0, 2.0, 3.0, 5.0]),
        feature_spread=np.array([0.1, 0.3, 0.5, 0.9]),
        feature_collapse=np.array([1.0, 3.0, 4.0, 8.0]),
    )


EXPECTED = {
    "overall": 1000 / 14,
    "mean_class": 68.75,
    "easy": 87.5,
    "medium": 50.0,
    "hard": 50.0,
    "gap": 37.5,
    "worst": 50.0,
    "worst10": 50.0,
    "class_std": 100 * math.sqrt(0.04296875),
    "class_std_adj": 0.0,
    "harmonic": 100 * 4 / (1 + 4 / 3 + 2 + 2),
    "geometric": 100 * 0.1875**0.25,
    # Class means of p(label) - p(other): 0.6, (3 x 0.4 - 0.4) / 4 = 0.2, -0.1, 0.1.
    "margin_easy": 0.4,
    "margin_medium": 0.0,
    "margin_hard": 0.0,
    "margin_scaled_easy": 0.2,
    "margin_scaled_medium": 0.0,
    "margin_scaled_hard": 0.0,
    "classifier_margin": 70.0,
    "mean_square_easy": 1.5,
    "mean_square_medium": 4.0,
    "mean_square_hard": 4.0,
    "spread_easy": 0.2,
    "spread_medium": 0.7,
    "spread_hard": 0.7,
    "collapse_easy": 2.0,
    "collapse_medium": 6.0,
    "collapse_hard": 6.0,
    # Answers of each class: 6, 3, 3, 2 for 4, 4, 4, 2 images: 50, -25, -25, 0 percent.
    "bias_easy": 12.5,
    "bias_medium": -12.5,
    "bias_hard": -12.5,
    # Wrong answers of each class: 2, 0, 1, 1: 50, 0, 25, 50 percent.
    "false_positives_easy": 25.0,
    "false_positives_medium": 37.5,
    "false_positives_hard": 37.5,
    # 4 x 0.2 + 4 x 0.25 = 1.8; 4 x 0.1 + 2 x 0.5 = 1.4; 0.4 + 0.4 = 0.8; 0.4 + 0.4 + 1 = 1.8:
    # 45, 35, 20, 90 percent.
    "false_mass_easy": 40.0,
    "false_mass_medium": 55.0,
    "false_mass_hard": 55.0,
    # 10/14 x |0.9 - 9/10| + 4/14 x |0.5 - 1/4|.
    "ece": 100 / 14,
    # Images 0..7: six at 0.9, all right; two at 0.5, one right: (6 x 0.1 + 0) / 8.
    "ece_easy": 7.5,
    # Images 8..13, all with weight one half: four at 0.9, three right; two at 0.5, both wrong:
    # (|3.6 - 3| + |1 - 0|) / 6.
    "ece_medium": 100 * 1.6 / 6,
    "ece_hard": 100 * 1.6 / 6,
    "ece_scaled": 100 * abs(0.75 - 10 / 14),
    "ece_scaled_easy": 100 * abs(0.75 - 7 / 8),
    "ece_scaled_medium": 100 * abs(0.75 - 3 / 6),
    "ece_scaled_hard": 100 * abs(0.75 - 3 / 6),
}


def provided() -> dict[str, MetricSpec]:
    modules = (accuracy, margins, features, calibration)
    return {spec.name: spec for module in modules for spec in module.classfair_metrics()}


def test_hand_computed_values_cover_every_metric_but_the_random_one() -> None:
    assert set(EXPECTED) == set(provided()) - {"worst_crossfit"}


@pytest.mark.parametrize("name", EXPECTED)
def test_metric_has_the_value_worked_out_by_hand(name: str) -> None:
    assert provided()[name].compute(by_hand()) == pytest.approx(EXPECTED[name], abs=1e-12)


def test_half_sure_images_are_as_the_golden_ece_says() -> None:
    sure = np.setdiff1d(np.arange(14), HALF_SURE)
    assert (RIGHT[HALF_SURE].sum(), RIGHT[sure].sum()) == (1, 9)


@pytest.mark.parametrize("name", EXPECTED)
def test_only_ranked_metrics_depend_on_the_ranking(name: str) -> None:
    other = by_hand().ranked_by(np.array([0.1, 0.2, 0.3, 0.4]))
    value = provided()[name].compute(other)
    if not provided()[name].ranked:
        assert value == pytest.approx(EXPECTED[name], abs=1e-12)


def test_thirds_follow_a_given_ranking() -> None:
    predictions = by_hand().ranked_by(np.array([0.1, 0.2, 0.3, 0.4]))
    values = {name: provided()[name].compute(predictions) for name in ("easy", "medium", "hard")}
    assert values == {"easy": 50.0, "medium": 75.0, "hard": 100.0}
    assert provided()["gap"].compute(predictions) == -50.0


def test_adjusted_std_takes_off_the_noise_of_few_images() -> None:
    """Classes of 5 images with 1, 0.8 and 0 right: variance 0.56/3, noise (0.16/4)/3."""
    label = np.repeat([0, 1, 2], 5)
    predictions = make(label, [0] * 5 + [1, 1, 1, 1, 0] + [0] * 5)
    expected = 100 * math.sqrt(0.56 / 3 - 0.04 / 3)
    assert provided()["class_std_adj"].compute(predictions) == pytest.approx(expected)


def test_adjusted_std_is_not_defined_for_a_class_of_one_image() -> None:
    assert math.isnan(provided()["class_std_adj"].compute(make([0, 0, 1], [0, 0, 1])))


def test_harmonic_and_geometric_are_zero_if_a_class_is_never_right() -> None:
    predictions = make([0, 0, 1, 1], [0, 0, 0, 0])
    assert provided()["harmonic"].compute(predictions) == 0
    assert provided()["geometric"].compute(predictions) == 0


def test_worst_tenth_of_eleven_classes_is_two() -> None:
    """Accuracies 0, 0.5 and nine times 1."""
    label = np.repeat(np.arange(11), 2)
    answer = label.copy()
    answer[:3] = 10
    assert provided()["worst10"].compute(make(label, answer)) == 25.0


def test_crossfit_worst_is_exact_where_halves_cannot_differ() -> None:
    label = np.repeat([0, 1, 2], 4)
    assert provided()["worst_crossfit"].compute(make(label, [0] * 4 + [1] * 4 + [0] * 4)) == 0


def test_crossfit_worst_averages_over_classes_that_are_equally_bad() -> None:
    """Two classes of two images, one of each wrong: either they meet in a half, or they do not.

    In different halves each is the worst on its own half and right on the other: 100. In one half
    both are worst on it and right on the other (100), and equally good on the other and wrong on it
    (0): 50.
    """
    label = np.array([0, 0, 1, 1])
    first = halves(label, hashlib.sha256(label.tobytes()).hexdigest())
    meet = first[:, 1] == first[:, 3]
    assert 0 < meet.sum() < len(meet)
    value = provided()["worst_crossfit"].compute(make(label, [0, 1, 1, 0]))
    assert value == np.where(meet, 50, 100).mean()


def test_crossfit_worst_leaves_out_classes_of_one_image() -> None:
    predictions = make([0, 0, 0, 0, 1], [0, 0, 0, 0, 0])
    assert provided()["worst"].compute(predictions) == 0
    assert provided()["worst_crossfit"].compute(predictions) == 100
    assert math.isnan(provided()["worst_crossfit"].compute(make([0, 1], [0, 1])))


def test_crossfit_worst_of_equal_classes_is_their_accuracy_and_plain_worst_is_far_below() -> None:
    """40 classes of true accuracy 70 %, 20 images each, 60 models; standard error 0.8 points."""
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(40), 20)
    values = []
    for _ in range(60):
        answer = np.where(rng.random(800) < 0.7, label, (label + 1) % 40)
        predictions = make(label, answer)
        values.append([provided()[n].compute(predictions) for n in ("worst", "worst_crossfit")])
    plain, crossfit = np.mean(values, axis=0)
    assert plain < 50
    assert abs(crossfit - 70) < 2.5


def test_classes_without_test_images_count_nowhere() -> None:
    """Class 1 of 3 has no images; it is answered once."""
    with_hole = make([0, 0, 2, 2], [0, 1, 2, 2])
    values = {name: spec.compute(with_hole) for name, spec in provided().items()}
    assert values["mean_class"] == 75.0
    assert values["worst"] == 50.0
    assert values["class_std"] == 25.0
    assert (values["easy"], values["medium"]) == (100.0, 50.0)
    assert values["bias_easy"] == 0.0
    assert values["false_positives_medium"] == 0.0


def test_what_was_not_measured_is_not_defined() -> None:
    bare = make(LABEL, ANSWER)
    names = ("margin_easy", "ece_scaled", "ece_scaled_hard", "classifier_margin", "spread_hard")
    assert all(math.isnan(provided()[name].compute(bare)) for name in names)


def test_hard_third_of_two_classes_is_not_defined() -> None:
    two = make([0, 0, 1, 1], [0, 0, 1, 0])
    assert provided()["easy"].compute(two) == 100.0
    assert math.isnan(provided()["hard"].compute(two))
    assert math.isnan(provided()["gap"].compute(two))
    assert math.isnan(provided()["ece_hard"].compute(two))


def test_bins_of_the_calibration_error_are_open_below_and_closed_above() -> None:
    """1/15 is in the first bin, a little more in the second: their errors do not cancel."""
    confidence = np.array([1 / 15, 1 / 15 + 1e-9, 0.0, 1.0])
    right = np.array([True, False, False, True])
    error = calibration.calibration_error(confidence, right, np.ones(4))
    assert error == pytest.approx(100 * ((1 - 1 / 15) + 1 / 15) / 4)


def test_every_metric_says_direction_unit_and_definition() -> None:
    for spec in provided().values():
        assert spec.better in ("higher", "lower", "neither")
        assert spec.unit in ("%", "points", "degrees", "")
        assert spec.definition.endswith(".")
    assert provided()["gap"].better == "lower"
    assert provided()["hard"].ranked
    assert not provided()["overall"].ranked


def test_metrics_import_without_torch() -> None:
    modules = ", ".join(m.__name__ for m in (accuracy, margins, features, calibration))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
