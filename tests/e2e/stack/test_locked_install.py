"""Set-up installs what the lock files name, and what builds a package is named there too."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from stack import bootstrap
from stack.layout import Layout, StackError
from tests.support.messages import INSTALL_FAILED

# Builds a wheel of `pyspark` that says by which version of the builder it was made.
BUILDER = """
import zipfile
def build_wheel(folder, settings=None, metadata=None):
    name = "pyspark-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.writestr("pyspark.py", "BUILT_BY = 'VERSION'")
        wheel.writestr("pyspark-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: pyspark\\nVersion: 1.0\\n")
        wheel.writestr("pyspark-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("pyspark-1.0.dist-info/RECORD", "")
    return name
"""
PROJECT = '[build-system]\nrequires = ["builder"]\nbuild-backend = "builder"\n'


class Index:
    """A folder of packages in place of an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def builder(self, version: str) -> str:
        """Add a wheel of the builder; its hash."""
        return self.wheel("builder", version, source=BUILDER.replace("VERSION", version))

    def wheel(self, name: str, version: str, *metadata: str, source: str = "") -> str:
        """Add a wheel with one module, and further lines of its metadata; its hash."""
        path = self.folder / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{name}.py", source)
            lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata]
            wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def source(self, name: str) -> str:
        """Add a package that comes as source alone; its hash."""
        path = self.folder / f"{name}-1.0.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            about = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
            for file, text in (("pyproject.toml", PROJECT), ("PKG-INFO", about)):
                member = tarfile.TarInfo(f"{name}-1.0/{file}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(params=["pip", *(["uv"] if shutil.which("uv") else [])])
def index(request, tmp_path, monkeypatch):
    packages = tmp_path / "packages"
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(packages))
    which = shutil.which
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: None if request.param == "pip" else which(name))
    return Index(packages)


def install(root: Path, build: str, packages: str) -> Path:
    (root / "requirements-build.lock").write_text(build)
    (root / "requirements-local.lock").write_text("")
    (root / "requirements.lock").write_text(packages)
    layout = Layout.of(root=root)
    layout.make_folders()
    bootstrap.install(layout, root / "requirements.lock")
    return layout.venv


def test_a_package_is_built_with_what_the_lock_names(index, tmp_path):
    locked, _ = index.builder("1.0"), index.builder("2.0")
    packages = f"pyspark==1.0 --hash=sha256:{index.source('pyspark')}\n"
    venv = install(tmp_path, f"builder==1.0 --hash=sha256:{locked}\n", packages)
    (module,) = venv.glob("lib/python*/site-packages/pyspark.py")
    assert module.read_text() == "BUILT_BY = '1.0'"


def test_no_other_package_is_built(index, tmp_path):
    locked = index.builder("1.0")
    packages = f"surprise==1.0 --hash=sha256:{index.source('surprise')}\n"
    with pytest.raises(StackError, match=INSTALL_FAILED):
        install(tmp_path, f"builder==1.0 --hash=sha256:{locked}\n", packages)
    assert "surprise" in (tmp_path / ".state" / "logs" / "setup.log").read_text()


def test_a_newer_version_in_the_index_changes_nothing(index, tmp_path):
    """pip 23 takes the newest version of what a package requires with an extra, and then refuses it."""
    part = index.wheel("part", "1.0", "Provides-Extra: more", source="VERSION = '1.0'")
    index.wheel("part", "2.0", "Provides-Extra: more", source="VERSION = '2.0'")
    whole = index.wheel("whole", "1.0", "Requires-Dist: part[more]>=1.0")
    packages = f"part==1.0 --hash=sha256:{part}\nwhole==1.0 --hash=sha256:{whole}\n"
    venv = install(tmp_path, f"builder==1.0 --hash=sha256:{index.builder('1.0')}\n", packages)
    (module,) = venv.glob("lib/python*/site-packages/part.py")
    assert module.read_text() == "VERSION = '1.0'"


def test_the_lock_names_all_that_its_packages_require():
    pip = [sys.executable, "-m", "pip", "check"] if find_spec("pip") else ["uv", "pip", "check"]  # uv installs no pip
    result = subprocess.run(
        pip, env=os.environ | {"VIRTUAL_ENV": sys.prefix}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
