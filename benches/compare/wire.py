"""A small client of the protocol (PostgreSQL: protocol-message-formats) that reads faster than a pooler writes.

It looks into messages while it logs in, and at the last bytes only while a result rushes in, so that the
pooler is never held up. Every answer is checked: its end must be the one that is expected.
"""

import hashlib
import socket
import ssl
import struct

from .access import PASSWORD, USER, Access
from .readings import Failure

#: outside a transaction block; what ends every answer
READY = b"Z\0\0\0\x05I"
#: seconds without a byte after which a run is given up
PATIENCE = 60
CHUNK = 1 << 20


def message(tag, body=b""):
    """A message with its length."""
    return tag + struct.pack("!i", len(body) + 4) + body


def text(value):
    """A string as the protocol has it."""
    return value.encode() + b"\0"


def query(sql):
    """Query: a simple query."""
    return message(b"Q", text(sql))


def with_parameter(sql, value):
    """Parse, Bind with one text parameter, Execute, Sync: the unnamed statement, as PQexecParams sends it."""
    bind = text("") + text("") + struct.pack("!hhi", 0, 1, len(value)) + value + struct.pack("!h", 0)
    return (message(b"P", text("") + text(sql) + struct.pack("!h", 0)) + message(b"B", bind)
            + message(b"D", b"P" + text("")) + message(b"E", text("") + struct.pack("!i", 0)) + message(b"S"))


def complete(tag):
    """CommandComplete and ReadyForQuery: how an answer without an error ends."""
    return message(b"C", text(tag)) + READY


class Client:
    """One connection, logged in."""

    def __init__(self, target):
        self.name = target.name
        #: in us, of works that are made of queries
        self.latencies = []
        if target.access is Access.UNIX:
            self.socket = socket.socket(socket.AF_UNIX)
            address = f"{target.host}/.s.PGSQL.{target.port}"
        else:
            self.socket = socket.socket()
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address = (target.host, target.port)
        self.socket.settimeout(PATIENCE)
        try:
            self.socket.connect(address)
            if target.access is Access.TLS:
                self.start_tls()
            self.log_in(target.database)
        except BaseException as error:
            self.socket.close()
            if isinstance(error, OSError):
                raise Failure(f"{self.name}: {error}") from error
            raise
        self.buffer = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start_tls(self):
        """SSLRequest, and TLS without a look at the certificate (sslmode=require)."""
        self.socket.sendall(struct.pack("!ii", 8, 80877103))
        if self.socket.recv(1) != b"S":
            raise Failure(f"{self.name} does not speak TLS")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.socket = context.wrap_socket(self.socket)

    def log_in(self, database):
        """StartupMessage up to ReadyForQuery, with MD5 where a pooler insists."""
        body = struct.pack("!i", 196608) + text("user") + text(USER) + text("database") + text(database) + b"\0"
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        while True:
            tag, body = self.read_message()
            if tag == b"E":
                raise Failure(f"{self.name} refuses the login: {body[1:200]!r}")
            if tag == b"R" and body[:4] == struct.pack("!i", 5):
                inner = hashlib.md5((PASSWORD + USER).encode()).hexdigest().encode()
                self.socket.sendall(message(b"p", b"md5" + hashlib.md5(inner + body[4:8]).hexdigest().encode() + b"\0"))
            elif tag == b"R" and body[:4] != bytes(4):
                raise Failure(f"{self.name} asks for a proof of identity that this client has not")
            elif tag == b"Z":
                return

    def read_message(self):
        """(tag, body) of the next message."""
        head = self.read_exactly(5)
        return head[:1], self.read_exactly(struct.unpack("!i", head[1:])[0] - 4)

    def read_exactly(self, size):
        """So many bytes."""
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise Failure(f"{self.name} has closed the connection")
            found += more
        return found

    def send(self, data):
        """All of it."""
        self.socket.sendall(data)

    def receive(self, end):
        """Reads an answer that must end in `end`; returns how many bytes it had."""
        if self.buffer is None:
            self.buffer = bytearray(CHUNK)
        view, count, tail = memoryview(self.buffer), 0, b""
        while not tail.endswith(READY):
            size = self.socket.recv_into(view)
            if size == 0:
                raise Failure(f"{self.name} has closed the connection")
            count += size
            tail = (tail + bytes(view[max(0, size - 512):size]))[-512:]
        if not tail.endswith(end):
            raise Failure(f"{self.name}: an answer ends in {tail[-200:]!r}")
        return count

    def ask(self, sql, tag):
        """A simple query whose answer is of no interest."""
        self.send(query(sql))
        return self.receive(complete(tag))

    def close(self):
        """Terminate."""
        try:
            self.socket.sendall(message(b"X"))
        except OSError:
            pass
        self.socket.close()
