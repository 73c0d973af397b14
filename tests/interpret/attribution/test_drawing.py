"""Colours that saturate instead of wrapping, and strips."""

import io

import numpy as np
from PIL import Image

from rlhf_ray.interpret.attribution.drawing import overlay, saturating, strip


def test_a_large_value_has_the_full_colour_and_no_weaker_one():
    """A cast to bytes wraps: 5 times the mean was full, 6 times nearly none."""
    maps = np.zeros((1, 4, 4))
    maps[0, :2] = 1.0
    maps[0, 2, :4] = np.array([5.0, 6.0, 50.0, -6.0])
    frames = np.full((1, 4, 4, 3), 128, np.uint8)
    drawn = overlay(frames, maps, scale=5.0).astype(int)[0]
    assert np.array_equal(drawn[2, 0], drawn[2, 1])
    assert np.array_equal(drawn[2, 1], drawn[2, 2])
    red, blue = drawn[2, 1], drawn[2, 3]
    assert red[0] - red[2] > 60
    assert blue[2] - blue[0] > 60
    assert abs(drawn[3, 0][0] - drawn[3, 0][2]) == 0, "no colour where there is nothing"
    assert not np.ptp(overlay(frames, maps, 5.0, np.array([True])), axis=-1).any(), "no colour beyond the valid horizon"
    assert saturating(np.array([-1.0, 0.0, 3.0])) == 10.0
    assert saturating(np.zeros(3)) == 1.0


def test_strips_are_pictures_of_images_and_vectors():
    rng = np.random.default_rng(0)
    for shape in ((1, 2, 16, 16, 3), (1, 2, 5)):
        maps, frames = rng.normal(size=shape), rng.integers(0, 256, shape).astype(np.uint8)
        one, other = (
            strip(frames, maps, ["one"], ["now", "+1"], "value", faded=np.array([[False, x]])) for x in (True, False)
        )
        assert one[:4] == b"\x89PNG"
        assert one != other


def test_a_strip_that_is_not_trusted_is_crossed_out_with_its_reason():
    frames = np.full((1, 2, 16, 16, 3), 128, np.uint8)
    maps = np.zeros(frames.shape)
    trusted, not_trusted = (
        np.asarray(Image.open(io.BytesIO(strip(frames, maps, ["one"], ["now", "+1"], crossed_out=why)))).astype(int)
        for why in (None, "random orders are as good")
    )
    red = [
        (image[..., 0] > image[..., 2] + 80) & (image[..., 0] > image[..., 1] + 80) for image in (trusted, not_trusted)
    ]
    assert not_trusted.shape[0] > trusted.shape[0], "the reason stands below"
    assert red[1][:, : red[1].shape[1] // 2].sum() > 20 * (red[0][:, : red[0].shape[1] // 2].sum() + 1)
