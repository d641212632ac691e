"""Set-up installs what the lock files name, and what builds a package is named there too."""

import hashlib
import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from stack import bootstrap
from stack.errors import StackError
from stack.layout import Layout

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
        path = self.folder / f"builder-{version}-py3-none-any.whl"
        info = f"builder-{version}.dist-info"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr("builder.py", BUILDER.replace("VERSION", version))
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: builder\nVersion: {version}\n")
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
    with pytest.raises(StackError, match="installing dependencies failed"):
        install(tmp_path, f"builder==1.0 --hash=sha256:{locked}\n", packages)
    assert "surprise" in (tmp_path / ".state" / "logs" / "setup.log").read_text()
