"""Images as files: a folder for each class."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from wattune.errors import WorkloadError
from wattune.workloads import ImageFolders, image_folders


def unpacked(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def refused(source, words):
    with pytest.raises(WorkloadError) as caught:
        source()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def pixels(samples, size=32):
    return np.random.default_rng(0).integers(0, 256, (samples, 3, size, size), dtype=np.uint8)


def png(image, kind="PNG"):
    """A file of one image (3, height, width)."""
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(file, kind)
    return file.getvalue()


def test_a_share_and_a_split_are_drawn_by_the_seed(tmp_path):
    images = pixels(40)
    unpacked(tmp_path, {f"{'cat' if n < 20 else 'dog'}/{n:02}.png": png(image) for n, image in enumerate(images)})
    data = ImageFolders(tmp_path, share=0.5, test_share=0.25, split_seed=1)()
    assert (len(data.train[0]), len(data.test[0])) == (15, 5)
    known = {image.tobytes(): n for n, image in enumerate(images)}
    for part in (data.train, data.test):
        for image, label in zip(*part, strict=True):
            assert int(label) == (known.pop(image.numpy().tobytes()) >= 20)  # no image twice
    other = ImageFolders(tmp_path, share=0.5, test_share=0.25, split_seed=2)()
    assert not np.array_equal(data.train[0], other.train[0])
    assert ImageFolders(tmp_path, size=16, channels=1)().train[0].shape == (32, 1, 16, 16)


def test_a_folder_for_each_part(tmp_path):
    images = pixels(8)
    for part, start in (("train", 0), ("test", 4)):
        names = ["cat/a.PNG", "cat/b.jpeg", "dog/a.jpg", "dog/b.png"]
        unpacked(tmp_path / part, {name: png(images[start + n]) for n, name in enumerate(names)})
        unpacked(tmp_path / part, {"cat/Thumbs.db": b"x", "dog/._b.png": b"x", "notes.txt": b"x", "a/b/c.png": b"x"})
    data = ImageFolders(tmp_path / "train", test=tmp_path / "test")()
    assert np.array_equal(data.train[0], images[:4])
    assert np.array_equal(data.test[0], images[4:])
    assert data.test[1].tolist() == [0, 0, 1, 1]
    dogs = ImageFolders(tmp_path / "train", test=tmp_path / "test", classes=(1,))()
    assert np.array_equal(dogs.train[0], images[2:4])


def test_a_test_part_may_lack_a_class_but_not_have_another(tmp_path):
    image = png(pixels(1)[0])
    unpacked(tmp_path / "train", {"cat/a.png": image, "dog/a.png": image})
    unpacked(tmp_path / "test", {"dog/a.png": image})
    assert ImageFolders(tmp_path / "train", test=tmp_path / "test")().test[1].tolist() == [1]
    unpacked(tmp_path / "test", {"ape/a.png": image})
    refused(ImageFolders(tmp_path / "train", test=tmp_path / "test"), "not in the training part: ape")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_every_kind_of_image_of_8_bits_and_fewer(tmp_path, mode):
    file = io.BytesIO()
    picture = Image.fromarray(np.full((8, 8, 3), 255, np.uint8)).convert(mode)
    if mode == "P":
        picture.info["transparency"] = bytes(range(0, 250, 10))  # converted by itself, it is warned about
    picture.save(file, "JPEG" if mode == "CMYK" else "PNG")
    unpacked(tmp_path, {f"a/{n}.png": file.getvalue() for n in range(2)})
    for channels in (1, 3):
        x = ImageFolders(tmp_path, test_share=0.5, channels=channels)().train[0]
        assert x.shape == (1, channels, 8, 8)
        assert x.min() > 250


def test_sizes_that_differ_need_a_size(tmp_path):
    unpacked(tmp_path, {"a/1.png": png(pixels(1, 8)[0]), "a/2.png": png(pixels(1, 9)[0]), "b/1.png": b""})
    refused(ImageFolders(tmp_path, classes=(0,)), "give the size to resize to")
    data = ImageFolders(tmp_path, classes=(0,), size=8, test_share=0.5)()  # b/1.png is not opened
    assert data.train[0].shape == (1, 3, 8, 8)


def test_resizing_keeps_the_mean(tmp_path):
    image = pixels(1, 96)[0]
    unpacked(tmp_path, {f"a/{n}.png": png(image) for n in range(2)})
    x = ImageFolders(tmp_path, size=32, test_share=0.5)().train[0][0].float()
    assert np.allclose(x.mean((1, 2)), image.mean((1, 2)), atol=1.5)


def bomb(side):
    """A PNG file of a few bytes that says it has so many pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    start = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot read"),
        (b"GIF89a" + bytes(100), "cannot read"),
        (png(pixels(1)[0])[:200], "cannot read"),
        (bomb(9000), "pixels of"),
        (bomb(10_000), "DecompressionBomb"),
        (bomb(60_000), "DecompressionBomb"),
    ],
)
def test_an_unreadable_or_huge_image_is_refused(tmp_path, content, words):
    unpacked(tmp_path, {"a/1.png": content, "a/2.png": png(pixels(1)[0])})
    refused(ImageFolders(tmp_path, test_share=0.5), words)


def test_images_of_16_bits_are_refused(tmp_path):
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(file, "PNG")
    unpacked(tmp_path, {"a/1.png": file.getvalue()})
    refused(ImageFolders(tmp_path), "colour mode of")


def test_more_than_the_memory_holds_is_refused_at_the_first_image(tmp_path, monkeypatch):
    unpacked(tmp_path, {f"a/{n}.png": png(pixels(1)[0]) for n in range(9)})
    monkeypatch.setattr(image_folders, "MAX_BYTES", 3072 * 5)
    refused(ImageFolders(tmp_path), "give a smaller size or share")
    assert len(ImageFolders(tmp_path, share=0.5)().train[0]) == 4


def test_what_is_missing_is_said(tmp_path):
    image = png(pixels(1)[0])
    unpacked(tmp_path / "deep", {"train/cat/a.png": image})
    unpacked(tmp_path / "train", {"cat/a.png": image})
    refused(ImageFolders(tmp_path / "deep"), "no folders with images in")
    refused(ImageFolders(tmp_path / "train", tmp_path / "deep"), "no folders with images in")
    for folder in ("none", "train/cat/a.png"):
        refused(ImageFolders(tmp_path / folder), "cannot read the folder")
        refused(ImageFolders(tmp_path / "train", tmp_path / folder), "cannot read the folder")
    for values in ({"channels": 2}, {"size": 0}, {"size": 4096}, {"size": 2.5}):
        with pytest.raises(WorkloadError, match="allowed"):
            ImageFolders(tmp_path / "train", **values)


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    refused(ImageFolders(tmp_path), "pip install 'wattune[data]'")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["PNG", "JPEG"]), st.integers(0, 800), st.binary(max_size=8), st.integers(0, 8))
def test_any_damage_is_an_image_or_one_line(tmp_path, kind, place, written, cut):
    raw = png(pixels(1, 16)[0], kind)
    unpacked(tmp_path, {"a/1.png": raw[:place] + written + raw[place + cut :], "a/2.png": raw})
    try:
        assert ImageFolders(tmp_path, size=16, test_share=0.5)().train[0].shape == (1, 3, 16, 16)
    except WorkloadError as error:
        assert "\n" not in str(error)  # noqa: PT017 - some are read
