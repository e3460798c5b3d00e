"""Keeps Spark's Python workers from reading the same zip files before each task.

Spark puts pyspark.zip, a jar and the zip of kbroker's sources on the path of its workers, and calls
`importlib.invalidate_caches` before each task. Python then reads the directory of these files anew, once for each
package in them: 0.1 to 0.3 s of CPU time for each task.
"""

from __future__ import annotations

import sys
from zipimport import zipimporter

__all__ = ["forget_zip_files"]


def forget_zip_files() -> None:
    """Empties the cache of importers of zip files. Python makes them again when a module is imported.

    Call it at the end of the work of a worker, after its imports.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]
