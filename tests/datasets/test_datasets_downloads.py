"""Downloads, from a server on this machine: whole and with the right checksum, or not at all."""

import gzip
import hashlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.support.archives import cifar10_files, tar

from wattune.datasets import downloads
from wattune.datasets.downloads import Download, local
from wattune.datasets.image_archives import Cifar
from wattune.errors import WorkloadError

CONTENT = b"0123456789" * 20_000


class Handler(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    asked: list[str]

    def do_GET(self):
        self.asked.append(self.path)
        content = self.files.get(self.path.partition("?")[0], self.files.get("*"))
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        if self.headers["Accept-Encoding"] != "identity" and self.path.endswith("gz"):
            self.send_header("Content-Encoding", "gzip")  # as some servers do with files that are gzip already
        stated = len(content)
        if "endless" in self.path:
            stated = None
        elif "cut" in self.path:
            content = content[: stated // 2]
        if stated is not None:
            self.send_header("Content-Length", str(stated))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def served(monkeypatch, tmp_path):
    """A server; ``served(path, content)`` gives the address."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = type("Served", (Handler,), {"files": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()

        def serve(path, content):
            handler.files[path] = content
            return f"http://127.0.0.1:{server.server_port}{path}"

        serve.asked = handler.asked
        yield serve
        server.shutdown()
        thread.join()


def checksum(content, kind="sha256"):
    return f"{kind}:{hashlib.new(kind, content).hexdigest()}"


def left(tmp_path):
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", ["md5", "sha1", "sha256", "sha512"])
def test_a_file_is_fetched_once(served, tmp_path, capsys, kind):
    file = Download(served("/a/data.tar.gz", CONTENT), checksum(CONTENT, kind).upper().replace(kind.upper(), kind))
    path = local(file)
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == [path]
    assert path.parent == tmp_path / "cache" / "wattune" / "data"
    shown = capsys.readouterr()
    assert "data.tar.gz" in shown.err  # the progress
    assert "200.0/200.0 kB" in shown.err
    assert shown.out == ""
    assert local(file) == path
    assert served.asked == ["/a/data.tar.gz"]
    path.write_bytes(b"damaged")
    assert local(file).read_bytes() == CONTENT


def test_gzip_files_arrive_as_they_are(served):
    content = gzip.compress(CONTENT)
    assert local(Download(served("/x.gz", content), checksum(content))).read_bytes() == content


@pytest.mark.parametrize(
    ("path", "served_content", "words"),
    [
        (
            "/wrong.zip",
            b"other",
            f"its checksum: {hashlib.sha256(b'other').hexdigest()}; allowed: sha256:",
        ),
        ("/cut.zip", CONTENT, "cannot download"),
        ("/cut-endless.zip", CONTENT[:-1], "does not have its checksum"),
        ("/empty.zip", b"", "does not have its checksum"),
        ("/missing.zip", None, "404"),
    ],
)
def test_a_wrong_or_missing_file_leaves_nothing(served, tmp_path, path, served_content, words):
    with pytest.raises(WorkloadError) as caught:
        local(Download(served(path, served_content), checksum(CONTENT)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []


def test_a_download_without_an_end_is_stopped(served, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "MAX_BYTES", 1000)
    for path in ("/large", "/endless"):
        with pytest.raises(WorkloadError, match="more than 1000 bytes"):
            local(Download(served(path, CONTENT), checksum(CONTENT)))
    assert left(tmp_path) == []


def test_an_interruption_leaves_nothing(served, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads._ProgressWriter, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        local(Download(served("/x", CONTENT), checksum(CONTENT)))
    assert left(tmp_path) == []


def test_no_server_and_no_folder_are_one_line(served, tmp_path):
    with pytest.raises(WorkloadError) as caught:
        local(Download("http://127.0.0.1:9/x", checksum(CONTENT)))
    assert "cannot download http://127.0.0.1:9/x" in str(caught.value)
    assert "\n" not in str(caught.value)
    for folder in sorted((tmp_path / "cache").rglob("*"), reverse=True):
        folder.rmdir()
    (tmp_path / "cache" / "wattune").write_text("a file where the folder should be")
    with pytest.raises(WorkloadError, match="cannot download"):
        local(Download(served("/x", CONTENT), checksum(CONTENT)))


def test_no_address_leads_out_of_the_cache(served, tmp_path):
    address = served("*", CONTENT)[:-1]
    for path in ("/..%2f..%2f..%2fplanted", "/", "/a%00b", "/" + "x" * 500, "/..", "/%2e%2e", "/[/red]"):
        found = local(Download(address + path, checksum(CONTENT)))
        assert found.parent == tmp_path / "cache" / "wattune" / "data"
    assert all(path.parent.name == "data" for path in left(tmp_path))


def test_a_password_is_not_shown(served):
    assert str(Download("https://me:secret@host/a.zip?key=secret", checksum(b""))) == "https://host/a.zip"
    address = served("/", b"").replace("//", "//me:secret@")
    for url in (f"{address}missing?key=secret", "http://me:secret@127.0.0.1:9/x?key=secret", f"{address}?key=secret"):
        with pytest.raises(WorkloadError) as caught:
            local(Download(url, checksum(CONTENT)))
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://a/b", "file:///etc/passwd", "a.zip", "http://", "http://a b", "http://[x", 3])
def test_other_addresses_are_refused(url):
    with pytest.raises(WorkloadError, match=r'url: .*allowed: an address "https'):
        Download(url, checksum(b""))


@pytest.mark.parametrize("value", ["", "sha256:", "sha256:12", "crc32:12345678", "0" * 64, "md5:" + "g" * 32, None, 5])
def test_other_checksums_are_refused(value):
    with pytest.raises(WorkloadError, match="checksum"):
        Download("https://host/x", value)


def test_without_pooch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(WorkloadError, match="pip install 'wattune\\[data\\]', or give a path"):
        local(Download("https://host/x", checksum(b"")))


def test_a_source_reads_what_it_downloads(served, tmp_path):
    content = tar(tmp_path / "x", cifar10_files()).read_bytes()
    data = Cifar(Download(served("/cifar-10-binary.tar.gz", content), checksum(content, "md5")))()
    assert (len(data.train[0]), len(data.test[0])) == (100, 20)
