"""Raises the limit of open files and sockets of the process."""

from __future__ import annotations

__all__ = ["raise_descriptor_limit"]

_WANTED = 1 << 16
_FOR_SOCKETS_SHARE = 4  # one in four descriptors is reserved for connections


def raise_descriptor_limit() -> int:
    """Raises the soft limit as far as allowed. Returns how many log files may be open at the same time."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            pass  # macOS: the hard limit may be above the kernel's limit
    limit = wanted if soft == resource.RLIM_INFINITY else soft
    return max(limit - limit // _FOR_SOCKETS_SHARE, 64)
