"""`python -m kbroker` is the command `kbroker`."""

from __future__ import annotations

from kbroker.cli.main import main

if __name__ == "__main__":
    main()
