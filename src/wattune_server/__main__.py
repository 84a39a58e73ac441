"""The ``wattune-server`` command."""

import sys

from wattune_server.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
