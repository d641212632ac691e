"""The documents name only what exists: files, headings, make targets, variables, modules, DAGs, decisions."""

import re
from pathlib import Path

import pytest

from include.integrity.jobs import BASES
from include.runtime.kinds import PORT
from stack import env_file
from stack.settings_table import is_setting

ROOT = Path(__file__).resolve().parents[3]
DOCS = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
DAG_FILES = sorted((ROOT / "dags").glob("*.py"))
ADRS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
FOLDERS = ("include", "spark_jobs", "pipeline", "dags", "plugins", "stack", "demo", "docs", "deploy")

# Variables of the shell that are no settings, and the file that reads them.
PROXIES = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"), "stack/jars.py")
OTHER_VARIABLES = {"MAVEN_MIRROR_URL": "stack/jars.py", **PROXIES}

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
MAKE = re.compile(r"(?:`|^|\| )make ((?:[A-Z]+=\S+ )*)([a-z][a-z0-9-]*)", re.MULTILINE)
MODULE = re.compile(r"python[0-9.]* -m ([A-Za-z_][\w.]*)")
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
QUERY = re.compile(r"`(\w+\.sql)`")

each_doc = pytest.mark.parametrize("doc", DOCS, ids=lambda path: str(path.relative_to(ROOT)))


def text_of(doc: Path) -> str:
    return doc.read_text(encoding="utf-8")


def slugs(doc: Path) -> set[str]:
    """Anchors of the headings, as code hosts make them."""
    headings = re.findall(r"^#{1,6} (.+)$", FENCE.sub("", text_of(doc)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(doc: Path) -> list[str]:
    broken = []
    for target in LINK.findall(FENCE.sub("", text_of(doc))):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        file = (doc.parent / place).resolve() if place else doc
        if not file.exists() or (anchor and anchor not in slugs(file)):
            broken.append(target)
    return broken


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z0-9-]*):", text_of(ROOT / "Makefile"), re.MULTILINE))


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@each_doc
def test_links_lead_to_files_and_headings(doc: Path) -> None:
    assert broken_links(doc) == []


@each_doc
def test_make_targets_exist(doc: Path) -> None:
    named = {target for _, target in MAKE.findall(text_of(doc))}
    assert named - make_targets() == set()


@each_doc
def test_modules_exist(doc: Path) -> None:
    named = set(MODULE.findall(text_of(doc)))
    assert {name for name in named if not is_module(name)} == set()


@each_doc
def test_paths_and_queries_exist(doc: Path) -> None:
    text = text_of(doc)
    missing = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    missing += [name for name in QUERY.findall(text) if not list((ROOT / "include" / "database").rglob(name))]
    assert missing == []


@pytest.mark.parametrize("name", ["README", "docs/commands", "docs/gateway-api", "docs/tutorial"])
def test_variables_of_the_first_pages_are_settings(name: str) -> None:
    named = set(VARIABLE.findall(text_of(ROOT / f"{name}.md")))
    assert named
    assert {each for each in named if not is_setting(each)} - OTHER_VARIABLES.keys() == set()


def test_variables_of_the_shell_are_read() -> None:
    for variable, reader in OTHER_VARIABLES.items():
        assert f'"{variable}"' in text_of(ROOT / reader)


def test_ports_of_the_tutorial_are_the_defaults() -> None:
    defaults = {each.line for each in env_file.lines_of({}) if each.kind is PORT}
    named = set(re.findall(r"127\.0\.0\.1:(\d+)", text_of(ROOT / "docs" / "tutorial.md")))
    assert named
    assert named <= defaults


def test_every_make_target_is_in_the_page_of_commands() -> None:
    named = {target for _, target in MAKE.findall(text_of(ROOT / "docs" / "commands.md"))}
    assert make_targets() - {"help"} - named == set()


def test_every_dag_has_its_runbook() -> None:
    assert {path.stem for path in DAG_FILES} == {*BASES}
    for file in DAG_FILES:
        [runbook] = re.findall(rf'dag_arguments\("{file.stem}", "([\w-]+)"', text_of(file))
        assert f"`{file.stem}`" in text_of(ROOT / "docs" / "runbooks" / f"{runbook}.md"), file.stem


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "docs"])
def test_a_message_names_a_runbook_that_exists(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".sql", ".toml", ".yaml"}]
    named = {path for file in files for path in re.findall(r"docs/runbooks/[\w-]+\.md", text_of(file))}
    assert {path for path in named if not (ROOT / path).is_file()} == set()


def test_every_runbook_is_in_the_index() -> None:
    index = set(LINK.findall(text_of(ROOT / "docs" / "runbooks" / "README.md")))
    runbooks = {path.name for path in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README.md"}
    assert runbooks - index == set()


def test_every_decision_is_in_the_index_and_numbered_as_its_file() -> None:
    index = set(LINK.findall(text_of(ROOT / "docs" / "adr" / "README.md")))
    assert {path.name for path in ADRS} - index == set()
    numbers = [int(path.name[:4]) for path in ADRS]
    assert numbers == list(range(1, len(ADRS) + 1))
    for number, path in zip(numbers, ADRS, strict=True):
        assert text_of(path).startswith(f"# {number}. ")


def test_a_broken_document_is_noticed(tmp_path: Path) -> None:
    doc = tmp_path / "doc.md"
    doc.write_text("# Title\n[a](none.md) [b](#title) [c](#none) `make nothing` `python -m include.nothing`\n")
    assert broken_links(doc) == ["none.md", "#none"]
    assert [target for _, target in MAKE.findall(text_of(doc))] == ["nothing"]
    assert not is_module(MODULE.findall(text_of(doc))[0])


def test_the_glossary_has_the_classes_of_corrections():
    (row,) = re.findall(r"^\| class \| The kind of a correction: (.*)\. \|$", text_of(ROOT / "docs/glossary.md"), re.M)
    schema = (ROOT / "include/database/schema.sql").read_text(encoding="utf-8")
    (listed,) = re.findall(r"CHECK \(class IN \((.*?)\)\)", schema, re.DOTALL)
    classes = re.findall(r"'([^']+)'", listed.replace("{{table}}", "member"))
    assert sorted(row.replace(" ", "_").split(",_")) == sorted(classes)
