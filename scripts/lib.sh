# shellcheck shell=bash
# What the other scripts share: finding PostgreSQL, starting throw-away servers (never as root, on free
# ports, in a temporary directory) and ending what was started, by pid, however the script ends.
# Sourced, not run.

# shellcheck disable=SC2034 # read by the scripts that source this
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Tools that scripts/setup puts there and nobody else needs to see.
TOOLS=$ROOT/target/tools
PATH=$PATH:$TOOLS/bin

say() { printf '\n\033[1m== %s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
same() { [ "$1" = "$2" ] || fail "expected: $2; found: $1"; }

# A virtual environment for tools, under target/, so that nothing of the machine is changed.
tools() {
    [ -x "$TOOLS/bin/pip" ] || python3 -m venv "$TOOLS"
    "$TOOLS/bin/pip" install -q --disable-pip-version-check --only-binary :all: "$@"
}

# The directory of initdb, postgres and pgbench: the newest version of a distribution that keeps several.
find_postgres() {
    local place
    while read -r place; do
        if [ -x "$place/initdb" ] && [ -x "$place/postgres" ]; then
            PG_BIN=$place
            return 0
        fi
    done < <(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV
             pg_config --bindir 2>/dev/null || true
             tr ':' '\n' <<<"$PATH")
    return 1
}

# Runs a command as the account that servers run under: ours, or postgres where we are root. No shell
# and no parent stays in between, so $! of a background call is the program's own pid.
as_server() {
    if [ "$(id -u)" -eq 0 ]; then
        HOME=$WORK exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$@"
    else
        exec "$@"
    fi
}

# Runs a command as root, for what the machine itself needs.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# A temporary directory of that account, gone when the script ends, and everything started with it.
make_workdir() {
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/pgferry.XXXXXX")
    [ "$(id -u)" -ne 0 ] || chown postgres: "$WORK"
    STARTED=()
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

clean_up() {
    local status=$? at
    trap - EXIT
    # Last started, first ended: a pooler before the PostgreSQL behind it. QUIT is "at once" to both.
    for ((at = ${#STARTED[@]} - 1; at >= 0; at--)); do
        stop_process "${STARTED[at]}"
    done
    rm -rf "$WORK"
    exit "$status"
}

stop_process() {
    local turn
    kill -QUIT "$1" 2>/dev/null || return 0
    for ((turn = 0; turn < 50; turn++)); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL "$1" 2>/dev/null || true
}

# A port nobody listens on, below the range that the kernel draws outgoing ports from.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        listens "$port" || break
    done
    echo "$port"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# wait_until_listens PORT PID LOG
wait_until_listens() {
    local turn
    for ((turn = 0; turn < 300; turn++)); do
        if listens "$1"; then return 0; fi
        kill -0 "$2" 2>/dev/null || break
        sleep 0.1
    done
    cat "$3" >&2
    fail "nothing accepts connections on port $1"
}

# Starts a PostgreSQL that trusts everybody on 127.0.0.1; PG_PORT says where. Arguments are lines of
# postgresql.conf.
start_postgres() {
    find_postgres || fail "no PostgreSQL found: run scripts/setup"
    local data=$WORK/data log=$WORK/postgres.log pid
    (cd "$WORK" && as_server "$PG_BIN/initdb" -D "$data" -U postgres -A trust -E UTF8 --locale=C --no-sync) \
        >"$log" 2>&1 || { cat "$log" >&2; fail "initdb"; }
    PG_PORT=$(free_port)
    {
        printf '%s\n' "port = $PG_PORT" "listen_addresses = '127.0.0.1'" \
            "unix_socket_directories = '$WORK'" "max_connections = 300" "fsync = off" \
            "synchronous_commit = off" "full_page_writes = off"
        [ $# -eq 0 ] || printf '%s\n' "$@"
    } >>"$data/postgresql.conf"
    (cd "$WORK" && as_server "$PG_BIN/postgres" -D "$data") >>"$log" 2>&1 </dev/null &
    pid=$!
    STARTED+=("$pid")
    wait_until_listens "$PG_PORT" "$pid" "$log"
    export PGHOST=127.0.0.1 PGUSER=postgres PGSSLMODE=disable PGCONNECT_TIMEOUT=10
    local turn
    for ((turn = 0; turn < 100; turn++)); do
        if psql -p "$PG_PORT" -d postgres -qAtc 'select 1' >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    fail "PostgreSQL does not answer: $(tail -n 5 "$log")"
}

# find_pooler VARIABLE: the program to try, which is the one that this names, or else what has been built.
find_pooler() {
    local built
    for built in "${!1:-}" "$ROOT/target/release/pgferry" "$ROOT/target/debug/pgferry"; do
        if [ -n "$built" ] && [ -x "$built" ]; then
            realpath "$built"
            return
        fi
    done
    fail "no pgferry: run cargo build first, or name a program in $1"
}

# Starts a pooler: start_pooler PROGRAM CONFIG PORT. As root a copy runs that its account can reach.
# POOLER_PID and POOLER_LOG tell the rest.
start_pooler() {
    local program=$1 config=$2 port=$3
    ! listens "$port" || fail "port $port is taken"
    POOLER_LOG=$WORK/$(basename "$program").log
    if [ "$(id -u)" -eq 0 ]; then
        install -o postgres -m 755 "$program" "$WORK/"
        chown postgres: "$config"
        program=$WORK/$(basename "$program")
    fi
    (cd "$WORK" && as_server "$program" "$config") >"$POOLER_LOG" 2>&1 </dev/null &
    POOLER_PID=$!
    STARTED+=("$POOLER_PID")
    wait_until_listens "$port" "$POOLER_PID" "$POOLER_LOG"
}
