"""Thirds of the classes under the four rankings, against values worked out by hand."""

import hashlib

import made_records as made
import numpy as np
import pytest

from classfair_leaderboard import groups
from classfair_leaderboard.groups import Splits, crossfit_thirds, fixed, local, measure, thirds
from classfair_leaderboard.load import Run, load
from classfair_leaderboard.ranking import from_runs
from classfair_plugins.metrics import accuracy as accuracy_metrics
from classfair_registry.errors import ClassfairError
from classfair_registry.predictions import membership

LABEL = np.repeat(np.arange(7), 20)
"""Seven classes are cut into 3, 2, 2."""
ACCURACY = [0.9, 0.8, 0.6, 0.6, 0.6, 0.3, 0.2]
"""The three classes at 0.6 hold places 3, 4, 5: one of the easy third, two of the medium."""


def runs_of(tmp_path, accuracies, name="erm", first_seed=0) -> list[Run]:
    for seed, accuracy in enumerate(accuracies, first_seed):
        made.write(tmp_path, made.cell(name, seed), made.exactly(LABEL, accuracy))
    runs, complaints = load(tmp_path)
    assert not complaints
    return [run for run in runs if run.record.cell.method.name == name]


def test_own_thirds_with_a_tie_across_the_cut() -> None:
    easy, medium, hard = thirds(np.array(ACCURACY), membership(ACCURACY))
    # Each tied class is easy for 1/3 and medium for 2/3.
    assert easy == pytest.approx((0.9 + 0.8 + 0.6) / 3)
    assert medium == pytest.approx(0.6)
    assert hard == pytest.approx(0.25)


def test_a_tie_is_the_average_over_all_orders_of_the_tied_classes() -> None:
    """Classes that are tied by rank but not by what is averaged."""
    scores = np.array([3.0, 2.0, 2.0, 2.0, 1.0])  # 5 classes: thirds of 2, 2, 1
    accuracy = np.array([0.9, 0.1, 0.2, 0.6, 0.5])
    easy, medium, hard = thirds(accuracy, membership(scores))
    assert easy == pytest.approx(np.mean([(0.9 + one) / 2 for one in (0.1, 0.2, 0.6)]))
    assert medium == pytest.approx(np.mean([(0.9 - one) / 2 for one in (0.1, 0.2, 0.6)]))
    assert hard == 0.5


@pytest.mark.parametrize(
    ("classes", "sizes"), [(100, (34, 33, 33)), (10, (4, 3, 3)), (8, (3, 3, 2)), (2, (1, 1, 0))]
)
def test_thirds_are_cut_like_array_split(classes: int, sizes: tuple[int, ...]) -> None:
    shares = membership(np.arange(classes)[::-1])
    assert tuple(shares.sum(1)) == sizes
    assert shares[0, : sizes[0]].tolist() == [1.0] * sizes[0]


def test_all_classes_tied_share_all_thirds() -> None:
    np.testing.assert_allclose(membership(np.ones(10)), np.repeat([[0.4], [0.3], [0.3]], 10, 1))


def test_membership_of_many_rankings_is_that_of_each() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, (4, 2, 11)) / 4
    scores[rng.random(scores.shape) < 0.1] = np.nan
    together = membership(scores)
    for place in np.ndindex(4, 2):
        np.testing.assert_array_equal(together[place], membership(scores[place]))
    np.testing.assert_allclose(together.sum(-2), ~np.isnan(scores))


def test_own_is_what_the_metrics_say_to_the_last_bit(tmp_path) -> None:
    (run,) = runs_of(tmp_path, [ACCURACY])
    values = measure(run, "own", None, Splits("data"))
    metrics = {spec.name: spec.compute for spec in accuracy_metrics.classfair_metrics()}
    assert values == tuple(metrics[name](run.predictions()) for name in groups.GROUPS)


def test_reference_ranks_by_the_mean_over_its_runs(tmp_path) -> None:
    """By the mean of the two, class 6 is easiest and class 0 hardest."""
    ranking = runs_of(tmp_path / "erm", [ACCURACY[::-1], [0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0]])
    (run,) = runs_of(tmp_path / "mr2", [ACCURACY], "mr2")
    reference = fixed("dedicated", from_runs(ranking))
    # Means: .15 .4 .55 .55 .55 .65 .95, so from the easiest: 6, 5, (2 3 4), 1, 0.
    easy, medium, hard, gap = measure(run, "reference", reference, Splits("data"))
    assert easy == pytest.approx(100 * (0.2 + 0.3 + 0.6) / 3)
    assert medium == pytest.approx(60)
    assert hard == pytest.approx(85)
    assert gap == easy - hard


def test_reference_is_blank_where_there_is_none(tmp_path) -> None:
    (run,) = runs_of(tmp_path, [ACCURACY])
    for name in ("reference", "reference_crossfit"):
        assert np.isnan(measure(run, name, None, Splits("data"))).all()
        assert groups.views(run, name, None, Splits("data")) == []


def test_local_reference_leaves_out_the_seed_that_it_ranks(tmp_path) -> None:
    erm = runs_of(tmp_path, [ACCURACY, ACCURACY[::-1], [0.5] * 7])
    reference = local(erm)
    assert reference is not None
    ranking = reference.of(0)
    assert ranking is not None
    assert [run["seed"] for run in ranking.runs] == [1, 2]
    np.testing.assert_array_equal(ranking.scores, (np.array(ACCURACY[::-1]) + 0.5) / 2)
    unseen = reference.of(7)
    assert unseen is not None
    assert len(unseen.runs) == 3


def test_local_reference_needs_two_seeds(tmp_path) -> None:
    assert local(runs_of(tmp_path, [ACCURACY])) is None
    assert local([]) is None


def test_classes_that_runs_get_right_equally_often_are_tied_exactly(tmp_path) -> None:
    """0.05 + 0.1 + 0.15 and 0.15 + 0.1 + 0.05 differ as floats; 1 + 2 + 3 hits of 60 do not."""
    one, two, three = [0.05, 0.15] + [0.5] * 5, [0.1, 0.1] + [0.5] * 5, [0.15, 0.05] + [0.5] * 5
    assert 0.05 + 0.1 + 0.15 != 0.15 + 0.1 + 0.05
    scores = from_runs(runs_of(tmp_path, [one, two, three])).scores
    assert scores[0] == scores[1] == 0.1


def test_crossfit_measures_on_the_half_that_did_not_rank() -> None:
    """Three classes, one split. On half 0 they rank 0, 1, 2; on half 1 they rank 2, 1, 0."""
    accuracy = np.array([[[0.9, 0.6, 0.3], [0.2, 0.5, 0.8]]])
    easy, medium, hard = crossfit_thirds(accuracy, accuracy)
    assert easy == pytest.approx((0.2 + 0.3) / 2)
    assert medium == pytest.approx((0.5 + 0.6) / 2)
    assert hard == pytest.approx((0.8 + 0.9) / 2)


def test_crossfit_by_other_scores_ranks_each_half_by_theirs() -> None:
    accuracy = np.array([[[0.9, 0.6, 0.3], [0.2, 0.5, 0.8]]])
    scores = np.array([[[3.0, 2.0, 1.0], [3.0, 1.0, 2.0]]])
    easy, medium, hard = crossfit_thirds(accuracy, scores)
    assert (easy, medium, hard) == pytest.approx(
        ((0.2 + 0.9) / 2, (0.5 + 0.3) / 2, (0.8 + 0.6) / 2)
    )


def test_crossfit_leaves_out_a_class_that_a_half_lacks() -> None:
    nan = np.nan
    accuracy = np.array([[[0.9, 0.6, 0.3, 0.1], [0.8, 0.5, 0.2, nan]]])
    easy, medium, hard = crossfit_thirds(accuracy, accuracy)
    assert (easy, medium, hard) == pytest.approx((0.85, 0.55, 0.25))


def test_crossfit_of_answers_that_are_all_right_or_all_wrong_is_exact(tmp_path) -> None:
    (run,) = runs_of(tmp_path, [[1, 1, 1, 1, 1, 0, 0]])
    assert measure(run, "own_crossfit", None, Splits("data")) == (100, 100, 0, 100)


def test_crossfit_agrees_with_the_plain_metrics_over_all_views(tmp_path) -> None:
    """The quick way over class accuracies, and every ranked metric on twenty halves."""
    erm = runs_of(tmp_path / "erm", [ACCURACY, [0.5, 0.9, 0.4, 0.7, 0.2, 0.1, 0.3]])
    (run,) = runs_of(tmp_path / "mr2", [[0.9, 0.6, 0.6, 0.5, 0.5, 0.3, 0.1]], "mr2")
    reference = fixed("dedicated", from_runs(erm))
    metrics = {spec.name: spec.compute for spec in accuracy_metrics.classfair_metrics()}
    for name in groups.RANKINGS:
        views = groups.views(run, name, reference, Splits("data"))
        assert len(views) == (20 if name.endswith("crossfit") else 1)
        slow = [np.mean([metrics[group](view) for view in views]) for group in groups.GROUPS]
        assert measure(run, name, reference, Splits("data")) == pytest.approx(slow)


def test_splits_are_refused_for_other_test_labels() -> None:
    splits = Splits("data")
    splits.of(np.array([0, 0, 1, 1]))
    with pytest.raises(ClassfairError, match="test labels differ"):
        splits.of(np.array([0, 1, 1, 1]))


def test_splits_are_seeded_by_the_fingerprint() -> None:
    one, two = (Splits(hashlib.sha256(name).hexdigest()).of(LABEL) for name in (b"a", b"b"))
    assert not np.array_equal(one, two)


def test_a_ranking_of_other_classes_or_images_is_refused(tmp_path) -> None:
    short = np.repeat(np.arange(3), 4)
    made.write(tmp_path, made.cell("erm"), made.exactly(short, [1, 0.5, 0]))
    made.write(tmp_path, made.cell("mr2"), made.exactly(LABEL, ACCURACY))
    erm, mr2 = load(tmp_path)[0]
    reference = fixed("dedicated", from_runs([erm]))
    with pytest.raises(ClassfairError, match="3 classes"):
        measure(mr2, "reference", reference, Splits("data"))
    with pytest.raises(ClassfairError, match=r"mr2.*made on 12 test images, not on these 140"):
        measure(mr2, "reference_crossfit", reference, Splits("data"))
