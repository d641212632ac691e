"""The Python interpreter of the hand-written peers, which have a virtual environment of their own."""

import hashlib
import subprocess
import sys
from pathlib import Path

from stack.layout import PROJECT_ROOT, Layout

_REQUIREMENTS = PROJECT_ROOT / "benchmarks" / "requirements.txt"


def peer_python() -> Path:
    """Return its path. Creates the environment if it is missing or its requirements have changed."""
    venv = Layout.of().state / "bench-venv"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    stamp = venv / "requirements.sha256"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making {venv} from {_REQUIREMENTS.relative_to(PROJECT_ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        install = [str(venv / "bin" / "pip"), "install", "--quiet", "--requirement", str(_REQUIREMENTS)]
        subprocess.run(install, check=True)
        stamp.write_text(wanted)
    return venv / "bin" / "python"
