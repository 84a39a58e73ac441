"""Small archives in the formats of the official ones."""

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np


def python2_pickle(value):
    """Protocol 2 as Python 2 writes it, in which CIFAR's batches are: texts are strings of bytes."""

    def string(raw):
        return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw

    def written(item):
        if isinstance(item, dict):
            return b"}(" + b"".join(written(k) + written(v) for k, v in item.items()) + b"u"
        if isinstance(item, list):
            return b"](" + b"".join(map(written, item)) + b"e"
        if isinstance(item, bytes):
            return string(item)
        if isinstance(item, int):
            return b"J" + struct.pack("<i", item)
        shape = b"(" + b"".join(map(written, item.shape)) + b"t"
        dtype = b"cnumpy\ndtype\n" + string(item.dtype.str[1:].encode()) + b"K\x00K\x01\x87R"
        dtype += b"(K\x03" + string(item.dtype.str[:1].encode()) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        return made + b"(K\x01" + shape + dtype + b"\x89" + string(item.tobytes()) + b"tb"

    return b"\x80\x02" + written(value) + b"."


def tar(path, files, mode="w:gz"):
    """A tar file with these names and contents; instead of a content, a TarInfo's fields."""
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, dict):
                for field, value in content.items():
                    setattr(info, field, value)
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def pixels(samples, size=32, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (samples, channels, size, size), dtype=np.uint8)


def cifar10_files(each=20):
    """The members of cifar-10-python.tar.gz, with ``each`` images in a batch; image i of all is pixels(6 * each)[i]."""
    images, labels = pixels(6 * each), np.arange(6 * each) % 10
    files = {"cifar-10-batches-py/": {"type": tarfile.DIRTYPE}, "cifar-10-batches-py/readme.html": b"<html>"}
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        part = slice(number * each, (number + 1) * each)
        files[f"cifar-10-batches-py/{name}"] = python2_pickle(
            {
                b"batch_label": name.encode(),
                b"labels": labels[part].tolist(),
                b"data": images[part].reshape(each, 3072),
                b"filenames": [f"{n}.png".encode() for n in range(each)],
            }
        )
    return files


def cifar100_files(train=200, test=100):
    images = pixels(train + test)
    files = {"cifar-100-python/meta": python2_pickle({b"fine_label_names": [b"apple", b"bee"]})}
    for name, part in (("train", slice(0, train)), ("test", slice(train, None))):
        flat = images[part].reshape(-1, 3072)
        files[f"cifar-100-python/{name}"] = python2_pickle(
            {
                b"data": flat,
                b"fine_labels": [n % 100 for n in range(len(flat))],
                b"coarse_labels": [n % 20 for n in range(len(flat))],
            }
        )
    return files


def mat(path, samples, seed=0, compress=True):
    """SVHN's format 2: X (32, 32, 3, N), y (N, 1) with 10 for the digit 0."""
    from scipy.io import savemat

    images, labels = pixels(samples, seed=seed), np.arange(samples, dtype=np.uint8) % 10 + 1
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": labels[:, None]}, do_compression=compress)
    return images, labels % 10


def idx(path, array, zipped=True):
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


def stl10_files(train=30, test=20):
    images = pixels(train + test, size=96)
    labels = (np.arange(train + test) % 10 + 1).astype(np.uint8)
    files = {"stl10_binary/class_names.txt": b"airplane\n"}
    for name, part in (("test", slice(train, None)), ("train", slice(0, train))):
        files[f"stl10_binary/{name}_X.bin"] = images[part].transpose(0, 1, 3, 2).tobytes()
        files[f"stl10_binary/{name}_y.bin"] = labels[part].tobytes()
    files["stl10_binary/unlabeled_X.bin"] = bytes(3 * 96 * 96)
    return files, images, labels - 1


def png(image, kind="PNG"):
    """A file of one image (channels, height, width)."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0) if len(image) == 3 else image[0]).save(file, kind)
    return file.getvalue()


def cinic10_files(each=3, parts=("train", "valid", "test")):
    """CINIC-10's layout: part, class, image; the classes are two here."""
    images = pixels(len(parts) * 2 * each)
    names = [f"./{part}/{kind}/{n}.png" for part in parts for kind in ("airplane", "truck") for n in range(each)]
    return {"./README": b"CINIC", **{name: png(image) for name, image in zip(names, images, strict=True)}}, images
