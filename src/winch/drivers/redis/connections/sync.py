"""One connection of a synchronous caller: a plain socket, with hiredis to read the replies."""

from __future__ import annotations

import select
from contextlib import suppress
from socket import socket as Socket  # noqa: N812  # `socket` is the attribute
from time import monotonic
from typing import Any

import hiredis

from winch.drivers.redis.address import Address, HostPort
from winch.drivers.redis.connections.opening import check_greeting, greeting, named, open_socket
from winch.drivers.redis.connections.routing import ConnectionLost

# A connection used so many seconds ago is not asked whether it is still there.
FRESH = 0.25
# Bytes asked for at once. For more than 128 KiB the C library maps memory anew with each call, and gives
# it back when it is cut down to what came: that took longer than everything else about a short reply.
RECEIVED = 65_536
_NOTHING = object()


class SyncConnection:
    """One connection of a synchronous caller."""

    def __init__(self, address: Address, server: HostPort) -> None:
        self.server = server
        self._timeout = address.timeout
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self.socket: Socket = open_socket(address, server)
        self.used_at: float = 0.0
        if requests := greeting(address):
            try:
                check_greeting(self.ask(b"".join(requests), len(requests)), address, server)
            except Exception:
                self.close()
                raise

    def ask(self, data: bytes, replies: int) -> list[Any]:
        self.send(data)
        return self.receive(replies)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (TimeoutError, BlockingIOError) as error:
            self.close()
            text = f"no answer within {self._timeout:g} s (timeout= in the URL)"
            raise ConnectionLost(self.server, text, was_sent=True) from error
        except OSError as error:
            self.close()
            # Of a short request nothing arrived, or not all of it.
            raise ConnectionLost(
                self.server, f"{named(self.server)}: {error}", was_sent=len(data) > 65_536
            ) from error
        except BaseException:
            self.close()
            raise

    def receive(self, replies: int) -> list[Any]:
        try:
            found: list[Any] = []
            reader = self._reader
            self.used_at = monotonic()
            while True:
                while (answer := reader.gets()) is not _NOTHING:
                    found.append(answer)
                    if len(found) == replies:
                        return found
                received = self.socket.recv(RECEIVED)
                if not received:
                    raise ConnectionResetError("the server closed the connection")
                reader.feed(received)
        except (TimeoutError, BlockingIOError) as error:
            self.close()
            text = f"no answer within {self._timeout:g} s (timeout= in the URL)"
            raise ConnectionLost(self.server, text, was_sent=True) from error
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise ConnectionLost(self.server, f"{named(self.server)}: {error}", was_sent=True) from error
        except BaseException:  # an interrupt: the next reply would be taken for another's
            self.close()
            raise

    def is_fresh(self) -> bool:
        """Whether the server has kept the connection open; looked at only after a pause."""
        return monotonic() - self.used_at < FRESH or self.is_open()

    def is_open(self) -> bool:
        """Whether the server has kept the connection open."""
        try:
            readable, _, _ = select.select([self.socket], [], [], 0)
        except (OSError, ValueError):
            return False
        return not readable

    def close(self) -> None:
        with suppress(OSError, AttributeError):  # one that was never connected has no socket
            self.socket.close()

    def __del__(self) -> None:  # of a driver that was never closed
        self.close()
