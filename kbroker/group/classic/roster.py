"""The members of a classic group, their common protocols, and the leader. Has no state machine and no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from kbroker.group.records import StoredMember

__all__ = ["Member", "Protocols", "Roster"]

Protocols = tuple[tuple[str, bytes], ...]
"""Protocol names with metadata, in the member's order of preference."""


class Member:
    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        *,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.deadline_ms: int | None = None
        self.is_new = False
        """Whether its first join is unanswered: it does not know its member id yet, and cannot send heartbeats."""

    @classmethod
    def from_stored(cls, stored: StoredMember, protocol: str | None) -> Member:
        return cls(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            session_timeout_ms=stored.session_timeout_ms,
            protocols=((protocol or "", stored.subscription),),
            assignment=stored.assignment,
        )

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Collection[str]) -> str | None:
        return next((name for name, _ in self.protocols if name in candidates), None)

    def stored(self, protocol: str | None) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            self.assignment,
        )


class Roster:
    __slots__ = ("_support", "by_id", "leader_id", "static_ids")

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        """Instance id -> member id."""
        self.leader_id: str | None = None
        self._support: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, member: Member) -> None:
        """Adds a member. The first member becomes the leader."""
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.by_id[member.member_id] = member
        self._support.update({name for name, _ in member.protocols})

    def remove(self, member_id: str) -> None:
        member = self.by_id.pop(member_id)
        self._support.subtract({name for name, _ in member.protocols})
        if member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.by_id), None)

    def replace(self, *, old_id: str, new_id: str) -> Member:
        """Gives a static member a new member id. It stays leader if it was."""
        was_leader = self.leader_id == old_id
        member = self.by_id[old_id]
        self.remove(old_id)
        member.member_id = new_id
        self.add(member)
        if was_leader:
            self.leader_id = new_id
        return member

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._support.subtract({name for name, _ in member.protocols})
        member.protocols = protocols
        self._support.update({name for name, _ in protocols})

    def shares_one_of(self, names: Iterable[str]) -> bool:
        """Whether all members support one of these protocols."""
        count = len(self.by_id)
        return any(self._support[name] == count for name in names)

    def elect_protocol(self) -> str:
        """Returns the protocol that most members prefer, of those that all support. Ties go to the earliest vote."""
        count = len(self.by_id)
        candidates = {name for name, supporters in self._support.items() if supporters == count}
        votes = Counter(vote for member in self.by_id.values() if (vote := member.vote(candidates)) is not None)
        return votes.most_common(1)[0][0]

    def elect_leader(self, joined: Collection[str]) -> bool:
        """Keeps the leader if it has joined, else elects the first member that has. Returns False if none has."""
        if self.leader_id is not None and self.leader_id in joined:
            return True
        found = next((member_id for member_id in self.by_id if member_id in joined), None)
        if found is not None:
            self.leader_id = found
        return found is not None

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)
