"""One client connection as a synchronous object: `on_readable`, `on_writable`, `on_slot_done`. Never waits.

    open ──finish / end of stream──> finishing ──all sent──> closed         close() from anywhere: closed

Responses leave in the order of the requests. The responses of one run of frames leave in one send. It reads only while
what it holds is within its limits, and watches for writability only after the socket was full.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.errors import PeerError, StorageFailure
from kbroker.protocol.framing import FrameReader
from kbroker.server.deadlines import Deadline, Deadlines
from kbroker.server.network import Network
from kbroker.server.request_slot import RequestSlot, ResponsePart
from kbroker.server.sendfile import SendableSlice, is_in_page_cache
from kbroker.server.transport import BYTES, Sendable, Transport

if TYPE_CHECKING:
    from kbroker.server.repeated_requests import RepeatedRequests

__all__ = ["FRAMES_PER_TURN", "SEND_PER_TURN", "Connection", "Watcher"]

FRAMES_PER_TURN = 64
SEND_PER_TURN = 1024 * 1024
# Parts are joined up to here; beyond, copying costs more than a call to the kernel.
JOIN_SIZE = 64 * 1024
LAST_SIZE = 512  # what may still come behind that: the end of a response is not worth a call of its own
# A slice up to here is read and sent in one piece with the bytes before it: 0.6 of sendfile's CPU at 200 KB, the same
# at 16 KB, and a fetch of many partitions needs one call instead of two for each.
COPY_SIZE = 256 * 1024

_MOST_SHAPES = 32  # that its requests may take by turns and still be learnt
_SILENCE_STEP_SECONDS = 10.0

_ids = itertools.count(1)


class Watcher(Protocol):
    """Who calls a connection: the task of its listener."""

    def watch(self, connection: Connection, *, reading: bool, writing: bool) -> None: ...

    def call_again(self, connection: Connection) -> None:
        """`on_turn` soon, after others had theirs."""
        ...

    def forget(self, connection: Connection) -> None:
        """Before its socket is closed."""
        ...

    def read_ahead(self, file_slice: SendableSlice, position: int, size: int, done: Callable[[], None]) -> None:
        """Pull a range of the file into memory in a thread, then call `done` on the loop, whatever happened."""
        ...


class Connection:
    __slots__ = (
        "_charged",
        "_drops_parked",
        "_end_of_silence",
        "_handle",
        "_is_blocked",
        "_is_finishing",
        "_is_halted",
        "_is_handled",
        "_is_muted",
        "_is_reading",
        "_is_reading_ahead",
        "_is_sound",
        "_is_waiting_for_memory",
        "_is_woken",
        "_is_writing",
        "_network",
        "_out",
        "_recv_into",
        "_send",
        "_send_more",
        "_send_slice",
        "_silent_until",
        "_slice_sent",
        "_slots",
        "_transport",
        "_unsent_bytes",
        "_warm_until",
        "_watcher",
        "id",
        "is_closed",
        "last_active",
        "listener_name",
        "peer_host",
        "peer_port",
        "reader",
        "repeated",
        "session",
        "shape",
        "shapes_left",
    )

    def __init__(
        self,
        network: Network,
        watcher: Watcher,
        transport: Transport,
        *,
        listener_name: str = "PLAINTEXT",
        peer_host: str = "",
        peer_port: int = 0,
    ) -> None:
        self.id = next(_ids)
        self.listener_name = listener_name
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.session: Any = None  # dispatch's own: who this is, what it speaks
        self.shape: Struct | None = None  # of its last request, if the next may be like it:
        self.repeated: RepeatedRequests | None = None  # then these may know it
        self.shapes_left = _MOST_SHAPES
        self.is_closed = False
        self.last_active = network.now
        limits = network.limits
        self.reader = FrameReader(network.budget, max_frame_size=limits.max_request_size, poison=limits.poison_buffers)
        self._network = network
        self._watcher = watcher
        self._transport = transport
        self._recv_into = transport.recv_into
        self._send = transport.send
        self._send_more = transport.send_more
        self._send_slice = transport.send_slice
        self._handle = network.handler.handle
        self._slots: deque[RequestSlot] = deque()
        self._out: deque[ResponsePart] = deque()  # completed, in order, not sent yet
        self._unsent_bytes = 0  # in memory: of completed slots, wherever they stand
        self._charged = 0  # what of it the budget knows
        self._slice_sent = 0  # of the slice at the head of _out
        self._warm_until = 0  # that much of it has been read ahead
        self._is_reading = True
        self._is_writing = False
        self._is_woken = False
        self._is_handled = False  # frames of its buffer are in a run that is not over
        self._is_sound = True
        self._is_blocked = False  # the socket is full, or this turn has sent enough
        self._is_finishing = False
        self._drops_parked = False
        self._is_waiting_for_memory = False
        self._is_reading_ahead = False
        self._is_muted = False
        self._is_halted = False  # closed or muted: no further frame is to be handled
        self._end_of_silence: Deadline | None = None
        self._silent_until = 0.0
        network.connections.add(self)

    def __repr__(self) -> str:
        return f"<Connection {self.id} of {self.peer}>"

    @property
    def peer(self) -> str:
        return f"[{self.peer_host}]:{self.peer_port}" if ":" in self.peer_host else f"{self.peer_host}:{self.peer_port}"

    @property
    def is_reading(self) -> bool:
        """False while its limits, the budget or its end forbid to read more."""
        return self._is_reading

    def fileno(self) -> int:
        return self._transport.fileno()

    # What the watcher calls

    def on_readable(self) -> None:
        if self.is_closed or not self._is_reading or self._is_handled:
            return
        reader = self.reader
        if not reader.is_unfinished:
            view = reader.free_view()
            if view is None:
                self._wait_for_memory()
                return
            try:
                count = self._recv_into(view)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            if count == 0:
                # A parked fetch of a client that is gone must not stay; one that has only stopped writing loses it too.
                self.finish(drop_parked=True)
                return
            reader.received(count)
            self.last_active = self._network.now
        self._handle_frames()

    def on_turn(self) -> None:
        """Frames were left over by an earlier turn."""
        if self._is_reading and self.reader.is_unfinished and not self.is_closed and not self._is_handled:
            self._handle_frames()

    def on_writable(self) -> None:
        if not self.is_closed:
            self._send_out()
            self._settle()

    def on_hangup(self) -> None:
        """Both directions are gone, or the peer has reset."""
        if self._is_reading:
            self.on_readable()
        else:
            self.close()

    # What the owners of slots call

    def on_slot_done(self, slot: RequestSlot) -> None:
        parts = slot.parts
        assert parts is not None
        for part in parts:
            if isinstance(part, BYTES):
                self._unsent_bytes += len(part)
        if self._is_woken:
            return
        if self._slots[0] is not slot:
            self._settle()
        elif self._network.is_joining:
            self._is_woken = True
            self._network.woken.append(self)
        else:
            self.send_completed()

    def send_completed(self) -> None:
        """Send the responses at the head that are complete."""
        self._is_woken = False
        if self.is_closed:
            return
        slots = self._slots
        out = self._out
        was_empty = not out
        while slots:
            parts = slots[0].parts
            if parts is None:
                break
            slots.popleft()
            out.extend(parts)
        if was_empty and out:
            self._send_out()
        if slots or out or self._charged or not self._is_reading or self.reader.is_unfinished:
            self._settle()

    # What the budget calls

    def on_memory_granted(self, size: int) -> None:
        self._is_waiting_for_memory = False
        self.reader.grant(size)
        self._settle()

    # What quotas call

    def mute(self, seconds: float, deadlines: Deadlines) -> None:
        """Reads nothing for that long, or longer if it was told so before; what is owed to the peer still leaves."""
        if self.is_closed:
            return
        until = deadlines.now() + seconds
        self._is_muted = self._is_halted = True
        if self._end_of_silence is not None:
            until = max(until, self._silent_until)
            self._end_of_silence.cancel()
        self._silent_until = until
        self._wait_silently(deadlines)
        self._settle()

    def _wait_silently(self, deadlines: Deadlines) -> None:
        """In steps: who closes in the middle of a long wait leaves only a step of it behind."""
        left = self._silent_until - deadlines.now()
        if left > 0:
            step = min(left, _SILENCE_STEP_SECONDS)
            self._end_of_silence = deadlines.add(step, partial(self._wait_silently, deadlines))
        else:
            self._end_of_silence = None
            self._is_muted = self._is_halted = False
            self._settle()

    # Ending

    def finish(self, *, drop_parked: bool = False) -> None:
        """Read no more, and close when all answers are sent; with `drop_parked` those that are complete by now."""
        self._is_finishing = True
        self._drops_parked = self._drops_parked or drop_parked
        self._settle()

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = self._is_halted = True
        self._is_reading = self._is_writing = False
        if self._end_of_silence is not None:
            self._end_of_silence.cancel()
        network = self._network
        network.connections.discard(self)
        self._watcher.forget(self)
        self._transport.close()
        out, slots = self._out, self._slots
        if self._is_reading_ahead:
            out.popleft()  # a thread still reads from this file; it is released when that has ended
        for part in out:
            if not isinstance(part, BYTES):
                part.release()
        out.clear()
        network.budget.leave(self)
        network.budget.charge(-self._charged)
        self.reader.close()
        while slots:
            slots.popleft().cancel()

    def is_idle(self) -> bool:
        """Nothing is owed to the peer but bytes that it does not take."""
        return not self._slots or bool(self._out)

    def stuck_bytes(self) -> int:
        """What is held in memory for a frame that is not complete, or for responses that do not leave."""
        return (self.reader.reserved if self.reader.is_mid_frame else 0) + self._unsent_bytes

    # Inside

    def _handle_frames(self) -> None:
        """One turn: some of the frames that have arrived."""
        network = self._network
        reader = self.reader
        try:
            frames = reader.take_frames(FRAMES_PER_TURN)
        except PeerError as error:
            network.report_broken_peer(self, str(error))
            self.close()
            return
        if not frames:
            return
        network.is_joining = self._is_woken = self._is_handled = True
        try:
            self._is_sound = self._handle_each(frames)
        except BaseException:
            # What its earlier frames began must be over before its buffer goes.
            self._is_handled = False
            network.end_run()
            raise
        network.add_handled(self)

    def end_turn(self) -> None:
        """The run that its frames were part of is over: its buffer is free, and what is complete may leave."""
        self._is_handled = self._is_woken = False
        if self.is_closed:
            return
        self.reader.finish_run()
        self.send_completed()
        if not self._is_sound:
            self.close()

    def _handle_each(self, frames: list[memoryview]) -> bool:
        """False if this connection must end. What its limits forbid to handle now is given back to the reader."""
        network = self._network
        slots = self._slots
        handle = self._handle
        max_in_flight = network.limits.max_in_flight
        max_unsent_bytes = network.limits.max_unsent_bytes
        handled = 0
        try:
            for frame in frames:
                if len(slots) >= max_in_flight or self._unsent_bytes > max_unsent_bytes:
                    self.reader.give_back(frames[handled:])
                    return True
                slot = RequestSlot(self)
                slots.append(slot)
                handle(self, frame, slot)
                handled += 1
                if self._is_halted:
                    if self.is_closed:
                        return False
                    self.reader.give_back(frames[handled:])
                    return True
        except PeerError as error:
            network.report_broken_peer(self, str(error))
            return False
        return True

    def _send_out(self) -> None:
        """Send until nothing is left, the socket is full, or others should have their turn."""
        out = self._out
        room = SEND_PER_TURN
        self._is_blocked = False
        try:
            while out and not self._is_blocked:
                part = out[0]
                if isinstance(part, BYTES):
                    sent = self._send_bytes()
                else:
                    sent = self._send_from(part, room)
                    if sent < 0:
                        return
                room -= sent
                if room <= 0 and out:
                    self._is_blocked = True
        except (OSError, StorageFailure) as error:
            if not isinstance(error, (ConnectionError, TimeoutError)):
                self._network.report_broken_peer(self, str(error))
            self.close()
            return
        self.last_active = self._network.now

    def _send_bytes(self) -> int:
        out = self._out
        data = self._pop_joined()
        try:
            sent = (self._send_more if out else self._send)(data)
        except BlockingIOError:
            sent = 0
        self._unsent_bytes -= sent
        if sent < len(data):
            out.appendleft(memoryview(data)[sent:])
            self._is_blocked = True
        return sent

    def _pop_joined(self) -> Sendable:
        """The bytes at the head, and the small slices between them, as far as they are worth copying together."""
        out = self._out
        first = out.popleft()
        assert isinstance(first, BYTES)
        if not out:
            return first
        pieces: list[Sendable] = [first]
        size = len(first)
        while out:
            part = out[0]
            if isinstance(part, BYTES):
                if size >= JOIN_SIZE and len(part) > LAST_SIZE:
                    break
                pieces.append(part)
                size += len(part)
            elif size >= JOIN_SIZE:
                break
            else:
                data = _read_small(part)
                if data is None:
                    break
                pieces.append(data)
                size += len(data)
                self._unsent_bytes += len(data)
                part.release()
            out.popleft()
        return b"".join(pieces) if len(pieces) > 1 else first

    def _send_from(self, file_slice: SendableSlice, room: int) -> int:
        """Send from the slice at the head; -1 when that is not possible now."""
        if self._is_reading_ahead:
            return -1
        done = self._slice_sent
        left = file_slice.size - done
        if not file_slice.is_valid():
            self._drop("a response was truncated away while it was being sent")
            return -1
        count = min(left, room)
        if not file_slice.is_hot_tail:
            if done >= self._warm_until and not self._is_warm(file_slice, done, left):
                return -1
            count = min(count, self._warm_until - done)
        try:
            sent = self._send_slice(file_slice, done, count)
        except BlockingIOError:
            self._is_blocked = True
            return -1
        if sent == 0 < left:
            self._drop("a file ended before the response that was promised from it")
            return -1
        if sent == left:
            self._out.popleft()
            self._slice_sent = self._warm_until = 0
            file_slice.release()
        else:
            self._slice_sent = done + sent
            self._is_blocked = True
        return sent

    def _is_warm(self, file_slice: SendableSlice, done: int, left: int) -> bool:
        """Whether the next stretch can be sent without waiting for a disk; if not, it is on its way into memory."""
        size = min(left, SEND_PER_TURN)
        position = file_slice.position + done
        if is_in_page_cache(file_slice.fileno(), position, size):
            self._warm_until = done + size
            return True

        def read_ahead_done() -> None:
            self._is_reading_ahead = False
            if self.is_closed:
                file_slice.release()
            else:
                # Not probed again: if memory is so short that it is gone already, waiting is the lesser evil.
                self._warm_until = done + size
                self._send_out()
                self._settle()

        self._is_reading_ahead = True
        self._watcher.read_ahead(file_slice, position, size, read_ahead_done)
        return False

    def _drop(self, reason: str) -> None:
        self._network.report_broken_peer(self, reason)
        self.close()

    def _wait_for_memory(self) -> None:
        network = self._network
        self._is_waiting_for_memory = True
        network.budget.wait(self, self.reader.missing_room, network.now)
        self._settle()

    def _settle(self) -> None:
        """Bring what is watched, charged and due in line with what is held."""
        if self.is_closed:
            return
        network = self._network
        unsent = self._unsent_bytes
        if unsent != self._charged:
            growth = unsent - self._charged
            self._charged = unsent
            network.budget.charge(growth)
        if self._is_finishing and not self._out and (self._drops_parked or not self._slots):
            self.close()
            return
        limits = network.limits
        reading = (
            not self._is_finishing
            and not self._is_waiting_for_memory
            and not self._is_muted
            and len(self._slots) + len(self._out) < limits.max_in_flight
            and unsent <= limits.max_unsent_bytes
            and not (unsent and network.budget.is_exhausted())
        )
        if reading != self._is_reading or self._is_blocked != self._is_writing:
            self._is_reading = reading
            self._is_writing = self._is_blocked
            self._watcher.watch(self, reading=reading, writing=self._is_writing)
        if reading and self.reader.is_unfinished:
            self._watcher.call_again(self)


def _read_small(file_slice: SendableSlice) -> bytes | None:
    """The content of a slice that is sooner copied than sent by the kernel; None where it must go the long way."""
    size = file_slice.size
    if size > COPY_SIZE or not file_slice.is_valid():
        return None
    if not file_slice.is_hot_tail and not is_in_page_cache(file_slice.fileno(), file_slice.position, size):
        return None
    data = file_slice.read()
    return data if len(data) == size else None
