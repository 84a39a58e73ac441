"""The official archives of image sets, small ones in their formats."""

import gzip
import pickle
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat
from tests.support.archives import cifar10_files, cifar100_files, idx, mat, pixels, stl10_files, tar, zipped

from wattune.datasets import image_archives
from wattune.datasets.image_archives import Cifar, Idx, Stl10, Svhn
from wattune.errors import UnknownName, WorkloadError


def refused(source, words):
    with pytest.raises(WorkloadError) as caught:
        source()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class TestCifar:
    def test_10_as_published(self, tmp_path):
        path = tar(tmp_path / "cifar-10-binary.tar.gz", cifar10_files())
        data = Cifar(path)()
        images = pixels(120)
        assert np.array_equal(data.train[0], images[:100])
        assert np.array_equal(data.test[0], images[100:])
        assert data.train[0].dtype == torch.uint8
        assert data.train[1].tolist() == [n % 10 for n in range(100)]
        assert data.test[1].tolist() == [n % 10 for n in range(100, 120)]

    def test_100_with_its_fine_labels(self, tmp_path):
        data = Cifar(tar(tmp_path / "x", cifar100_files()), "cifar100")()
        assert data.train[1].tolist() == [n % 100 for n in range(200)]
        assert (data.train[0].shape, data.test[0].shape) == ((200, 3, 32, 32), (100, 3, 32, 32))

    def test_from_the_unpacked_folder(self, tmp_path):
        for name, content in cifar10_files().items():
            if isinstance(content, bytes):
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).write_bytes(content)
        packed = Cifar(tar(tmp_path / "x", cifar10_files()))()
        assert torch.equal(Cifar(tmp_path / "cifar-10-batches-bin")().train[0], packed.train[0])

    def test_the_setup_of_the_paper(self, tmp_path):
        """A quarter of the training part, a fifth of it to test with."""
        path = tar(tmp_path / "x", cifar10_files(40))
        data = Cifar(path, share=0.25, test_share=0.2, split_seed=1)()
        assert (len(data.train[0]), len(data.test[0])) == (40, 10)
        known = {image.tobytes(): n for n, image in enumerate(pixels(240))}
        places = [known[image.numpy().tobytes()] for part in (data.train, data.test) for image in part[0]]
        labels = [*data.train[1].tolist(), *data.test[1].tolist()]
        assert len(set(places)) == 50
        assert max(places) < 200  # none of the official test part
        assert labels == [place % 10 for place in places]
        other = Cifar(path, share=0.25, test_share=0.2, split_seed=2)()
        assert not torch.equal(data.train[0], other.train[0])

    def test_classes_sizes_and_channels(self, tmp_path):
        path = tar(tmp_path / "x", cifar10_files())
        data = Cifar(path, classes=(7, 2), size=16, channels=1)()
        assert data.train[0].shape == (20, 1, 16, 16)
        assert set(data.train[1].tolist()) == {0, 1}
        assert len(data.test[0]) == 4

    def test_a_source_travels_to_another_process(self, tmp_path):
        source = Cifar(tar(tmp_path / "x", cifar10_files()), "cifar10", share=0.5)
        assert pickle.loads(pickle.dumps(source)) == source

    def test_another_archive_is_refused(self, tmp_path):
        refused(Cifar(tmp_path / "x"), "no such data file")
        path = tar(tmp_path / "x", cifar100_files())
        refused(
            Cifar(path),
            "lacks the member: data_batch_1.bin; allowed: the binary release of cifar10, cifar-10-binary.tar.gz",
        )
        path.write_bytes(path.read_bytes()[:-2000])
        refused(Cifar(path, "cifar100"), "cannot read")
        with pytest.raises(UnknownName, match="cifar1000; allowed: cifar10, cifar100"):
            Cifar(path, "cifar1000")

    def test_the_python_release_is_refused_with_a_pointer_to_the_binary_one(self, tmp_path):
        names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
        path = tar(tmp_path / "x", {f"cifar-10-batches-py/{name}": pickle.dumps({b"labels": [1]}) for name in names})
        refused(Cifar(path), "use the binary release: the pickles of the python release are not read")

    @pytest.mark.parametrize(
        ("kind", "files", "member", "batch", "words"),
        [
            ("cifar10", cifar10_files, "data_batch_3.bin", bytes(3072), "bytes of the train part"),
            ("cifar10", cifar10_files, "test_batch.bin", bytes(2 * 3073 - 1), "allowed: a multiple of 3073"),
            ("cifar10", cifar10_files, "test_batch.bin", b"", "0 and 0"),
            ("cifar10", cifar10_files, "data_batch_1.bin", b"\x0a" + bytes(3072), "train part of"),
            ("cifar10", cifar10_files, "test_batch.bin", b"\xff" + bytes(3072), "255; allowed: 0 to 9"),
            ("cifar100", cifar100_files, "test.bin", bytes(3073), "allowed: a multiple of 3074"),
            ("cifar100", cifar100_files, "train.bin", b"\x00\x64" + bytes(3072), "100; allowed: 0 to 99"),
        ],
    )
    def test_a_batch_of_another_shape_is_refused(self, tmp_path, kind, files, member, batch, words):
        contents = files()
        (name,) = (name for name in contents if name.endswith(member))
        refused(Cifar(tar(tmp_path / "x", {**contents, name: batch}), kind), words)

    def test_a_member_that_would_lie_elsewhere_is_refused(self, tmp_path):
        inside = tmp_path / "data"
        inside.mkdir()
        refused(Cifar(tar(inside / "x", {**cifar10_files(), "../planted": b"1"})), "outside the archive's folder")
        files = {**cifar10_files(), "link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}}
        refused(Cifar(tar(inside / "x", files)), "a link or a device")
        assert sorted(tmp_path.rglob("*")) == [inside, inside / "x"]

    @pytest.mark.parametrize(
        "values",
        [
            *({"share": 0}, {"share": 2}, {"test_share": 1}, {"split_seed": -1}, {"classes": ()}),
            *({"size": 0}, {"size": 4000}, {"size": 1.5}, {"channels": 2}),
        ],
    )
    def test_refuses_what_means_nothing(self, tmp_path, values):
        with pytest.raises(WorkloadError, match="allowed"):
            Cifar(tmp_path / "x", **values)


class TestSvhn:
    @pytest.mark.slow
    @pytest.mark.parametrize("compress", [True, False])
    def test_as_published(self, tmp_path, compress):
        train, test = (mat(tmp_path / name, n, n, compress) for name, n in (("train", 30), ("test", 12)))
        data = Svhn(tmp_path / "train", tmp_path / "test")()
        for read, (images, labels) in ((data.train, train), (data.test, test)):
            assert np.array_equal(read[0], images)
            assert read[1].tolist() == labels.tolist()
        assert 0 in data.test[1].tolist()  # stored as 10

    def test_without_a_test_file_a_fifth_is_split_off(self, tmp_path):
        mat(tmp_path / "x", 30)
        data = Svhn(tmp_path / "x")()
        assert (len(data.train[0]), len(data.test[0])) == (24, 6)
        data = Svhn(tmp_path / "x", share=0.25, test_share=0.25)()
        assert (len(data.train[0]), len(data.test[0])) == (6, 2)
        with pytest.raises(WorkloadError, match="test_share beside a test part"):
            Svhn(tmp_path / "x", tmp_path / "x", test_share=0.2)

    def test_other_files_are_refused(self, tmp_path):
        path = tmp_path / "x"
        refused(Svhn(path), "no such data file")
        refused(Svhn(tmp_path), "cannot read")
        path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(600))  # MATLAB 7.3
        refused(Svhn(path), "allowed: a complete MATLAB 5 file")

    IMAGES = pixels(3).transpose(2, 3, 1, 0)

    # Each is read in a process of its own, so all but two are with the slow tests.
    @pytest.mark.parametrize(
        ("table", "words"),
        [
            ({"X": IMAGES, "y": np.ones((2, 1))}, "allowed: X (32, 32, 3, N)"),
            ({"X": IMAGES, "y": np.array([[1], [11], [3]])}, "allowed: 1 to 10"),
            *(
                pytest.param(table, words, marks=pytest.mark.slow)
                for table, words in (
                    ({"X": IMAGES, "z": [1]}, "allowed: X (32, 32, 3, N)"),
                    ({"X": IMAGES.astype(float), "y": np.ones((3, 1))}, "allowed: X (32, 32, 3, N)"),
                    ({"X": IMAGES, "y": np.array([["a"], ["b"], ["c"]])}, "allowed: X (32, 32, 3, N)"),
                    ({"X": IMAGES + 1j, "y": np.ones((3, 1))}, "allowed: X (32, 32, 3, N)"),
                    ({"X": {"a": 1}, "y": [[1]]}, "allowed: X (32, 32, 3, N)"),
                    ({"a": {"X": IMAGES, "y": np.ones((3, 1))}}, "allowed: X (32, 32, 3, N)"),
                    ({"X": IMAGES, "y": np.array([[0], [1], [2]])}, "allowed: 1 to 10"),
                    ({"X": IMAGES, "y": np.array([[1.0], [1.5], [2.0]])}, "allowed: 1 to 10"),
                    ({"X": IMAGES, "y": np.array([[np.nan], [1.0], [2.0]])}, "allowed: 1 to 10"),
                )
            ),
        ],
    )
    def test_other_arrays_are_refused(self, tmp_path, table, words):
        savemat(tmp_path / "x", table)
        refused(Svhn(tmp_path / "x"), words)

    @pytest.mark.parametrize(
        ("length", "compress"),
        [
            (-20, True),
            *(
                pytest.param(length, compress, marks=pytest.mark.slow)
                for length in (0, 100, 150, 1000, -20)
                for compress in (True, False)
            ),
        ],
    )
    def test_a_file_that_is_cut_off_is_refused(self, tmp_path, length, compress):
        mat(tmp_path / "x", 3, compress=compress)
        (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:length])
        refused(Svhn(tmp_path / "x"), str(tmp_path / "x"))

    def test_a_file_that_crashes_scipy_is_refused(self, tmp_path, monkeypatch):
        mat(tmp_path / "x", 3, compress=False)
        damaged = bytearray((tmp_path / "x").read_bytes())
        damaged[184] = 0  # the type of the numbers in X; scipy 1.17 crashes
        (tmp_path / "x").write_bytes(damaged)
        refused(Svhn(tmp_path / "x"), "cannot read")
        monkeypatch.setattr(image_archives, "_READ_MAT", "import os; os.abort()")  # in whatever version of scipy
        refused(Svhn(tmp_path / "x"), "the reader crashed with signal 6")

    @pytest.mark.slow
    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.booleans(), st.integers(0, 700), st.binary(max_size=8), st.integers(0, 300))
    def test_any_damage_is_an_image_set_or_one_line(self, tmp_path, compress, place, written, cut):
        path = tmp_path / "x"
        mat(path, 3, compress=compress)
        raw = path.read_bytes()
        path.write_bytes(raw[:place] + written + raw[place + cut :])
        try:
            assert Svhn(path)().train[0].shape[1:] == (3, 32, 32)
        except WorkloadError as error:
            assert "\n" not in str(error)  # noqa: PT017 - some are read


class TestIdx:
    @pytest.mark.parametrize("zipped", [True, False])
    def test_as_published(self, tmp_path, zipped):
        train, test = pixels(20, 28, 1)[:, 0], pixels(10, 28, 1, seed=1)[:, 0]
        labels = np.arange(20, dtype=np.uint8) % 10
        files = [idx(tmp_path / f"{n}", array, zipped) for n, array in enumerate([train, labels, test, labels[:10]])]
        data = Idx(*files)()
        assert np.array_equal(data.train[0], train[:, None])
        assert data.train[1].tolist() == labels.tolist()
        assert np.array_equal(data.test[0], test[:, None])
        data = Idx(*files, size=32, channels=3)()
        assert data.train[0].shape == (20, 3, 32, 32)
        data = Idx(*files[:2], test_share=0.5)()
        assert len(data.test[0]) == 10
        with pytest.raises(WorkloadError, match="both or neither"):
            Idx(*files[:3])

    def test_other_files_are_refused(self, tmp_path):
        images, labels = idx(tmp_path / "i", pixels(20, 28, 1)[:, 0]), idx(tmp_path / "l", np.zeros(20, np.uint8))
        refused(Idx(labels, labels), "not an idx file of bytes with 3 dimensions: 00 00 08 01")
        refused(Idx(images, idx(tmp_path / "m", np.zeros(19, np.uint8))), "20 and 19")
        refused(Idx(images, tmp_path / "n"), "no such data file")
        whole = gzip.decompress(images.read_bytes())
        for content, words in [
            (gzip.compress(whole)[:-30], "cannot read"),
            (gzip.compress(whole[:-1]), "15695; allowed: 15696"),
            (gzip.compress(whole + b"x"), "more than 15696"),
            (whole[:4] + b"\xff" * 12, "allowed: up to"),
            (whole[:10], "not an idx file"),
            (b"", "empty"),
            (gzip.compress(b""), "empty"),
        ]:
            images.write_bytes(content)
            refused(Idx(images, labels), words)

    @settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(0, 40), st.binary(min_size=1, max_size=6))
    def test_any_damage_is_noticed_or_an_image_set(self, tmp_path, place, written):
        images, labels = idx(tmp_path / "i", pixels(4, 28, 1)[:, 0]), idx(tmp_path / "l", np.zeros(4, np.uint8))
        raw = images.read_bytes()
        images.write_bytes(raw[:place] + written + raw[place + len(written) :])
        try:
            assert Idx(images, labels, test_share=0.5)().train[0].shape[1:] == (1, 28, 28)
        except WorkloadError as error:
            assert "\n" not in str(error)  # noqa: PT017


class TestStl10:
    def test_as_published(self, tmp_path):
        files, images, labels = stl10_files()
        path = tar(tmp_path / "stl10_binary.tar.gz", files)
        data = Stl10(path, size=None)()
        assert np.array_equal(data.train[0], images[:30])
        assert np.array_equal(data.test[0], images[30:])
        assert data.train[1].tolist() == labels[:30].tolist()
        assert Stl10(path)().train[0].shape == (30, 3, 32, 32)
        assert len(Stl10(path, test_share=0.2)().test[0]) == 6

    def test_other_files_are_refused(self, tmp_path):
        files, _, _ = stl10_files()
        path = tar(tmp_path / "x", {**files, "stl10_binary/train_y.bin": bytes(range(30))})
        refused(Stl10(path), "labels 1 to 10")
        path = tar(tmp_path / "x", {**files, "stl10_binary/train_X.bin": bytes(7)})
        refused(Stl10(path), "7 bytes of images")
        refused(Stl10(zipped(tmp_path / "x", {"a": b"1"})), "allowed: the binary files of STL-10")
