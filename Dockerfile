# pgferry in a small image: built with Rust's own, and nothing else in it but the libraries that the program names.
# Not a static program on musl: the C library's look-up of host names and PAM are those of the machine pgferry is tested on.
#
#   docker build -t pgferry .
#   docker buildx build --platform linux/amd64,linux/arm64 -t pgferry .
#   docker run --rm --read-only --tmpfs /tmp -p 6432:6432 -e DATABASE_URL=postgres://app:secret@db/app pgferry
#   docker run --rm -p 6432:6432 -v "$PWD/pgferry.ini:/etc/pgferry/pgferry.ini:ro" pgferry /etc/pgferry/pgferry.ini
#
# Such a file has to set listen_addr, and http_listen for the health check: the environment counts only where no file is given.

FROM rust:1-bookworm AS builder
# pam: auth_type = pam, with the modules that Debian has; the services in /etc/pam.d are for you to bring.
ARG FEATURES=
# Set by BuildKit for each platform; the caches of two must not meet.
ARG TARGETARCH
WORKDIR /build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libpam0g-dev libpam-modules tzdata \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN --mount=type=cache,id=pgferry-cargo-$TARGETARCH,target=/usr/local/cargo/registry \
    --mount=type=cache,id=pgferry-target-$TARGETARCH,target=/build/target \
    cargo build --release --locked --features "$FEATURES" \
    && cp target/release/pgferry /build/pgferry \
    && strip /build/pgferry \
    && packaging/docker/rootfs /build/pgferry /rootfs

FROM scratch
COPY --from=builder /rootfs/ /
# A number, so that Kubernetes sees that it is not root; any other will do (OpenShift chooses one).
USER 65532:65532
# Without a file pgferry listens on the machine itself only, and in a container that is nobody. Health and metrics have a
# port of their own.
ENV LISTEN_ADDR=0.0.0.0 \
    HTTP_LISTEN=0.0.0.0:9127 \
    SHUTDOWN_MODE=drain \
    DRAIN_TIMEOUT=25
EXPOSE 6432 9127
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/local/bin/pgferry", "health"]
ENTRYPOINT ["/usr/local/bin/pgferry"]
