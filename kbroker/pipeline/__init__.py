"""Data pipelines on Spark: topics to tables and back, topic to topic, cluster to cluster. The only home of pyspark.

The names below are imported on first use, so that files of pipelines can be read and checked without pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["archive", "audit", "mirror", "read_segments", "replay", "transform"]

if TYPE_CHECKING:
    from kbroker.pipeline.archiving import archive
    from kbroker.pipeline.auditing import audit
    from kbroker.pipeline.mirroring import mirror
    from kbroker.pipeline.replaying import replay
    from kbroker.pipeline.segments import read_segments
    from kbroker.pipeline.transforming import transform
else:
    # No module has the name of its function: an import of the module would hide the function.
    _HOMES = {
        "archive": "archiving",
        "audit": "auditing",
        "mirror": "mirroring",
        "read_segments": "segments",
        "replay": "replaying",
        "transform": "transforming",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        import_module(f"{__name__}.session").require_pyspark()
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
