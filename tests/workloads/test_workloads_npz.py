"""Numpy's .npz files as data: classes, shares, splits, and files that are refused."""

import numpy as np
import pytest
import torch

from wattune.errors import WorkloadError
from wattune.workloads import Npz


def npz(path, images, labels):
    np.savez(path, images=images, labels=labels)
    return path


class TestNpz:
    def test_keeps_the_classes_in_their_order(self, tmp_path):
        labels = np.array([5, 9, 7, 7, 1, 9])
        images = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
        path = npz(tmp_path / "a.npz", images, labels)
        data = Npz(path, path, classes=(9, 5, 7))()
        assert data.train[1].tolist() == [1, 0, 2, 2, 0]
        assert data.train[0].flatten().tolist() == [0, 1, 2, 3, 5]

    def test_inputs_and_targets_are_for_whatever_are_no_images(self, tmp_path):
        x, y = np.random.default_rng(0).normal(size=(10, 4, 3)), np.arange(10.0)
        np.savez(tmp_path / "a.npz", inputs=x, targets=y)
        data = Npz(tmp_path / "a.npz", test_share=0.2)()
        assert data.train[0].shape == (8, 4, 3)
        for found, target in zip(*data.train, strict=True):
            assert torch.equal(found, torch.from_numpy(x)[int(target)])
        np.savez(tmp_path / "a.npz", inputs=x, labels=y)
        with pytest.raises(WorkloadError, match="lacks the array: targets"):
            Npz(tmp_path / "a.npz")()

    @pytest.mark.parametrize("cut", [0, 10, -30])
    def test_that_is_cut_off_is_refused(self, tmp_path, cut):
        path = npz(tmp_path / "a.npz", np.zeros((9, 1)), np.zeros(9, int))
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(WorkloadError, match="cannot read"):
            Npz(path)()

    def test_with_other_content_is_refused(self, tmp_path):
        with pytest.raises(WorkloadError, match="no such data file"):
            Npz(tmp_path / "a.npz")()
        np.savez(tmp_path / "a.npz", x=np.zeros(3))
        with pytest.raises(WorkloadError, match="lacks the array: images"):
            Npz(tmp_path / "a.npz")()
        npz(tmp_path / "a.npz", np.array([{}, {}]), np.zeros(2, int))  # pickled objects are not opened
        with pytest.raises(WorkloadError, match="cannot read"):
            Npz(tmp_path / "a.npz")()
        np.save(tmp_path / "b.npz.npy", np.zeros(3))
        with pytest.raises(WorkloadError, match="cannot read"):
            Npz(tmp_path / "b.npz.npy")()
        path = npz(tmp_path / "a.npz", np.zeros((4, 1)), np.arange(4))
        with pytest.raises(WorkloadError, match=r"\[7\]"):
            Npz(path, classes=(1, 7))()


def test_npz_files_take_a_share_of_the_classes_that_are_kept(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.arange(100.0).reshape(100, 1), labels=np.arange(100) % 10)
    np.savez(tmp_path / "b.npz", images=np.arange(20.0).reshape(20, 1), labels=np.arange(20) % 10)
    data = Npz(tmp_path / "a.npz", classes=(1, 2), share=0.5)()
    assert (len(data.train[0]), len(data.test[0])) == (8, 2)
    assert {int(x) % 10 for x in data.train[0]} == {1, 2}
    data = Npz(tmp_path / "a.npz", tmp_path / "b.npz", share=0.25)()
    assert (len(data.train[0]), len(data.test[0])) == (25, 20)
