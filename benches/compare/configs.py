"""A configuration file for each pooler that is known: one pool, transaction mode, prepared statements on.

What a pooler cannot do, or what nobody has written down here, raises `Unsupported`, and that pooler is left
out of the table with a word about it. pgferry and PgBouncer read the same file.
"""

from dataclasses import dataclass
from pathlib import Path

from .access import PASSWORD, USER, Access, scram_verifier

DATABASE = "bench"


class Unsupported(Exception):
    """The pooler has no such way in."""


@dataclass(frozen=True)
class Place:
    """What a configuration has to know."""

    #: the pooler's own directory, which its account may write
    directory: Path
    port: int
    server_port: int
    #: where PostgreSQL's Unix socket is
    server_directory: str
    pool_size: int
    max_clients: int
    access: Access
    #: lines more, in the section of general settings
    extra: tuple = ()

    def certificate(self):
        """(certificate, key), as the pooler can read them."""
        return self.directory / "server.crt", self.directory / "server.key"


def written(place, name, lines):
    """The path of a file with these lines in the pooler's directory."""
    path = place.directory / name
    path.write_text("\n".join([*lines, ""]), encoding="ascii")
    return str(path)


def pgbouncer(place):
    """PgBouncer's ini. Returns the arguments of the program."""
    users = place.directory / "users.txt"
    scram = place.access is Access.SCRAM
    users.write_text(f'"{USER}" "{scram_verifier() if scram else ""}"\n', encoding="ascii")
    unix = place.access is Access.UNIX
    lines = ["[databases]",
             f"{DATABASE} = host={place.server_directory if unix else '127.0.0.1'} port={place.server_port} "
             "dbname=postgres",
             "[pgbouncer]",
             "listen_addr = 127.0.0.1",
             f"listen_port = {place.port}",
             f"unix_socket_dir = {place.directory if unix else ''}",
             f"auth_type = {'scram-sha-256' if scram else 'trust'}",
             f"auth_file = {users}",
             "pool_mode = transaction",
             f"default_pool_size = {place.pool_size}",
             f"max_client_conn = {place.max_clients}",
             "max_prepared_statements = 200",
             "log_connections = 0",
             "log_disconnections = 0",
             # PostgreSQL offers it, for clients that come to it directly.
             "server_tls_sslmode = disable"]
    if place.access is Access.TLS:
        certificate, key = place.certificate()
        lines += ["client_tls_sslmode = require", f"client_tls_cert_file = {certificate}",
                  f"client_tls_key_file = {key}"]
    return [written(place, "pooler.ini", [*lines, *place.extra])]


def toml_tls(place, certificate_key, private_key):
    """The two lines that PgCat and those that came of it have for TLS."""
    if place.access is not Access.TLS:
        return []
    certificate, key = place.certificate()
    return [f'{certificate_key} = "{certificate}"', f'{private_key} = "{key}"']


def only(place, *ways):
    """Refuses the other ways in."""
    if place.access not in ways:
        raise Unsupported(f"no configuration is written here for {place.access.value}")


def pgcat(place):
    """PgCat's TOML. It trusts nobody: clients log in with MD5 there."""
    only(place, Access.TCP, Access.TLS)
    lines = ["[general]", 'host = "127.0.0.1"', f"port = {place.port}", 'admin_username = "admin"',
             'admin_password = "admin"', "prepared_statements_cache_size = 500",
             *toml_tls(place, "tls_certificate", "tls_private_key"), *place.extra,
             f"[pools.{DATABASE}]", 'pool_mode = "transaction"',
             f"[pools.{DATABASE}.users.0]", f'username = "{USER}"', f'password = "{PASSWORD}"',
             f"pool_size = {place.pool_size}",
             f"[pools.{DATABASE}.shards.0]", f'servers = [["127.0.0.1", {place.server_port}, "primary"]]',
             'database = "postgres"']
    return [written(place, "pgcat.toml", lines)]


def pg_doorman(place):
    """pg_doorman's TOML."""
    only(place, Access.TCP, Access.TLS)
    lines = ["[general]", 'host = "127.0.0.1"', f"port = {place.port}", 'admin_username = "admin"',
             'admin_password = "admin"', f"max_connections = {place.max_clients}",
             *toml_tls(place, "tls_certificate", "tls_private_key"), *place.extra,
             f"[pools.{DATABASE}]", 'server_host = "127.0.0.1"', f"server_port = {place.server_port}",
             'server_database = "postgres"', 'pool_mode = "transaction"',
             f"[pools.{DATABASE}.users.0]", f'username = "{USER}"', f'password = "{PASSWORD}"',
             f"pool_size = {place.pool_size}"]
    return [written(place, "pg_doorman.toml", lines)]


def odyssey(place):
    """Odyssey's own format."""
    only(place, Access.TCP, Access.TLS)
    listen = ['host "127.0.0.1"', f"port {place.port}"]
    if place.access is Access.TLS:
        certificate, key = place.certificate()
        listen += ['tls "require"', f'tls_cert_file "{certificate}"', f'tls_key_file "{key}"']
    lines = ["daemonize no", "log_to_stdout yes", "log_session no", "log_query no", "log_stats no", *place.extra,
             "listen {", *listen, "}",
             'storage "server" {', 'type "remote"', 'host "127.0.0.1"', f"port {place.server_port}", "}",
             f'database "{DATABASE}" {{', f'user "{USER}" {{', 'authentication "none"', 'storage "server"',
             'storage_db "postgres"', f'storage_user "{USER}"', 'pool "transaction"',
             f"pool_size {place.pool_size}", "pool_discard no", "pool_smart_discard yes",
             "pool_reserve_prepared_statement yes", "}", "}"]
    return [written(place, "odyssey.conf", lines)]


def pgdog(place):
    """PgDog's two TOML files."""
    only(place, Access.TCP, Access.TLS)
    lines = ["[general]", 'host = "127.0.0.1"', f"port = {place.port}", 'auth_type = "trust"',
             'pooler_mode = "transaction"', f"default_pool_size = {place.pool_size}",
             *toml_tls(place, "tls_certificate", "tls_private_key"), *place.extra,
             "[[databases]]", f'name = "{DATABASE}"', 'host = "127.0.0.1"', f"port = {place.server_port}",
             'database_name = "postgres"']
    users = ["[[users]]", f'name = "{USER}"', f'database = "{DATABASE}"', f'password = "{PASSWORD}"']
    return ["--config", written(place, "pgdog.toml", lines), "--users", written(place, "users.toml", users)]


#: by name of the target, what writes its configuration
WRITERS = {"pgferry": pgbouncer, "pgbouncer": pgbouncer, "pgcat": pgcat, "pg_doorman": pg_doorman,
           "odyssey": odyssey, "pgdog": pgdog}
