"""Images with another size or number of channels."""

import numpy as np
import pytest
from tests.support.archives import pixels

from wattune.datasets.image_folders import fitted


class TestFitted:
    def test_as_they_are(self):
        images = pixels(3)
        assert fitted(images, None, None) is images
        assert fitted(images, 32, 3) is images

    def test_grey_and_colour(self):
        images = pixels(5)
        grey = fitted(images, None, 1)
        luma = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
        assert grey.shape == (5, 1, 32, 32)
        assert np.abs(grey[:, 0] - luma).max() <= 0.51
        coloured = fitted(grey, None, 3)
        assert coloured.shape == (5, 3, 32, 32)
        assert (coloured == grey).all()

    @pytest.mark.parametrize("size", [1, 28, 32, 40, 96])
    def test_a_size(self, size):
        even = np.full((4, 3, 96, 64), 77, np.uint8)
        assert (fitted(even, size, None) == 77).all()
        assert fitted(even, size, None).shape == (4, 3, size, size)
        ramp = np.broadcast_to(np.arange(96, dtype=np.uint8) * 2, (1, 1, 96, 96))
        row = fitted(ramp, size, None)[0, 0, 0].astype(int)
        assert np.all(np.diff(row) >= 0)
        assert abs(row.mean() - ramp.mean()) < 2

    def test_smaller_by_whole_steps_is_near_the_mean(self):
        images = pixels(2500, size=2, channels=1)  # more than are resized at a time
        means = images.reshape(2500, 4).mean(1)
        assert np.abs(fitted(images, 1, None).ravel() - means).max() <= 1
