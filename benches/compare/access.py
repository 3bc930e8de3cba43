"""The ways in: how clients reach a target, and how they prove who they are."""

import base64
import enum
import hashlib
import hmac
import os

USER = "postgres"
PASSWORD = "bench"
#: what PostgreSQL makes of a password by default (`scram_iterations`)
ITERATIONS = 4096


class Access(enum.Enum):
    """One way in. Everybody is trusted but over `SCRAM`."""

    TCP = "tcp"
    #: sslmode=require, a self-signed certificate; the pooler's side to PostgreSQL stays plain
    TLS = "tls"
    #: clients and servers by Unix socket
    UNIX = "unix"
    #: TCP, and a password by SCRAM-SHA-256 whose verifier the pooler has
    SCRAM = "scram"

    def environment(self):
        """The environment of a libpq program that comes in this way."""
        mode = "require" if self is Access.TLS else "disable"
        return {**os.environ, "PGSSLMODE": mode, "PGGSSENCMODE": "disable", "PGPASSWORD": PASSWORD}


def scram_verifier(password=PASSWORD, salt=None):
    """`SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>` (PostgreSQL: catalog-pg-authid)."""
    salt = os.urandom(16) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    text = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${ITERATIONS}:{text[0]}${text[1]}:{text[2]}"
