"""Client connection as a synchronous object: `on_readable`, `on_writable`, `on_slot_done`, `end_run`. Never waits.

Responses leave in the order of the requests. The responses of one run leave in one send. Four values are its state:

Reading
    READING    its socket is watched; frames are handled as they arrive
    PAUSED     it has too many requests or unsent bytes, the memory budget is used up, a quota has muted it, or it is
               held: a thread works on its last request
    NO_MEMORY  the frame that has begun needs memory; the budget will call `on_memory_granted`
    STOPPED    FINISHING or later: nothing is read any more
Writing, in its SendQueue
    FREE, BLOCKED (the socket is watched until it is writable), READING_AHEAD
Ending
    OPEN ──finish()──> FINISHING ──all requests answered, all sent──> CLOSED         close() from any state: CLOSED
      └───finish(drop_parked=True) or end of stream──> DROPPING ──complete responses sent──> CLOSED
Run
    OUTSIDE ──a response completed while a run is open──> WOKEN ──┐
      └──its frames are handled──> HANDLED ──PeerError──> BROKEN ─┴──end_run()──> OUTSIDE, after BROKEN: CLOSED
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from kbroker.config.endpoints import format_address
from kbroker.errors import PeerError, StorageFailure
from kbroker.protocol.framing import BASE_BUFFER_SIZE, FrameReader
from kbroker.server.wire.deadlines import Deadline, Deadlines
from kbroker.server.wire.hangup import has_hung_up
from kbroker.server.wire.network import Network
from kbroker.server.wire.request_slot import RequestSlot
from kbroker.server.wire.send_queue import BLOCKED, READING_AHEAD, SendQueue
from kbroker.server.wire.sendfile import SendableSlice
from kbroker.server.wire.transport import BYTES, SecureTransport, Transport

__all__ = ["FRAMES_PER_TURN", "TURN_SECONDS", "Connection", "HandleFrame", "Watcher"]

FRAMES_PER_TURN: Final = 64
# A turn with more frames ends after so long: requests of one client may be slow, and other clients wait for their turn.
TURN_SECONDS: Final = 0.002
_FRAMES_PER_CLOCK_READ: Final = 4
_BYTES_PER_CLOCK_READ: Final = 8 * 1024  # a longer request may be slow by itself
_MUTE_STEP_SECONDS: Final = 10.0
# Progress is this part of the reserved memory: a client cannot hold 100 MB with a byte every second.
_STEPS_OF_PROGRESS: Final = 8

# Integers, not enums: compiled code compares them without a lookup.
READING: Final = 0
PAUSED: Final = 1
NO_MEMORY: Final = 2
STOPPED: Final = 3

OPEN: Final = 0
FINISHING: Final = 1
DROPPING: Final = 2
CLOSED: Final = 3

OUTSIDE: Final = 0
WOKEN: Final = 1
HANDLED: Final = 2
BROKEN: Final = 3

_FOR_READING: Final = 1
_FOR_WRITING: Final = 2

_ids = itertools.count(1)

HandleFrame = Callable[["Connection", memoryview, RequestSlot], None]
"""Handles one frame of a connection, like `FrameHandler.handle`."""


class Watcher(Protocol):
    """Task of a listener that calls its connections."""

    def watch(self, connection: Connection, *, reading: bool, writing: bool) -> None: ...

    def call_again(self, connection: Connection) -> None:
        """Calls `on_turn` soon, after other connections had their turn."""
        ...

    def forget(self, connection: Connection) -> None:
        """Stops watching. Called before the socket is closed."""
        ...

    def read_ahead(self, file_slice: SendableSlice, position: int, size: int, done: Callable[[], None]) -> None:
        """Reads a range of the file into memory in a thread, then calls `done` on the loop, also after an error."""
        ...


class Connection:
    __slots__ = (
        "_charged",
        "_ending",
        "_handle",
        "_is_abandoned",
        "_marked_at",
        "_mute_deadline",
        "_muted_until",
        "_network",
        "_reading",
        "_recv_into",
        "_run",
        "_run_state",
        "_secure",
        "_send_queue",
        "_slots",
        "_transport",
        "_watched",
        "_watcher",
        "id",
        "last_active",
        "listener_name",
        "peer_host",
        "peer_port",
        "reader",
        "session",
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
        secure: SecureTransport | None = None,
    ) -> None:
        """`secure`: the transport again, if it is one that buffers; None for plaintext."""
        self.id = next(_ids)
        self.listener_name = listener_name
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.session = network.handler.open_session()
        self.last_active = network.now
        limits = network.limits
        self.reader = FrameReader(network.budget, max_frame_size=limits.max_request_size, poison=limits.poison_buffers)
        self._network = network
        self._watcher = watcher
        self._transport = transport
        self._secure = secure
        self._recv_into = transport.recv_into
        self._handle: HandleFrame = network.handler.handle
        self._run = network.run
        self._slots: deque[RequestSlot] = deque()
        self._send_queue = SendQueue(transport)
        self._charged = 0  # unsent bytes that the budget knows of
        self._reading = READING
        self._watched = _FOR_READING
        self._ending = OPEN
        self._is_abandoned = False
        self._run_state = OUTSIDE
        self._mute_deadline: Deadline | None = None  # None: not muted
        self._muted_until = 0.0
        self._marked_at = 0.0  # when the progress of `reader` was marked
        network.connections.add(self)

    def __repr__(self) -> str:
        return f"<Connection {self.id} of {self.peer}>"

    @property
    def peer(self) -> str:
        return format_address(self.peer_host, self.peer_port)

    @property
    def is_closed(self) -> bool:
        return self._ending == CLOSED

    @property
    def is_reading(self) -> bool:
        return self._reading == READING

    def fileno(self) -> int:
        return self._transport.fileno()

    def has_peer_left(self) -> bool:
        """Whether the peer has closed its side. It asks the kernel, also while the connection does not read."""
        return self._ending == CLOSED or has_hung_up(self._transport.fileno())

    # Called by the watcher, within a run

    def on_readable(self) -> None:
        # A connection has its frames in at most one turn of a run: the reader cannot take more before `end_run`.
        if self._reading != READING or self._run_state >= HANDLED:
            return
        reader = self.reader
        if not reader.is_unfinished:
            view = reader.free_view()
            if view is None:
                self._queue_for_memory()
                return
            try:
                count = self._recv_into(view)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            except PeerError as error:
                self.drop(str(error))
                return
            if count == 0:
                # The parked fetch of a client that has disconnected must not stay. A client that has only shut down
                # its writing half loses its parked requests too.
                self.finish(drop_parked=True)
                return
            reader.received(count)
            self.last_active = self._network.now
        self._handle_frames()
        if self._secure is not None and self._secure.has_pending and self._ending == OPEN:
            self._watcher.call_again(self)

    def on_turn(self) -> None:
        """Handles frames, or bytes of a secure transport, that an earlier turn has left over."""
        if self._reading != READING or self._run_state >= HANDLED:
            return
        if self.reader.is_unfinished:
            self._handle_frames()
        elif self._secure is not None and self._secure.has_pending:
            self.on_readable()

    def on_writable(self) -> None:
        if self._ending != CLOSED:
            self._send()
            self._settle()

    def on_hangup(self) -> None:
        """Reads to the end of the stream, or closes: the peer has reset, or has shut down both directions."""
        if self._reading == READING:
            self.on_readable()
        else:
            self.close()

    # Called by the run

    def end_run(self) -> None:
        """Releases the receive buffer and sends the complete responses: all writes of the run are done."""
        state, self._run_state = self._run_state, OUTSIDE
        if self._ending == CLOSED:
            return
        try:
            if state >= HANDLED:
                self.reader.finish_run()
            self._send_completed()
            if state == BROKEN:
                self.close()
        except Exception as error:
            self._network.close_after_bug(self, error)

    # Called by request slots

    def on_slot_done(self, slot: RequestSlot) -> None:
        parts = slot.parts
        assert parts is not None
        queue = self._send_queue
        for part in parts:
            if isinstance(part, BYTES):
                queue.unsent_bytes += len(part)
        if self._run_state != OUTSIDE:
            return
        if self._slots[0] is not slot:
            self._settle()
        elif self._run.add_connection(self):
            self._run_state = WOKEN
        else:
            self._send_completed()

    # Called by the memory budget

    def on_memory_granted(self, size: int, kind: int) -> None:
        self.reader.grant(size, kind)
        if self._reading == NO_MEMORY:
            self._reading = PAUSED
        self._settle()

    # Called by logins

    def handle_with(self, handle: HandleFrame) -> None:
        """Passes the frames of later turns to `handle` instead. A frame of this turn still goes to the old one."""
        self._handle = handle

    # Called by handlers

    def hold(self) -> None:
        """Handles no other request, and keeps the frames of this run valid, until `release`.

        For a request that a thread works on: as in Kafka, the requests of a connection are handled one after another.
        """
        self.reader.hold()
        self._reading = PAUSED

    def release(self) -> None:
        self.reader.release()
        self._settle()

    def drop(self, reason: str) -> None:
        """Closes the connection because of its peer, with a log line."""
        self._network.reports.closing(self, reason)
        self.close()

    def close_after_bug(self, error: Exception) -> None:
        """Closes the connection because of a bug of the broker, with a traceback in the log."""
        self._network.close_after_bug(self, error)

    # Called by quotas

    def mute(self, seconds: float, deadlines: Deadlines) -> None:
        """Reads nothing for `seconds`, or until an earlier mute ends if that is later. Responses are still sent."""
        if self._ending == CLOSED:
            return
        until = deadlines.now() + seconds
        if self._mute_deadline is not None:
            until = max(until, self._muted_until)
            self._mute_deadline.cancel()
        self._muted_until = until
        self._prolong_mute(deadlines)

    def _prolong_mute(self, deadlines: Deadlines) -> None:
        """Mutes in steps, so that a connection that closes during a long mute leaves only one step on the heap."""
        left = self._muted_until - deadlines.now()
        if left > 0:
            step = min(left, _MUTE_STEP_SECONDS)
            self._mute_deadline = deadlines.add(step, partial(self._prolong_mute, deadlines))
        else:
            self._mute_deadline = None
        self._settle()

    # Ending

    def finish(self, *, drop_parked: bool = False) -> None:
        """Stops reading; closes once all responses are sent. `drop_parked`: sends only complete responses."""
        self._ending = max(self._ending, DROPPING if drop_parked or self._is_abandoned else FINISHING)
        self._settle()

    def abandon(self) -> None:
        """Notes that a request gets no response, because the peer has left. The end of the stream will close it."""
        self._is_abandoned = True
        if self._ending == FINISHING:  # then nothing is read, and no response is waited for
            self.finish(drop_parked=True)

    def close(self) -> None:
        if self._ending == CLOSED:
            return
        self._ending = CLOSED
        self._reading = STOPPED
        if self._mute_deadline is not None:
            self._mute_deadline.cancel()
        network = self._network
        network.connections.discard(self)
        self._handle = network.handler.handle  # a login refers to its connection: without it, both are freed at once
        network.logins.finish(self)
        self._watcher.forget(self)
        self._transport.close()
        self._send_queue.close()
        network.budget.leave(self)
        network.budget.charge(-self._charged)
        self.reader.close()
        slots = self._slots
        while slots:
            slots.popleft().cancel()

    def is_idle(self) -> bool:
        """Whether the peer has no request open, or does not read the responses that are being sent."""
        return not self._slots or bool(self._send_queue.parts)

    def stuck_bytes(self) -> int:
        """Returns the bytes held for an incomplete frame, unless it waits for memory, and for unsent responses."""
        is_held_up = self.reader.is_mid_frame and self._reading != NO_MEMORY and not self.reader.is_held
        return (self.reader.reserved if is_held_up else 0) + self._send_queue.unsent_bytes

    def is_stalled(self, now: float, max_seconds: float) -> bool:
        """Whether the peer holds memory and has hardly sent or read anything for `max_seconds`.

        Each sweep calls it while other connections wait for memory: the first call only marks the progress.
        """
        reader = self.reader
        if self._send_queue.unsent_bytes and now - self.last_active >= max_seconds:
            return True
        if self._reading != READING or not reader.is_mid_frame or not reader.reserved:
            return False
        if not reader.is_marked or reader.progress * _STEPS_OF_PROGRESS >= reader.reserved:
            reader.mark()
            self._marked_at = now
            return False
        return now - self._marked_at >= max_seconds

    # Inside

    def _handle_frames(self) -> None:
        """Handles up to FRAMES_PER_TURN of the frames that have arrived, for about TURN_SECONDS."""
        try:
            frames = self.reader.take_frames(FRAMES_PER_TURN)
        except PeerError as error:
            self.drop(str(error))
            return
        if not frames:
            return
        if self._run_state == OUTSIDE and not self._run.add_connection(self):
            raise RuntimeError("frames can be handled only in a run")
        # Before the first frame: a bug in a handler must not leave the connection without its `end_run`.
        self._run_state = HANDLED
        try:
            self._handle_each(frames)
        except PeerError as error:
            self._network.reports.closing(self, str(error))
            self._run_state = BROKEN

    def _handle_each(self, frames: list[memoryview]) -> None:
        """Handles frames in order. Gives back those that limits, a quota or the time forbid to handle now."""
        slots = self._slots
        handle = self._handle
        queue = self._send_queue
        limits = self._network.limits
        max_in_flight = limits.max_in_flight
        max_unsent_bytes = limits.max_unsent_bytes
        clock = self._network.clock
        is_timed = len(frames) > _FRAMES_PER_CLOCK_READ or self.reader.capacity > BASE_BUFFER_SIZE
        end = clock.monotonic() + TURN_SECONDS if is_timed else 0.0
        unread = 0  # bytes that were handled since the last look at the clock
        for number, frame in enumerate(frames):
            # PAUSED: a frame of this turn has muted or held the connection.
            if len(slots) >= max_in_flight or queue.unsent_bytes > max_unsent_bytes or self._reading == PAUSED:
                self.reader.give_back(frames[number:])
                return
            if is_timed and number and (number % _FRAMES_PER_CLOCK_READ == 0 or unread >= _BYTES_PER_CLOCK_READ):
                if clock.monotonic() >= end:
                    self.reader.give_back(frames[number:])
                    return
                unread = 0
            unread += len(frame)
            slot = RequestSlot(self)
            slots.append(slot)
            handle(self, frame, slot)
            if self._ending == CLOSED:
                return

    def _send_completed(self) -> None:
        """Sends the responses that are complete, up to the first request without a response."""
        if self._ending == CLOSED:
            return
        slots = self._slots
        queue = self._send_queue
        out = queue.parts
        was_empty = not out
        while slots:
            parts = slots[0].parts
            if parts is None:
                break
            slots.popleft()
            out.extend(parts)
        if was_empty and out:
            self._send()
        if (
            slots
            or out
            or self._charged
            or self._reading != READING
            or self.reader.is_unfinished
            or self._secure is not None
        ):
            self._settle()

    def _send(self) -> None:
        queue = self._send_queue
        is_reading_ahead = queue.state == READING_AHEAD
        try:
            queue.send()
        except (ConnectionError, TimeoutError):
            self.close()
            return
        except (OSError, StorageFailure) as error:
            self.drop(str(error))
            return
        if queue.state == READING_AHEAD:
            if not is_reading_ahead:
                self._read_ahead()
            return
        self.last_active = self._network.now

    def _read_ahead(self) -> None:
        queue = self._send_queue
        file_slice, position, size = queue.cold_range()

        def done() -> None:
            if self._ending == CLOSED:
                file_slice.release()
            else:
                queue.on_read_ahead()
                self._send()
                self._settle()

        self._watcher.read_ahead(file_slice, position, size, done)

    def _queue_for_memory(self) -> None:
        network = self._network
        self._reading = NO_MEMORY
        size, kind = self.reader.request_room()
        network.budget.enqueue(self, size, kind, network.now)  # may grant it at once
        self._settle()

    def _settle(self) -> None:
        """Updates the charged memory, the watched events and the ending to match the requests and bytes held."""
        if self._ending == CLOSED:
            return
        network = self._network
        queue = self._send_queue
        unsent = queue.unsent_bytes
        if unsent != self._charged:
            growth = unsent - self._charged
            self._charged = unsent
            network.budget.charge(growth)
        if self._ending != OPEN and not queue.parts and (self._ending == DROPPING or not self._slots):
            self.close()
            return
        self._reading = reading = self._next_reading(unsent)
        watched = (_FOR_READING if reading == READING else 0) | (_FOR_WRITING if queue.state == BLOCKED else 0)
        if watched != self._watched:
            self._watched = watched
            self._watcher.watch(self, reading=reading == READING, writing=queue.state == BLOCKED)
        if reading == READING and (
            self.reader.is_unfinished or (self._secure is not None and self._secure.has_pending)
        ):
            self._watcher.call_again(self)

    def _next_reading(self, unsent: int) -> int:
        if self._ending != OPEN:
            return STOPPED
        if self._reading == NO_MEMORY:
            return NO_MEMORY
        network = self._network
        limits = network.limits
        if (
            self._mute_deadline is not None
            or self.reader.is_held
            or len(self._slots) + len(self._send_queue.parts) >= limits.max_in_flight
            or unsent > limits.max_unsent_bytes
            or (unsent and network.budget.is_exhausted())
        ):
            return PAUSED
        return READING
