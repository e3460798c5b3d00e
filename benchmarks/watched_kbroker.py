"""Runs `python -m kbroker` and writes the pauses of the garbage collector to the file named by the first argument.

The file is written at exit, as a JSON list of seconds. kbroker itself has no code for this.
"""

from __future__ import annotations

import atexit
import gc
import json
import sys
import time
from pathlib import Path

from kbroker.cli.main import main

__all__: list[str] = []


def watch(file: Path) -> None:
    pauses: list[float] = []
    began = 0.0

    def on_collection(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            pauses.append(time.perf_counter() - began)

    gc.callbacks.append(on_collection)
    atexit.register(lambda: file.write_text(json.dumps(pauses)))


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    main()
