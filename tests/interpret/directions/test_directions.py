"""Directions: every kind keeps the projector's contract."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.directions import KINDS, LABELLED, fit, load
from rlhf_ray.interpret.directions.components import enough_of, spectrum
from rlhf_ray.interpret.directions.directions import NOT_LINEAR

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


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_removed_has_its_mean_score_and_the_rest_stays(kind, values, labels):
    basis = fit(kind, values, 2, 0, labels)
    removed = basis.remove(values, [0])
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
    erased = fit("probe", values, 1, 0, {"upper": upper}).remove(values, [0])
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
