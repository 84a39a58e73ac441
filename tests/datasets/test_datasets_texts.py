"""Texts: from files, archives and folders; Project Gutenberg's header and footer; the splits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.archives import tar, zipped

from wattune.datasets.texts import PRINTABLE, Text, read_texts, without_gutenberg
from wattune.errors import WorkloadError

WIKI = {
    f"wikitext-2-raw/wiki.{part}.raw": f" = {part} = \n text @-@ of it \n" * 9 for part in ("test", "train", "valid")
}

NEW = """\ufeffThe Project Gutenberg eBook of Hard Times

This eBook is for the use of anyone anywhere in the United States.

*** START OF THE PROJECT GUTENBERG EBOOK HARD TIMES,
AND OTHERS ***

Produced by A. Volunteer and the
Online Distributed Proofreading Team

HARD TIMES

"Now, what I want is, Facts."
*** no line of theirs ***

*** END OF THE PROJECT GUTENBERG EBOOK HARD TIMES,
AND OTHERS ***

Updated editions will replace the previous one.
"""

OLD = """Project Gutenberg's Bleak House, by Charles Dickens

***START OF THIS PROJECT GUTENBERG EBOOK BLEAK HOUSE***


London. Michaelmas term lately over.


End of the Project Gutenberg EBook of Bleak House, by Charles Dickens

*** END OF THIS PROJECT GUTENBERG EBOOK BLEAK HOUSE ***

*** START: FULL LICENSE ***
"""


OLDEST = """Project Gutenberg Etext of The Chimes by Charles Dickens

***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***
Why is this "Small Print!" statement here? You know: lawyers.
*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*

First Quarter.

End of The Project Gutenberg Etext of The Chimes by Charles Dickens
"""

BOTH = """*** START OF THE PROJECT GUTENBERG EBOOK A ***
*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11/02*END*
Produced by A. Volunteer

Text.

*** END OF THE PROJECT GUTENBERG EBOOK A ***
"""


def refused(attempt, words):
    with pytest.raises(WorkloadError) as caught:
        attempt()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [zipped, tar])
def test_wikitext_as_published(tmp_path, make):
    path = make(tmp_path / "wikitext-2-raw-v1.zip", {name: text.encode() for name, text in WIKI.items()})
    assert read_texts(path, ("*/wiki.train.raw",)) == [WIKI["wikitext-2-raw/wiki.train.raw"]]
    data = Text(
        path, 8, train_members=("*/wiki.train.raw",), test_members=("wikitext-2-raw/wiki.test.raw",), vocabulary="ascii"
    )()
    letters = sorted(PRINTABLE)
    assert "".join(letters[code] for code in data.test[0].flatten().tolist()).startswith(" = test = \n")
    refused(lambda: read_texts(path), "no text in")
    refused(lambda: read_texts(path, ("*.train.txt",)), "allowed: wikitext-2-raw/wiki.test.raw, ")


def test_several_texts_and_their_order(tmp_path):
    books = {"gutenberg/austen-emma.txt": b"emma\n", "gutenberg/austen-sense.txt": b"sense\n", "gutenberg/README": b"-"}
    path = zipped(tmp_path / "gutenberg.zip", books)
    assert read_texts(path) == ["emma\n", "sense\n"]
    assert read_texts(path, ("*sense.txt", "*/austen-*.txt")) == ["sense\n", "emma\n"]
    (tmp_path / "one.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert read_texts((tmp_path / "one.txt", path)) == ["one\ntwo\nthree\n", "emma\n", "sense\n"]
    (tmp_path / "folder").mkdir()
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / "folder" / name).write_text(name)
    assert read_texts(tmp_path / "folder") == ["a.txt", "b.txt"]


def test_the_text_that_project_gutenberg_adds_is_left_out():
    assert without_gutenberg(NEW, "x") == ('HARD TIMES\n\n"Now, what I want is, Facts."\n*** no line of theirs ***\n')
    assert without_gutenberg(OLD, "x") == "London. Michaelmas term lately over.\n"
    assert without_gutenberg(OLDEST, "x") == "First Quarter.\n"
    assert without_gutenberg(BOTH, "x") == "Text.\n"
    refused(lambda: without_gutenberg("[Emma by Jane Austen 1816]\n", "emma.txt"), "no Project Gutenberg header in")
    refused(lambda: without_gutenberg(NEW[: NEW.index("*** END")], "x"), "no Project Gutenberg footer in: x")


@given(st.text(alphabet="ab \n.", min_size=1).filter(lambda text: text.strip()), st.booleans())
def test_any_text_comes_back_from_between_header_and_footer(text, old):
    name = "THIS" if old else "THE"
    around = f"header\n\n*** START OF {name} PROJECT GUTENBERG EBOOK A B ***\n{text}\n"
    around += f"*** END OF {name} PROJECT GUTENBERG EBOOK A B ***\nlicence\n"
    assert without_gutenberg(around, "x") == text.strip() + "\n"


def test_books_through_a_source(tmp_path):
    (tmp_path / "hard.txt").write_bytes(NEW.replace("\n", "\r\n").encode())
    (tmp_path / "bleak.txt").write_text(OLD)
    data = Text(
        (tmp_path / "hard.txt", tmp_path / "bleak.txt"), 4, gutenberg=True, vocabulary="ascii", test_share=0.2
    )()
    letters = sorted(PRINTABLE)
    train, test = ("".join(letters[code] for code in part[0].flatten().tolist()) for part in (data.train, data.test))
    assert train.startswith("HARD TIMES\n\n")
    assert "Gutenberg" not in train + test
    # The end of each book, not of the last.
    assert "theirs" in test
    assert "theirs" not in train
    assert "London" in train
    assert test.endswith(" ov")  # the last piece ends before the last characters


def test_the_last_tenth_or_pieces_by_seed(tmp_path):
    text = "".join(chr(97 + n // 10 % 26) for n in range(2001))
    (tmp_path / "a.txt").write_text(text)
    last = Text(tmp_path / "a.txt", 10)()
    assert (len(last.train[0]), len(last.test[0])) == (180, 19)
    one, again, other = (Text(tmp_path / "a.txt", 10, split_seed=seed)() for seed in (0, 0, 1))
    assert (len(one.train[0]), len(one.test[0])) == (180, 20)
    assert one.test[0].tolist() == again.test[0].tolist()
    assert one.test[0].tolist() != other.test[0].tolist()
    pieces = sorted([*one.train[0].tolist(), *one.test[0].tolist()])
    assert pieces == sorted([ord(c) - 97 for c in text[n : n + 10]] for n in range(0, 2000, 10))


def test_options_that_mean_nothing_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    for values in ({"gutenberg": 1}, {"split_seed": -1}, {"test": path, "split_seed": 0}, {"test_share": 0}):
        refused(lambda values=values: Text(path, 4, **values), "allowed")
    path.write_bytes(b"\xff\xfe\xff")
    refused(Text(path, 4), "a text in UTF-8")
    refused(Text(zipped(tmp_path / "x", {"a.txt": b"\xff"}), 4), "cannot read a.txt of")


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
