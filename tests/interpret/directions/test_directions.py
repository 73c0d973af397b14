"""Directions: every kind keeps the projector's contract; what each intervention does to the scores, exactly, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from rlhf_ray.agents.agent import edits_for
from rlhf_ray.agents.play import play
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.world_model.simulate import simulate
from rlhf_ray.interpret.directions import KINDS, LABELLED, Directions, fit, load
from rlhf_ray.interpret.directions.components import enough_of, spectrum
from rlhf_ray.interpret.directions.directions import NOT_LINEAR
from rlhf_ray.interpret.directions.interventions import Intervention
from tests.agents.test_play import LEVELS, agent_of
from tests.interpret.agent import worlds
from tests.interpret.agent.corridor import Corridors

ROWS, SIZE = 600, 12


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    """Four sources, one unit that never varies, and little noise."""
    rng = np.random.default_rng(0)
    sources = rng.laplace(size=(ROWS, 4))
    mixed = sources @ rng.normal(size=(4, SIZE)) + 0.01 * rng.normal(size=(ROWS, SIZE)) + 3.0
    mixed[:, 3] = 0.7
    return mixed


@pytest.fixture(scope="module")
def labels(values: np.ndarray) -> dict[str, np.ndarray]:
    unknown = values[:, 0] - values[:, 5]
    unknown[::7] = np.nan
    return {"yes": values[:, 1] > 3.0, "number": unknown, "always": np.ones(ROWS, bool), "again": values[:, 1] > 3.0}


@pytest.mark.parametrize("kind", KINDS)
def test_projector_contract(kind, values, labels, tmp_path):
    """Upstream transformed with other scales than it had fitted with: the projector must give the fit's own sources."""
    basis = fit(kind, values, 4, 0, labels)
    again = fit(kind, values, 4, 0, labels)
    basis.save(tmp_path / "a.npz")
    again.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    loaded = load(tmp_path / "a.npz")
    assert (loaded.kind, list(loaded.names), len(loaded)) == (kind, list(basis.names), len(basis))
    np.testing.assert_allclose(loaded.encode(values), basis.sources, atol=1e-4)
    for found in (loaded.patterns, loaded.filters, loaded.center, loaded.means, loaded.midpoints):
        assert np.isfinite(found).all()
    assert loaded.means == pytest.approx(basis.sources.mean(0), abs=1e-6)
    if kind in ("pca", "ica"):
        np.testing.assert_allclose(np.cov(basis.sources.T, bias=True), np.eye(len(basis)), atol=1e-6)

    scores = torch.as_tensor(basis.sources[:5]).requires_grad_()
    weights = np.random.default_rng(1).normal(size=(5, SIZE))
    # The inverse as torch sees it: affine, checked against `inverse` first.
    patterns, center = torch.as_tensor(loaded.patterns), torch.as_tensor(loaded.center)
    rebuilt = center + scores @ patterns
    np.testing.assert_allclose(rebuilt.detach().numpy(), loaded.decode(basis.sources[:5]), atol=1e-9)
    (torch.as_tensor(weights) * rebuilt).sum().backward()
    np.testing.assert_allclose(loaded.gradient(weights), scores.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NOT_LINEAR])
def test_linear_bases_have_dual_vectors(kind, values, labels):
    basis = fit(kind, values, 4, 0, labels)
    np.testing.assert_allclose(basis.filters @ basis.patterns.T, np.eye(len(basis)), atol=1e-9)
    scores = np.random.default_rng(2).normal(size=(3, len(basis)))
    np.testing.assert_allclose(basis.encode(basis.decode(scores)), scores, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 3), (6, 3), (5, 1)])
def test_values_that_never_vary_give_no_nan(kind, shape):
    constant = np.full(shape, 0.5)
    basis = fit(kind, constant, 4, 0, {"concept": np.arange(len(constant)) % 2})
    scores = basis.encode(constant + 0.1)
    for found in (scores, basis.decode(scores), basis.filters, basis.means, basis.midpoints):
        assert np.isfinite(found).all()


def test_concepts_without_both_classes_or_held_by_others_are_left_out(values, labels):
    for kind in LABELLED:
        assert list(fit(kind, values, 9, 0, labels).names) == ["yes", "number"]
    with pytest.raises(SettingError, match="need labels"):
        fit("probe", values, 2)


def without_the_first(basis, values):
    return Intervention(basis, [0], "ablate_mean").edit(0)(torch.as_tensor(values)).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_removed_has_its_mean_score_and_the_rest_stays(kind, values, labels):
    basis = fit(kind, values, 2, 0, labels)
    removed = without_the_first(basis, values)
    move = removed - values
    assert np.linalg.matrix_rank(move, tol=1e-6) == 1, "along the pattern alone"
    if kind not in NOT_LINEAR:
        scores = basis.encode(removed)
        np.testing.assert_allclose(scores[:, 0], basis.means[0], atol=1e-9)
        np.testing.assert_allclose(scores[:, 1], basis.sources[:, 1], atol=1e-6)


def test_probe_pattern_is_covariance_times_filter():
    """A distractor that the filter subtracts is not part of the pattern (Haufe et al. 2014)."""
    rng = np.random.default_rng(3)
    signal, noise = rng.normal(size=(2, 4000))
    seen = np.stack([signal + noise, noise], 1)
    basis = fit("probe", seen, 1, 0, {"signal": signal > 0})
    assert basis.filters[0, 1] < -0.8  # the filter subtracts the noise
    assert abs(basis.patterns[0, 1]) < 0.1 < 0.8 < basis.patterns[0, 0]  # which the signal does not change
    assert basis.midpoints[0] == pytest.approx(0.0, abs=0.1)


def test_what_a_concept_s_direction_held_constant_leaves_tells_no_linear_reader_of_it():
    """LEACE of one label: also where the concept's classes differ along several correlated directions."""
    rng = np.random.default_rng(4)
    upper = rng.random(3000) < 0.3
    values = rng.normal(size=(3000, 5)) @ rng.normal(size=(5, 5)) + np.outer(upper, [1.0, -0.5, 0.0, 2.0, 0.3])
    erased = without_the_first(fit("probe", values, 1, 0, {"upper": upper}), values)
    centred = erased - erased.mean(0)
    assert np.abs(centred.T @ (upper - upper.mean())).max() / len(values) < 1e-6  # no covariance is left
    assert LogisticRegression().fit(values, upper).score(values, upper) > 0.85
    assert LogisticRegression().fit(erased, upper).score(erased, upper) <= 1.0 - upper.mean() + 1e-9


def test_fewer_rows_than_features_have_the_same_axes():
    values = np.random.default_rng(0).normal(size=(6, 20)) @ np.diag(np.linspace(1.0, 3.0, 20))
    spread, axes = spectrum(values)
    assert axes.shape == (5, 20)
    assert np.allclose(axes @ axes.T, np.eye(5))
    assert np.allclose(((values - values.mean(0)) @ axes.T).std(0), spread)


def test_enough_components_explain_the_share():
    """Upstream's "above 95 %" took the index for the number: one component too few."""
    rng = np.random.default_rng(5)
    axes = np.linalg.qr(rng.normal(size=(400, 4)) - rng.normal(size=(400, 4)).mean(0))[0]
    axes = np.linalg.qr(axes - axes.mean(0))[0]
    values = axes * np.sqrt([80.0, 14.0, 4.0, 2.0])
    spread = values.var(0) / values.var(0).sum()
    assert spread.cumsum()[1] < 0.95 < spread.cumsum()[2]
    assert enough_of(spectrum(values)[0], 0.95) == 3
    assert enough_of(spectrum(values)[0], 1.0) == 4
    assert enough_of(spectrum(np.ones((3, 2)))[0]) == 1


def test_damaged_and_missing_files_say_so_in_one_line(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    with pytest.raises(SettingError, match="can't be read"):
        load(tmp_path / "bad.npz")
    with pytest.raises(SettingError, match="There are no directions at"):
        load(tmp_path / "none.npz")
    with pytest.raises(SettingError, match="no directions of kind 'tsne'"):
        fit("tsne", np.ones((3, 2)), 1)


RNG = np.random.default_rng(1)
VALUES = RNG.standard_normal((20, 16)).astype(np.float32)


def oblique(size: int = 16, count: int = 3, seed: int = 0) -> Directions:
    """Draw components that are far from orthogonal; filters are the rows of the pseudo-inverse."""
    rng = np.random.default_rng(seed)
    patterns, center = rng.standard_normal((count, size)) + 0.5, 0.1 * rng.standard_normal(size)
    names, none = [f"c{at}" for at in range(count)], np.zeros((0, count))
    return Directions("ica", names, center, patterns, np.linalg.pinv(patterns).T, none, np.zeros(count))


def scores_after(op: str, components: list[int], **given: object) -> np.ndarray:
    basis = oblique()
    change = Intervention(basis, components, op, **given)  # type: ignore[arg-type]
    return basis.encode(change.edit(0)(torch.as_tensor(VALUES)).numpy())


@pytest.mark.parametrize(
    ("op", "amount", "expected"),
    [
        ("ablate_mean", None, lambda s: 0 * s),
        ("ablate_midpoint", 0.3, lambda s: 0 * s + 0.3),
        ("reflect", 0.3, lambda s: 0.6 - s),
        ("scale", -2.0, lambda s: -2 * s),
        ("steer", 1.5, lambda s: s + 1.5),
    ],
)
def test_operations_change_the_chosen_score_and_no_other(op: str, amount: float | None, expected: object) -> None:
    before = oblique().encode(VALUES)
    after = scores_after(op, [1], amount=amount)
    np.testing.assert_allclose(after[:, 1], expected(before[:, 1]), atol=1e-5)  # type: ignore[operator]
    np.testing.assert_allclose(after[:, [0, 2]], before[:, [0, 2]], atol=1e-5)


def test_swap_moves_exactly_one_component_onto_the_other() -> None:
    before, after = oblique().encode(VALUES), scores_after("swap", [2, 0])
    np.testing.assert_allclose(after, before[:, [2, 1, 0]], atol=1e-5)
    assert np.abs(after - before).max() > 0.5
    # What the vectors move by is the a-component, taken from a's pattern and put on b's.
    only_a = oblique().center + 2.0 * oblique().patterns[2]
    moved = Intervention(oblique(), [2, 0], "swap").edit(0)(torch.as_tensor(only_a[None]))
    np.testing.assert_allclose(moved[0], oblique().center + 2.0 * oblique().patterns[0], atol=1e-6)


@pytest.mark.parametrize(("op", "components", "amount"), [("swap", [0, 2], None), ("reflect", [0, 1], [0.2, -0.4])])
def test_swap_and_reflect_twice_are_the_identity(op: str, components: list[int], amount: list[float] | None) -> None:
    edit = Intervention(oblique(), components, op, amount=amount).edit(0)  # type: ignore[arg-type]
    values = torch.as_tensor(VALUES)
    np.testing.assert_allclose(edit(edit(values)), values, atol=1e-6)


def test_when_is_steps_of_the_episode() -> None:
    values = torch.as_tensor(VALUES)
    steps = np.arange(20)
    some = Intervention(oblique(), [0], "steer", amount=1.0, when=range(3, 6)).edit(steps)(values)
    changed = (some != values).any(1).numpy()
    assert np.flatnonzero(changed).tolist() == [3, 4, 5]
    assert Intervention(oblique(), [0], "steer", amount=1.0, when={2}).edit(1)(values) is values


def test_several_interventions_are_made_in_order_and_are_differentiable() -> None:
    steer = Intervention(oblique(), [0], "steer", amount=1.0)
    double = Intervention(oblique(), [0], "scale", amount=2.0)
    values = torch.as_tensor(VALUES).requires_grad_()
    edits = edits_for([steer, double], start=4)
    assert edits is not None
    after = edits(2)["memory"](values)
    before = oblique().encode(VALUES)
    np.testing.assert_allclose(oblique().encode(after.detach().numpy())[:, 0], 2 * (before[:, 0] + 1), atol=1e-5)
    (gradient,) = torch.autograd.grad(after.sum(), values)
    wanted = 1.0 + oblique().filters[0] * oblique().patterns[0].sum()  # d(sum)/dx for a doubled score
    np.testing.assert_allclose(gradient, np.broadcast_to(wanted, VALUES.shape), atol=1e-4)
    assert edits_for([]) is None


def test_steps_of_a_simulation_count_from_its_start() -> None:
    late = Intervention(oblique(), [0], "steer", amount=1.0, when=[5])
    values = torch.as_tensor(VALUES[:2])
    edits = edits_for([late], start=np.array([4, 3]))
    assert edits is not None
    assert (edits(1)["memory"](values) != values).any(1).tolist() == [True, False]


def test_layers_of_images_are_changed_at_each_position() -> None:
    images = torch.as_tensor(RNG.standard_normal((4, 16, 3, 2)).astype(np.float32))
    after = Intervention(oblique(), [0], "ablate_midpoint", amount=0.5, site="encoder.2").edit(0)(images)
    assert after.shape == images.shape
    flat = after.permute(0, 2, 3, 1).reshape(-1, 16).numpy()
    np.testing.assert_allclose(oblique().encode(flat)[:, 0], 0.5, atol=1e-5)
    whole = oblique(96, 2)
    after = Intervention(whole, [1], "ablate_mean", site="encoder.2").edit(0)(images)
    np.testing.assert_allclose(whole.encode(after.flatten(1).numpy())[:, 1], 0.0, atol=1e-4)


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_identity_operations_leave_play_bit_equal_and_others_do_not(memory: str) -> None:
    agent = agent_of(memory, False)
    site = "memory" if memory != "none" else "actor.0"
    size = agent.memory_size or 8
    basis = oblique(size, 3)
    plain = play(agent, Corridors(4), LEVELS, keep=[site] if memory == "none" else [])
    for identity in (
        Intervention(basis, [0, 2], "scale", amount=1.0, site=site),
        Intervention(basis, [1], "steer", amount=0.0, site=site),
        Intervention(basis, [1], "reflect", amount=0.7, when=[], site=site),
    ):
        edited = play(agent, Corridors(4), LEVELS, hooks=[identity])
        assert edited.logits.tobytes() == plain.logits.tobytes(), identity.op
        assert edited.memory.tobytes() == plain.memory.tobytes()
    moved = play(agent, Corridors(4), LEVELS, hooks=[Intervention(basis, [1], "steer", amount=3.0, site=site)])
    assert moved.logits.tobytes() != plain.logits.tobytes()


def test_defaults_are_the_means_and_midpoints_of_the_basis() -> None:
    labels = np.arange(20) < 5
    values = VALUES.astype(np.float64) + 3.0 * labels[:, None]
    basis = fit("probe", values, 1, labels={"early": labels})
    edit = Intervention(basis, [0], "ablate_midpoint").edit(0)(torch.as_tensor(values)).numpy()
    half = 0.5 * (values[labels].mean(0) + values[~labels].mean(0))
    np.testing.assert_allclose(basis.encode(edit)[:, 0], basis.encode(half[None])[0, 0], atol=1e-9)
    mirrored = Intervention(basis, [0], "reflect").edit(0)(torch.as_tensor(values)).numpy()
    np.testing.assert_allclose(basis.encode(mirrored)[labels].mean(), basis.encode(values)[~labels].mean(), atol=1e-9)
    averaged = Intervention(basis, [0], "ablate_mean").edit(0)(torch.as_tensor(values)).numpy()
    np.testing.assert_allclose(basis.encode(averaged)[:, 0], basis.encode(values).mean(), atol=1e-9)


def test_components_that_are_not_linear_are_read_as_they_are() -> None:
    values, base = np.abs(VALUES).astype(np.float64), oblique(16, 4)
    patterns = np.abs(base.patterns)
    basis = Directions(
        "nmf", base.names, base.center, patterns, np.linalg.pinv(patterns).T, np.zeros((0, 4)), np.zeros(4)
    )
    tensor = torch.as_tensor(values).requires_grad_()
    off = Intervention(basis, [0], "scale", amount=0.0).edit(0)(tensor)
    scores = basis.encode(values)[:, :1]
    np.testing.assert_allclose(off.detach(), values - scores * basis.patterns[0], atol=1e-9)
    (gradient,) = torch.autograd.grad(off.sum(), tensor)
    np.testing.assert_allclose(gradient[0], 1.0 - basis.patterns[0].sum() * basis.filters[0], atol=1e-9)
    same = Intervention(basis, [0, 1], "scale", amount=1.0).edit(0)(tensor)
    assert (same == tensor).all()


def test_the_same_intervention_works_inside_a_world_model() -> None:
    world, agent = worlds.LinearWorld(), worlds.agent_of("gru")
    basis = oblique(8, 2)
    context = worlds.context_of(world, agent, 3)
    when = Intervention(basis, [1], "ablate_midpoint", amount=0.4, when=range(6, 8))
    plain = simulate(world, agent, *context, 4)
    edited = simulate(world, agent, *context, 4, edits=edits_for([when], start=np.array([5, 5, 9])))
    scores = basis.encode(edited.memory.detach().double().numpy().reshape(-1, 8)).reshape(3, 5, 2)
    # Memory t + 1 is that after step t; steps count from 5 in the first two rows.
    np.testing.assert_allclose(scores[:2, 2:4, 1], 0.4, atol=1e-5)
    assert np.abs(scores[:2, 4, 1] - 0.4).min() > 1e-3
    assert (edited.memory[2] == plain.memory[2]).all()
    (gradient,) = torch.autograd.grad(edited.values[0, 4], edited.nodes["memory"][0])
    assert gradient[0].abs().sum() > 0
    same = simulate(world, agent, *context, 4, edits=edits_for([Intervention(basis, [0], "scale", amount=1.0)]))
    assert (same.logits == plain.logits).all()


def test_bad_interventions_are_named() -> None:
    basis = oblique()
    for wrong, text in [
        (([0], "delete"), "op is 'delete'"),
        (([3], "ablate_mean"), "components are"),
        (([], "ablate_mean"), "components are"),
        (([0], "swap"), "swap exchanges"),
        (([0], "scale"), "amount is None"),
    ]:
        with pytest.raises(SettingError, match=text):
            Intervention(basis, *wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"shape \(3,\)"):
        Intervention(basis, [0], "steer", amount=np.zeros(3))
    mean = Intervention(basis, [0], "ablate_mean")
    with pytest.raises(SettingError, match="no memory"):
        play(agent_of("none", False), Corridors(1), [1], hooks=[mean])
    with pytest.raises(SettingError, match="length 16, but site 'memory' has shape"):
        play(agent_of("gru", False), Corridors(1), [1], hooks=[mean])
    elsewhere = Intervention(basis, [0], "ablate_mean", site="nowhere")
    with pytest.raises(SettingError, match="site is 'nowhere'"):
        play(agent_of("gru", False), Corridors(1), [1], hooks=[elsewhere])
    wide = Intervention(basis, [0], "ablate_mean", site="encoder.0")
    with pytest.raises(SettingError, match="fit the basis to that site"):
        play(agent_of("gru", False), Corridors(1), [1], hooks=[wide])
