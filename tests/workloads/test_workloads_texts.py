"""Texts: the files, the vocabulary, the splits."""

import pytest

from wattune.errors import WorkloadError
from wattune.workloads import Text
from wattune.workloads.texts import PRINTABLE, read_texts


def test_several_texts_and_their_order(tmp_path):
    (tmp_path / "one.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    (tmp_path / "other.txt").write_text("other\n")
    assert read_texts((tmp_path / "other.txt", tmp_path / "one.txt")) == ["other\n", "one\ntwo\nthree\n"]
    for name in ("one", "other"):
        (tmp_path / f"{name}.txt").write_text(name * 20 + "." * 5 * len(name))
    data = Text((tmp_path / "one.txt", tmp_path / "other.txt"), 4, vocabulary="enorth.", test_share=0.2)()
    # The test part is the end of each text, not of the last.
    assert set(data.test[0].flatten().tolist()) == {0}
    assert len(data.train[0]) == (60 + 100 - 1) // 4


def test_the_last_tenth(tmp_path):
    text = "".join(chr(97 + n // 10 % 26) for n in range(2001))
    (tmp_path / "a.txt").write_text(text)
    last = Text(tmp_path / "a.txt", 10)()
    assert (len(last.train[0]), len(last.test[0])) == (180, 19)


def test_options_that_mean_nothing_are_refused(tmp_path):
    for values in ({"test_share": 0}, {"vocabulary": 1}):
        with pytest.raises(WorkloadError, match="allowed"):
            Text(tmp_path / "a.txt", 4, **values)


class TestText:
    def test_the_target_is_the_character_after(self, tmp_path):
        (tmp_path / "a.txt").write_text("abcabcabcab")
        (tmp_path / "b.txt").write_text("cabXc")
        data = Text(tmp_path / "a.txt", 3, test=tmp_path / "b.txt")()
        assert data.train[0].tolist() == [[0, 1, 2]] * 3
        assert data.train[1].tolist() == [[1, 2, 0]] * 3
        assert data.test[0].tolist() == [[2, 0, 1]]  # X is not in the training text
        assert data.test[1].tolist() == [[0, 1, 2]]

    def test_one_vocabulary_for_every_text(self, tmp_path):
        (tmp_path / "a.txt").write_text("Zürich,\nBern " * 20)
        data = Text(tmp_path / "a.txt", 5, vocabulary="ascii")()
        letters = sorted(PRINTABLE)
        text = "".join(letters[number] for number in data.train[0].flatten().tolist())
        assert len(letters) == 96
        assert text.startswith("Zrich,\nBern Zrich")

    def test_too_short_or_unreadable_is_refused(self, tmp_path):
        with pytest.raises(WorkloadError, match="no such data file"):
            Text(tmp_path / "a.txt", 5)()
        (tmp_path / "a.txt").write_text("short")
        with pytest.raises(WorkloadError, match="too short"):
            Text(tmp_path / "a.txt", 5)()
        (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xff")
        with pytest.raises(WorkloadError, match="UTF-8"):
            Text(tmp_path / "a.txt", 5)()
