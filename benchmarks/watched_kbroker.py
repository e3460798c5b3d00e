"""`python -m kbroker` with an eye on the garbage collector: each pause goes to the file that comes first, at the end.

The broker itself carries no code for it.
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

    def look(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            pauses.append(time.perf_counter() - began)

    gc.callbacks.append(look)
    atexit.register(lambda: file.write_text(json.dumps(pauses)))


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    main()
