"""Exits with 0 if a wattune server on this machine answers at the given port, with or without TLS."""

import http.client
import ssl
import sys

# The request stays on this machine, and the certificate is for the name that others use.
UNCHECKED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
UNCHECKED.check_hostname = False
UNCHECKED.verify_mode = ssl.CERT_NONE


def answers(port: int, *, tls: bool) -> bool:
    """True if /healthz answers with 200."""
    if tls:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=UNCHECKED)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    port = int(sys.argv[1])
    sys.exit(0 if answers(port, tls=False) or answers(port, tls=True) else 1)
