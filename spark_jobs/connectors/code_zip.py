"""Packs the project's code for executors, so that no worker needs a copy of it.

Executors unpack it into their working directory, once per application. It is unpacked, and not imported from the zip
file, because modules read files that lie beside them, such as named queries and definitions of pipelines.
"""

import zipfile
from pathlib import Path

PACKAGES = ("include", "spark_jobs")
FOLDER = "pipeline-code"  # in the working directory of an executor
ROOT = Path(__file__).resolve().parents[2]


def code_configuration(scratch: Path) -> dict[str, str]:
    """Pack the code into a file in `scratch`, and return the settings that bring it to the executors.

    They replace the PYTHONPATH of a worker: its own copy of the project, if it has one, is not used.
    """
    return {
        "spark.archives": f"{pack_code(scratch)}#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,  # relative to the working directory of the executor
    }


def pack_code(folder: Path) -> Path:
    """Write the zip file into the folder; returns its path."""
    target = folder / f"{FOLDER}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in PACKAGES:
            for file in sorted((ROOT / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    packed.write(file, file.relative_to(ROOT))
    return target
