"""Erasure: concepts whose place in memory is planted."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.agent.erasure import Classes, Erasure, Held, _by_chance, erasures, followed
from rlhf_ray.interpret.directions import fit
from rlhf_ray.interpret.directions.controls import removed_variance
from rlhf_ray.measure.statistics import auc

N = 1200


def sides_of(draw) -> tuple[Held, Held]:  # type: ignore[no-untyped-def]
    """Return the values and classes of the fit, and of other steps."""
    sides = [draw(np.random.default_rng(seed)) for seed in (0, 1)]
    classes = {name: Classes.fit(concept) for name, concept in sides[0][1].items()}
    fit, test = (
        Held(values, {name: classes[name].every(concept) for name, concept in concepts.items()})
        for values, concepts in sides
    )
    return fit, test


def both(draw, **how) -> tuple[dict[str, Erasure], tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:  # type: ignore[no-untyped-def]
    """Return the erasures, values and concept 0 of the fit, and of other steps."""
    sides, (fit, test) = [draw(np.random.default_rng(seed)) for seed in (0, 1)], sides_of(draw)
    found = erasures(fit, test, list(fit.classes), how.get("least", 0.8))
    return found, *((values, next(iter(concepts.values()))) for values, concepts in sides)


def logistic(fitted: tuple[FloatArray, FloatArray], tested: tuple[FloatArray, FloatArray]) -> float:
    """Scikit-learn's reader of yes or no: its AUC on other steps."""
    model = LogisticRegression(max_iter=1000).fit(*fitted)
    return auc(model.decision_function(tested[0]), tested[1] == 1)


def test_of_two_nearly_parallel_concepts_each_is_taken_away_without_the_other() -> None:
    """The plain difference of means would take both; "pit" holds where "saw" does not, mostly."""
    patterns = np.array([[1.0, 0.0, 0.0, 0.0], [0.98, 0.2, 0.0, 0.0]])

    def draw(rng):  # type: ignore[no-untyped-def]
        saw = rng.integers(2, size=N).astype(float)
        pit = np.where(rng.random(N) < 0.5, saw, rng.integers(2, size=N)).astype(float)
        return np.stack([saw, pit], 1) @ patterns + 0.02 * rng.standard_normal((N, 4)), {"saw": saw, "pit": pit}

    found, fitted, tested = both(draw)
    pit = draw(np.random.default_rng(1))[1]["pit"]
    saw = found["saw"]
    assert (len(saw.basis), saw.erased <= saw.bound) == (1, True)
    assert saw.shared == pytest.approx(0.75, abs=0.03)  # the pit stays, which says the same in 75 % of the steps
    assert saw.auc > 0.95
    np.testing.assert_allclose(saw.basis.patterns[0], patterns[0], atol=0.1)
    # What a reader of the pit alone reads stays as it is: its factor is the part of memory that the saw is not in.
    without = saw.basis.remove(tested[0], [0])
    factor = np.linalg.pinv(patterns.T)[1]
    np.testing.assert_allclose(without @ factor, tested[0] @ factor, atol=0.12)
    assert auc(without @ factor, pit == 1) > 0.95
    # The plain difference of means says less of the saw, and takes more.
    plain = fit("mean_difference", fitted[0], 1, labels={"saw": fitted[1]})
    assert auc(plain.encode(tested[0])[:, 0], tested[1] == 1) < saw.auc
    assert removed_variance(plain, [0], fitted[0]) > 2.0 * saw.variance


@pytest.mark.parametrize("alike", [0.7, 0.95])
def test_a_concept_that_another_one_tells_is_not_gone_without_its_own_part(alike: float) -> None:
    """The second says the same in a share of the steps: what stays reads the first with just that AUC."""

    def draw(rng):  # type: ignore[no-untyped-def]
        one = rng.integers(2, size=N).astype(float)
        two = np.where(rng.random(N) < alike, one, 1.0 - one)
        values = np.stack([0.3 * one, 5.0 * two], 1) + 0.02 * rng.standard_normal((N, 2))
        return values, {"one": one, "two": two}

    one = both(draw)[0]["one"]
    assert one.erased <= one.bound
    assert one.shared == pytest.approx(alike, abs=0.03)
    assert one.gone == (alike < 0.8)


def test_one_direction_is_enough_for_a_linear_reader_and_it_takes_the_least() -> None:
    """Of all removals after which the means are equal, LEACE's changes least; scikit-learn's reader finds nothing."""

    def draw(rng):  # type: ignore[no-untyped-def]
        cue = rng.integers(2, size=N).astype(float)
        values = rng.standard_normal((N, 5)) * [3.0, 1.0, 0.3, 0.3, 0.3]
        values[:, 0] += cue
        values[:, 2] += 1.5 * cue
        return values, {"cue": cue}

    found, fitted, tested = both(draw)
    cue = found["cue"]
    assert (len(cue.basis), cue.gone, cue.neighbours) == (1, True, [])
    assert cue.erased < 0.6
    assert logistic(fitted, tested) > 0.95
    removed = [(cue.basis.remove(values, [0]), labels) for values, labels in (fitted, tested)]
    assert logistic(*removed) < 0.56
    plain = fit("mean_difference", fitted[0], 1, labels={"cue": fitted[1]})
    changes = [
        ((values - basis.remove(values, [0])) ** 2).sum() for values in fitted[:1] for basis in (cue.basis, plain)
    ]
    assert changes[0] < 0.7 * changes[1]


def test_a_concept_held_in_two_directions_by_turns_is_not_called_gone() -> None:
    """In one direction while the light is red, in another while it is green: after the removal of their sum, who knows the light
    still reads it."""

    def draw(rng):  # type: ignore[no-untyped-def]
        cue, red = rng.integers(2, size=(2, N)).astype(float)
        sign = 2.0 * cue - 1.0
        values = 0.1 * rng.standard_normal((N, 6))
        values[:, 0] += np.where(red == 1, sign, 0.0)
        values[:, 1] += np.where(red == 0, sign, 0.0)
        values[:, 2] += 4.0 * (red - 0.5)
        return values, {"cue": cue, "red": red}

    found, _, tested = both(draw)
    cue = found["cue"]
    assert (len(cue.basis), cue.gone) == (1, False)
    assert cue.erased > 0.95
    removed = cue.basis.remove(tested[0], [0])
    assert auc(removed[:, 0] * np.sign(removed[:, 2]), tested[1] == 1) > 0.95
    assert auc(removed[:, 0], tested[1] == 1) < 0.55


def test_a_number_of_four_levels_in_three_directions_needs_them_all() -> None:
    def draw(rng):  # type: ignore[no-untyped-def]
        gear = rng.integers(4, size=N)
        other = 2.0 * rng.standard_normal((N, 2))
        return np.hstack([np.eye(5)[gear] + 0.1 * rng.standard_normal((N, 5)), other]), {"gear": gear.astype(float)}

    found, _, _ = both(draw)
    assert len(found["gear"].basis) == 3  # four corners span three directions
    assert found["gear"].gone


def test_concepts_that_are_one_direction_name_each_other() -> None:
    def draw(rng):  # type: ignore[no-untyped-def]
        time = rng.integers(20, size=N).astype(float)
        place = time + 0.01 * rng.standard_normal(N)
        cue = rng.integers(2, size=N).astype(float)
        return np.stack([time / 20, cue, rng.standard_normal(N)], 1), {"time": time, "place": place, "cue": cue}

    found, *_ = both(draw)
    (near,) = found["time"].neighbours
    assert (near.concept, round(near.cosine, 2), near.lost > 0.9) == ("place", 1.0, True)
    assert found["cue"].neighbours == []


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_what_is_not_read_well_is_no_concept_of_the_memory(shift: float) -> None:
    """AUC of a shift of half a standard deviation: Φ(.5 / √2) = .64."""

    def draw(rng):  # type: ignore[no-untyped-def]
        cue = rng.integers(2, size=N).astype(float)
        values = rng.standard_normal((N, 3))
        values[:, 0] += shift * cue
        return values, {"cue": cue}

    assert both(draw)[0] == {}
    read = both(draw, least=0.5)[0]
    assert read["cue"].auc == pytest.approx(0.64 if shift else 0.5, abs=0.03)


@pytest.mark.parametrize("held", [False, True])
def test_what_two_better_read_concepts_tell_follows_them_unless_it_is_held_itself(held: bool) -> None:
    """A boat goes to its colour's side once it sails: a memory of colour and sail reads the side, and holds it or does not."""

    def draw(rng):  # type: ignore[no-untyped-def]
        colour, sails = rng.integers(2, size=(2, N)).astype(float)
        side = colour * sails
        values = 0.15 * rng.standard_normal((N, 8))
        values[:, 0] += colour
        values[:, 1] += sails
        values[:, 2] += held * np.where(rng.random(N) < 0.98, side, 1.0 - side)
        return values, {"colour": colour, "sails": sails, "side": side}

    fit, test = sides_of(draw)
    found = followed(["side", "colour"], list(fit.classes), fit, test)
    assert set(found["side"]) == (set() if held else {"colour", "sails"})
    assert found["colour"] == []
    # Scikit-learn's reader, with colour and sail regressed out of the memory.
    beside = [np.column_stack([np.ones(N), side.first("colour"), side.first("sails")]) for side in (fit, test)]
    weights = np.linalg.lstsq(beside[0], fit.values, rcond=None)[0]
    left = [
        (side.values - design @ weights, side.first("side")) for side, design in zip((fit, test), beside, strict=True)
    ]
    assert (logistic(*left) > 0.7) == held


def test_what_one_better_read_concept_tells_follows_that() -> None:
    def draw(rng):  # type: ignore[no-untyped-def]
        colour = rng.integers(2, size=N).astype(float)
        position = np.where(rng.random(N) < 0.9, colour, 1.0 - colour)
        return np.stack([colour, *rng.standard_normal((3, N))], 1), {"position": position, "colour": colour}

    fit, test = sides_of(draw)
    assert followed(["position", "colour"], ["position", "colour"], fit, test) == {"position": ["colour"], "colour": []}


@pytest.mark.parametrize(("ones", "zeros"), [(1, 1), (4, 4), (7, 6)])
@pytest.mark.parametrize("length", [1, 3])
def test_what_an_auc_is_by_chance_counts_a_run_of_equal_labels_once(ones: int, zeros: int, length: int) -> None:
    runs = [True, False] * min(ones, zeros) + [True] * (ones - zeros)
    truth = np.repeat(runs, length)
    # Hanley and McNeil's formula, at an AUC of a half.
    area = 0.5
    of_two, against_two = area / (2 - area), 2 * area**2 / (1 + area)
    variance = (area * (1 - area) + (ones - 1) * (of_two - area**2) + (zeros - 1) * (against_two - area**2)) / (
        ones * zeros
    )
    assert _by_chance(truth) == pytest.approx(2 * variance**0.5)
    assert _by_chance(~truth) == pytest.approx(2 * variance**0.5)
