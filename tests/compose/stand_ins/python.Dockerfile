# Stands in for python:3.11-slim-bookworm: Debian's own Python 3.11 under the official image's names.
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
# As Debian's image does: apt keeps no archives and caches, which would stay in the layer of an installation.
RUN printf '%s\n' 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };' \
        'Dir::Cache::pkgcache "";' 'Dir::Cache::srcpkgcache "";' > /etc/apt/apt.conf.d/no-caches \
    && apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3.11 python3.11-venv \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/bin/python3.11 /usr/local/bin/python3 \
    && ln -s /usr/bin/python3.11 /usr/local/bin/python
ENV LANG=C.UTF-8
CMD ["python3"]
