"""How many files and sockets the process may have open: the soft limit is raised as far as the system lets us."""

from __future__ import annotations

__all__ = ["raise_descriptor_limit"]

_WANTED = 1 << 16
_FOR_SOCKETS_SHARE = 4  # one in four descriptors is left to connections


def raise_descriptor_limit() -> int:
    """How many log files may be open at a time."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            pass  # macOS refuses what its kernel does not have
    limit = wanted if soft == resource.RLIM_INFINITY else soft
    return max(limit - limit // _FOR_SOCKETS_SHARE, 64)
