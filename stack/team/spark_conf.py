"""Writes `deploy/spark-defaults.conf` with the secret of `.env` for Spark: `python -m stack.team.spark_conf`.

Idempotent.

Master, workers, drivers and executors read it from a volume. On a command line, where Spark's other settings are, every
user of the host could read the secret.
"""

import argparse
from pathlib import Path

from include.runtime.durable_files import replacing
from stack.errors import one_line_errors
from stack.team.environment import required

_DEFAULTS = Path(__file__).resolve().parents[2] / "deploy" / "spark-defaults.conf"
VARIABLES = ("SPARK_CONF_DIR", "SPARK_AUTH_SECRET")


@one_line_errors("spark_conf")
def main() -> None:
    """Run the command; exits with 1 after a one-line error if a variable is missing or the file cannot be written."""
    variables = required(VARIABLES)
    write(Path(variables["SPARK_CONF_DIR"]), variables["SPARK_AUTH_SECRET"])
    print("Spark's configuration is there")


def write(folder: Path, secret: str) -> None:
    """Write the file for its owner alone, in one step: a process that starts meanwhile reads the old or the new one."""
    with replacing(folder / "spark-defaults.conf", mode=0o400) as file:
        file.write(f"{_DEFAULTS.read_text(encoding='utf-8')}spark.authenticate.secret {secret}\n".encode())


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m stack.team.spark_conf", description=__doc__).parse_args()
    main()
