"""Settings as fields of dataclasses, and the reader of an environment.

    port: int = setting("GATEWAY_PORT", kinds.PORT, 18080, "the port of its HTTP server")

is the one place of a setting. `load` reads the dataclass from an environment, and `settings_of` lists its settings for
`.env`, the files of the deployments and docs/settings.md, which are written from them (`stack.settings_files`).
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from include.contracts.errors import ConfigurationError
from include.runtime.kinds import PATH, Kind, Unfit

T = TypeVar("T")

_LOGIN = re.compile(r"^([a-z0-9+.-]+://)?.*@", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Setting:
    """A setting: its variable, kind, default (MISSING: it has to be set) and meaning.

    `env` is its line in a new `.env`: True for the default, a text, or the function that makes a secret; False for no
    line. Compose takes a `team` setting from TEAM_NAME, because the local stack and the deployment have different
    servers. `container` is the value in every container. `key` is the name in a connection of Airflow. `reader` is who
    reads it, if not all of the pipeline's processes that have its section.
    """

    variable: str
    kind: Kind[Any]
    default: Any
    help: str
    env: str | bool | Callable[[], str] = False
    team: bool = False
    container: str = ""
    key: str = ""
    reader: str = ""

    @property
    def variables(self) -> tuple[str, ...]:
        """Its variable, and that of the file that a secret may be in."""
        return (self.variable, f"{self.variable}_FILE") if self.kind.is_secret else (self.variable,)

    @property
    def default_text(self) -> str:
        """The default as it would be written; empty for none."""
        return "" if self.default in (MISSING, None) else self.kind.text(self.default)

    @property
    def line(self) -> str:
        """The value in a new `.env`; empty for a secret, which is made then."""
        return self.env if isinstance(self.env, str) else self.default_text if self.env is True else ""


def setting(variable: str, kind: Kind[Any], default: Any, meaning: str, **more: Any) -> Any:
    """Return the field of a dataclass that has this setting. Secrets are not shown."""
    row = Setting(variable, kind, default, meaning, **more)
    return field(default=default, repr=not kind.is_secret, metadata={"setting": row})


server_setting = partial(setting, team=True)


def group(of: type, **more: Any) -> Any:
    """Return the field of a dataclass that has the settings of another one; `more` is for `dataclasses.field`.

    Its value is that of `of.from_environment`, if there is one, else of `load`.
    """
    return field(metadata={"group": of}, **more)


def settings_of(of: type) -> Iterator[Setting]:
    """Yield the settings of a dataclass and of its groups, in order."""
    for each in dataclasses.fields(of):
        if "setting" in each.metadata:
            yield each.metadata["setting"]
        elif "group" in each.metadata:
            yield from settings_of(each.metadata["group"])


def secrets_of(of: type) -> tuple[str, ...]:
    """Return the variables of a dataclass that are secret."""
    return tuple(each.variable for each in settings_of(of) if each.kind.is_secret)


def keyed(of: Any) -> dict[str, Any]:
    """Return the values of a dataclass and of its groups whose settings have a key, by these keys."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(of):
        value = getattr(of, each.name)
        if "group" in each.metadata:
            found |= keyed(value)
        elif (row := each.metadata.get("setting")) and row.key:
            found[row.key] = value
    return found


def load(of: type[T], env: "EnvironmentReader", **given: Any) -> T:
    """Return the dataclass with the settings of its fields, except those in `given`. Raises ConfigurationError."""
    for each in dataclasses.fields(of):  # type: ignore[arg-type]
        if each.name in given:
            continue
        if "setting" in each.metadata:
            given[each.name] = env.read(each.metadata["setting"])
        elif inner := each.metadata.get("group"):
            given[each.name] = getattr(inner, "from_environment", partial(load, inner))(env)
    return of(**given)


class EnvironmentReader:
    """Reads variables of an environment. An empty variable counts as not set.

    A variable with the prefix before its name wins over the one without: ORDER_DETAIL__DATABASE_NAME over
    DATABASE_NAME. Errors are ConfigurationError: one line with the variable, its value and the remedy.
    """

    def __init__(self, environment: Mapping[str, str], prefix: str = "") -> None:
        self._environment = environment
        self._prefix = prefix

    def read(self, setting: Setting) -> Any:
        """Return the value of a setting, or its default."""
        return self.value(setting.variable, setting.kind, setting.default)

    def value(self, name: str, kind: Kind[T], default: Any = MISSING) -> T:
        """Return the value of a variable. A secret may be in the file that NAME_FILE names."""
        variable = self.variable(name)
        text = self._environment.get(variable, "")
        if kind.is_secret:
            variable, text = self._secret(name)
        if not text:
            if default is MISSING:
                raise ConfigurationError(f"{name} is not set; set it in the environment or run through `make`")
            fallback: T = default
            return fallback
        if "\0" in text:
            raise ConfigurationError(f"{variable} has a NUL character; type it again")
        try:
            return kind.value(text)
        except Unfit as exc:
            shown = without_login(text) if ":" in text else text
            raise ConfigurationError(f"{variable}{'' if kind.is_secret else f'={shown!r}'}: {exc}") from exc

    def is_set(self, name: str) -> bool:
        """True if the variable, or that of its file, is set and not empty."""
        return any(self._environment.get(self.variable(each)) for each in (name, f"{name}_FILE"))

    def variable(self, name: str) -> str:
        """Return the name of the variable that has the value: the one with the prefix if it is set."""
        return self._prefix + name if self._environment.get(self._prefix + name) else name

    def require_unset(self, names: Iterable[str], why: str) -> None:
        """Raise ConfigurationError for one that is set; `why` follows these words in the message."""
        for name in filter(self.is_set, names):
            raise ConfigurationError(f"{self.variable(name)} is set{why}")

    def require_pair(self, certificate: str, key: str, whose: str) -> bool:
        """True if both are set. Raises ConfigurationError if one of them is; `whose` is for the message."""
        found = [name for name in (certificate, key) if self.is_set(name)]
        if len(found) == 1:
            missing = key if found == [certificate] else certificate
            raise ConfigurationError(f"{missing} is not set; {whose} certificate and its key go together")
        return bool(found)

    def require_readable(self, *names: str) -> None:
        """Raise ConfigurationError for a file that this process cannot read; one that is not set does not matter."""
        for name in filter(self.is_set, names):
            require_readable(self.variable(name), self.value(name, PATH))

    def require_known(self, settings: type) -> None:
        """Raise ConfigurationError for a variable with the prefix that is none of the settings."""
        known = {name for each in settings_of(settings) for name in each.variables}
        for variable in sorted(self._environment):
            name = variable.removeprefix(self._prefix)
            if name != variable and name not in known:
                raise ConfigurationError(f"{variable}: {name} is no setting of a pipeline; remove or correct it")

    def _secret(self, name: str) -> tuple[str, str]:
        for variable in dict.fromkeys((self._prefix + name, name)):
            text, path = (self._environment.get(each, "") for each in (variable, f"{variable}_FILE"))
            if text and path:
                raise ConfigurationError(f"{variable} and {variable}_FILE are both set; remove one of them")
            if text or path:
                return variable, text or _content(f"{variable}_FILE", path)
        return name, ""


def without_login(url: str) -> str:
    """Return a URL for messages: with *** in place of a user and a password. Of several URLs, the last one is shown."""
    return _LOGIN.sub(r"\1***@", url)


def require_readable(variable: str, path: Path) -> None:
    """Raise ConfigurationError if this process cannot read the file that the variable names."""
    try:
        path.open("rb").close()
    except OSError as exc:
        raise ConfigurationError(
            f"{variable}={str(path)!r}: cannot be read ({exc.strerror}); correct the path or the file's rights"
        ) from exc


def _content(variable: str, path: str) -> str:
    """Return the secret in a file. One line end at its end is no part of it."""
    try:
        content = Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not text in UTF-8"
        raise ConfigurationError(
            f"{variable}={path!r}: cannot be read ({reason}); correct the path, the file or its rights"
        ) from exc
    if not content:
        raise ConfigurationError(f"{variable}={path!r}: the file is empty; write the secret into it")
    return content
