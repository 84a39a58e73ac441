"""Small archives in the formats of the official data sets."""

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np


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
    """The members of cifar-10-binary.tar.gz, with ``each`` images in a batch; image i of all is pixels(6 * each)[i]."""
    images, labels = pixels(6 * each), (np.arange(6 * each) % 10).astype(np.uint8)
    records = np.concatenate([labels[:, None], images.reshape(-1, 3072)], axis=1)
    files = {"cifar-10-batches-bin/": {"type": tarfile.DIRTYPE}, "cifar-10-batches-bin/readme.html": b"<html>"}
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        files[f"cifar-10-batches-bin/{name}.bin"] = records[number * each : (number + 1) * each].tobytes()
    return files


def cifar100_files(train=200, test=100):
    """The members of cifar-100-binary.tar.gz; the class of image i in each part is i % 100, its superclass i % 20."""
    images = pixels(train + test).reshape(-1, 3072)
    files = {"cifar-100-binary/fine_label_names.txt": b"apple\nbee\n"}
    for name, part in (("train", slice(0, train)), ("test", slice(train, None))):
        places = np.arange(len(images[part]))[:, None]
        records = np.concatenate([places % 20, places % 100, images[part]], axis=1).astype(np.uint8)
        files[f"cifar-100-binary/{name}.bin"] = records.tobytes()
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
