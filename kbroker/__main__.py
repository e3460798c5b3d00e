"""Runs the command `kbroker` as `python -m kbroker`."""

from __future__ import annotations

from kbroker.cli.main import main

if __name__ == "__main__":
    main()
