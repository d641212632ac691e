#!/bin/sh
# Makes a data folder at the first start, as POSTGRES_PASSWORD and POSTGRES_INITDB_ARGS say, then becomes the command.
set -eu
if [ "$(id -u)" = 0 ]; then
    exec setpriv --reuid=postgres --regid=postgres --clear-groups "$0" "$@"
fi
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?is not set: it becomes the password of the superuser}"
    password=$(mktemp)
    printf '%s\n' "$POSTGRES_PASSWORD" > "$password"
    # shellcheck disable=SC2086  # several arguments
    initdb --pgdata="$PGDATA" --username=postgres --pwfile="$password" ${POSTGRES_INITDB_ARGS:-}
    rm "$password"
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    printf "%s\n" "listen_addresses = '*'" "unix_socket_directories = '/var/run/postgresql'" >> "$PGDATA/postgresql.conf"
fi
exec "$@"
