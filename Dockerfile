# pgferry in a small image: built with Rust's own, run on Debian without root.
#
#   docker build -t pgferry .
#   docker run --rm -p 6432:6432 -e DATABASE_URL=postgres://app:secret@db/app pgferry
#   docker run --rm -p 6432:6432 -v "$PWD/pgbouncer.ini:/etc/pgferry/pgbouncer.ini:ro" pgferry /etc/pgferry/pgbouncer.ini
#
# Such a file has to set listen_addr: the environment counts only where no file is given.

FROM rust:1-bookworm AS builder
WORKDIR /build
RUN apt-get update && apt-get install -y --no-install-recommends libpam0g-dev && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cargo build --release --locked --features pam

FROM debian:bookworm-slim
# The system's authorities, for server_tls_sslmode = verify-full without a server_tls_ca_file, and the library for
# auth_type = pam, whose /etc/pam.d/pgbouncer is for you to bring.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libpam0g && rm -rf /var/lib/apt/lists/*
RUN useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin pgferry
COPY --from=builder /build/target/release/pgferry /usr/local/bin/pgferry
USER pgferry
# Without a file pgferry listens on the machine itself only, and in a container that is nobody.
ENV LISTEN_ADDR=0.0.0.0
EXPOSE 6432
# Transactions are finished, then it ends; TERM would wait until the last client has left.
STOPSIGNAL SIGINT
ENTRYPOINT ["/usr/local/bin/pgferry"]
