"""What is said over the socket, line by line."""

import socket
import threading

import pytest

from wattune_agent.errors import BadRequest, Busy, FileFailed, Gone
from wattune_agent.protocol import REQUEST_LIMIT, Lines, answer, check_request, failure, read_answer


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    yield ours, Lines(theirs, REQUEST_LIMIT)
    ours.close()
    theirs.close()


FREE = {"memory_clock_mhz": None, "cpu_clock_mhz": None}
"""What may be left out of a pin."""


def request(**fields):
    return {"wattune": 2, "id": 1, **fields}


@pytest.mark.parametrize(
    ("message", "checked"),
    [
        (request(request="read"), (1, "read", {})),
        (request(request="pin", mhz=612), (1, "pin", {"mhz": 612.0, **FREE})),
        (
            request(request="pin", mhz=612, cpu_clock_mhz=1510.4),
            (1, "pin", {"mhz": 612.0, **FREE, "cpu_clock_mhz": 1510.4}),
        ),
        (
            request(request="guard", cap_w=10.5, max_temp_c=None),
            (1, "guard", {"cap_w": 10.5, "max_temp_c": None, "window_s": None}),
        ),
    ],
)
def test_requests(message, checked):
    assert check_request(message) == checked


REFUSED = [
    {},
    {"wattune": 1, "id": 1, "request": "read"},
    {"wattune": 2, "request": "read"},
    {"wattune": 2, "id": True, "request": "read"},
    {"wattune": 2, "id": "7", "request": "read"},
    request(),
    request(request="write", path="/etc/passwd"),
    request(request=["read"]),
    request(request="__init__"),
    request(request="read", path="/etc/passwd"),
    request(request="pin"),
    request(request="pin", mhz=None),
    request(request="pin", mhz="612"),
    request(request="pin", mhz=True),
    request(request="pin", mhz=-1),
    request(request="pin", mhz=0),
    request(request="pin", mhz=10**400),
    request(request="pin", mhz=612, path="/sys"),
]


@pytest.mark.parametrize("message", REFUSED)
def test_everything_else_is_refused(message):
    with pytest.raises((BadRequest, Gone)) as caught:
        check_request(message)
    assert "\n" not in str(caught.value)


def test_lines_come_whole_however_they_arrive(pair):
    ours, lines = pair
    for byte in b'{"a": 1}\n{"b"':
        ours.sendall(bytes([byte]))
    ours.sendall(b": 2}\n\n")
    assert lines.receive(1) == {"a": 1}
    assert lines.receive(1) == {"b": 2}
    with pytest.raises(BadRequest):
        lines.receive(1)


def test_what_was_begun_stays_for_the_next_call(pair):
    ours, lines = pair
    ours.sendall(b'{"a"')
    with pytest.raises(socket.timeout):
        lines.receive(0.02)
    ours.sendall(b": 1}\n")
    assert lines.receive(1) == {"a": 1}


def test_the_end_in_the_middle_of_a_line_is_the_end(pair):
    ours, lines = pair
    ours.sendall(b'{"a"')
    ours.close()
    assert lines.receive(1) is None


GARBAGE = [
    b"GET / HTTP/1.1\r\n",
    b"\xff\xfe\x00\n",
    b"[1]\n",
    b"null\n",
    b'{"mhz": NaN}\n',
    b'{"mhz": -Infinity}\n',
    b"[" * 4000 + b"\n",
    b'{"a": 1} {"b": 2}\n',
    b'{"a": "' + b"x" * REQUEST_LIMIT + b'"}\n',
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_refused_with_one_line(pair, garbage):
    ours, lines = pair
    ours.sendall(garbage)
    with pytest.raises(BadRequest) as caught:
        lines.receive(1)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_line_without_end_is_refused_before_it_fills_the_memory(pair):
    ours, lines = pair

    def pour():
        try:
            while True:
                ours.sendall(b"x" * 10000)
        except OSError:
            pass

    pouring = threading.Thread(target=pour)
    pouring.start()
    with pytest.raises(BadRequest, match="more than"):
        lines.receive(5)
    lines._socket.close()
    pouring.join()


def test_answers_and_errors_come_back_as_they_were(pair):
    ours, lines = pair
    theirs = Lines(ours, REQUEST_LIMIT)
    theirs.send(answer(3, {"mhz": 76.8}, []))
    assert read_answer(lines.receive(1)) == {"mhz": 76.8}
    theirs.send(failure(4, Busy("process 7 holds it"), []))
    with pytest.raises(Busy, match="process 7"):
        read_answer(lines.receive(1))
    with pytest.raises(Gone, match="version"):
        read_answer({"hello": "world"})
    with pytest.raises(Gone, match=r"speaks version 1 .* its client version 2; .* restart the agent"):
        read_answer({"wattune": 1, "id": 3, "answer": {}})
    with pytest.raises(Gone, match=r"its client version 2; .* restart the agent"):
        read_answer({"wattune": 1, "id": 3, "error": {"code": "gone", "message": "this agent speaks version 1"}})


def test_a_number_that_json_has_no_word_for_is_not_sent(pair):
    _, lines = pair
    with pytest.raises(FileFailed):
        lines.send({"power_w": float("nan")})
