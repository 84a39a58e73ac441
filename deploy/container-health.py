"""Exits with 0 if a wattune server on this machine answers at the given port."""

import http.client
import sys


def answers(port: int) -> bool:
    """True if /healthz answers with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if answers(int(sys.argv[1])) else 1)
