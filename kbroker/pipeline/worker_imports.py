"""Keeps Spark's Python workers from repeating work for each task that its imports cause.

Spark puts pyspark.zip, a jar and the zip of kbroker's sources on the path of its workers, and calls
`importlib.invalidate_caches` before each task. Python then reads the directory of these files anew, once for each
package in them: 0.1 to 0.3 s of CPU time for each task. After each task Spark calls `gc.collect`, which walks all
objects of the imported modules.
"""

from __future__ import annotations

import gc
import sys
from zipimport import zipimporter

__all__ = ["settle_worker"]


def settle_worker() -> None:
    """Empties the cache of importers of zip files, and hides the modules from the garbage collector.

    Call it at the end of the work of a task, after its imports. Python makes the importers again when a module is
    imported. Only the first call in a process freezes: later ones would keep the garbage of each task for ever.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
