"""All connections to PostgreSQL are opened in one place, which gives each its limits."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("include", "spark_jobs", "pipeline", "dags", "plugins", "deploy", "stack", "demo")
OPENER = "include/database/sessions.py"
MODULES = {"psycopg2", "psycopg2.pool", "psycopg", "asyncpg", "pg8000"}


def opened_in(path):
    """Lines that open a connection by themselves."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="psycopg2"), attr="connect")):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="create_engine")) if not has_creator(node):
                yield node.lineno
            case ast.ImportFrom(module=module, names=names) if module in MODULES:
                if {"connect", "ThreadedConnectionPool", "SimpleConnectionPool"} & {name.name for name in names}:
                    yield node.lineno


def has_creator(call):
    return any(keyword.arg == "creator" for keyword in call.keywords)


def test_nothing_else_opens_a_connection():
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        if str(path.relative_to(ROOT)) != OPENER
        for line in opened_in(path)
    }
    assert found == set(), "open it with include.database.sessions, which gives it time-outs and keepalives"
