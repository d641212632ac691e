"""Access tokens: which are accepted, with which rights, and hostile ones."""

import asyncio
import base64
import hashlib
import hmac
import time
from functools import cache

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm

from include.gateway.auth.issuer_keys import IssuerKeys, parse_keys
from include.gateway.auth.token_file import Entry
from include.gateway.auth.tokens import AccessTokens, Tokens
from include.gateway.http.message import Fault
from include.runtime.settings import OidcSettings
from tests.support.issuer import AUDIENCE, SigningKey, claims_of, encoded, first_key
from tests.support.messages import NO_KEY_SET

ISSUER = "https://login.example.com/realms/shop"
SETTINGS = OidcSettings(ISSUER, AUDIENCE, leeway_s=30)
KEY = first_key()
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class Keys:
    """A key source in memory."""

    def __init__(self, *keys):
        self.jwks = [key.jwk if isinstance(key, SigningKey) else key for key in keys]

    async def fetch(self):
        return {"keys": self.jwks}


def accepting(*keys, entries=()):
    """Tokens that accept those signed by the keys."""

    async def main():
        issuer_keys = IssuerKeys(Keys(*keys), 300)
        await issuer_keys.fetch()
        return Tokens(entries, access_tokens=AccessTokens(SETTINGS, issuer_keys))

    return asyncio.run(main())


@cache
def of_the_test():
    """The tokens of a test, made with it: keys that were fetched long ago are asked for again."""
    return accepting(KEY)


@pytest.fixture(autouse=True)
def fresh():
    of_the_test.cache_clear()


def require(token, access="data", topic="board", tokens=None):
    token = token.encode("latin-1") if isinstance(token, str) else token
    return (tokens or of_the_test()).require(b"Bearer " + token, access, topic)


def refusal(token, access="data", topic="board", tokens=None):
    with pytest.raises(Fault) as caught:
        require(token, access, topic, tokens)
    challenge = dict(caught.value.headers).get(b"www-authenticate", b"").decode()
    return caught.value.status, caught.value.error, challenge


def token(**claims):
    """A token with these claims; a function gives its value when the test runs."""
    return KEY.token(
        claims_of(ISSUER, **{name: value() if callable(value) else value for name, value in claims.items()})
    )


def in_s(seconds):
    return lambda: int(time.time()) + seconds


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_signature_of_each_algorithm_is_accepted(algorithm):
    key = SigningKey("k", algorithm, KEY.private if algorithm[0] in "RP" else None)
    assert require(key.token(claims_of(ISSUER)), tokens=accepting(key)) == "oidc:shop"


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ("gateway:topic:board", {"board", "data"}),
        ("openid gateway:topic:member profile", {"member", "data"}),
        ("gateway:topic:*", {"board", "member", "order", "data"}),
        ("gateway:admin", {"admin"}),
        ("gateway:topic:board gateway:admin", {"board", "data", "admin"}),
        ("", set()), (None, set()), ("board", set()), ("*", set()), ("admin", set()), ("gateway:topic:", set()),
        ("GATEWAY:TOPIC:BOARD", set()), ("gateway:topic:board,gateway:admin", set()), ("gateway:topic:boards", set()),
        (["gateway:admin"], set()), (7, set()),
    ],
)  # fmt: skip
def test_scopes_are_the_rights_of_tokens(scope, allowed):
    given = token(scope=scope)
    calls = {"admin": ("admin", None), "data": ("data", None), **{t: ("data", t) for t in ("board", "member", "order")}}
    for name, call in calls.items():
        if name in allowed:
            assert require(given, *call) == "oidc:shop"
            continue
        wanted = {"admin": "gateway:admin", "data": "gateway:topic:*"}.get(name, f"gateway:topic:{name}")
        status, _, challenge = refusal(given, *call)
        assert (status, challenge) == (403, f'Bearer error="insufficient_scope", scope="{wanted}"')


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({}, "oidc:shop"),
        ({"client_id": None, "azp": "shop-2"}, "oidc:shop-2"),
        ({"client_id": None}, "oidc:user-1"),
        ({"sub": None}, "oidc:shop"),
        ({"aud": ["other", AUDIENCE]}, "oidc:shop"),
        ({"exp": in_s(-10)}, "oidc:shop"),  # within the leeway
        ({"nbf": in_s(10)}, "oidc:shop"),
    ],
)
def test_the_client_of_a_valid_token(claims, name):
    assert require(token(**claims)) == name


def test_the_name_is_never_that_of_a_token_of_the_file():
    tokens = accepting(KEY, entries=[Entry("shop", (hashlib.sha256(b"secret").hexdigest(),), ("*",))])
    assert require(token(client_id="shop"), tokens=tokens) == "oidc:shop"
    assert require("secret", tokens=tokens) == "shop"


CLAIMS = [
    ({"aud": "other"}, "the token is for another audience"),
    ({"aud": None}, "the token lacks a claim that is required"),
    ({"aud": []}, "the token lacks a claim that is required"),
    ({"aud": AUDIENCE.upper()}, "the token is for another audience"),
    ({"aud": {"the-gateway": 1}}, None),
    ({"iss": "https://evil.example.com"}, "the token is from another issuer"),
    ({"iss": ISSUER + "/"}, "the token is from another issuer"),
    ({"iss": None}, "the token lacks a claim that is required"),
    ({"iss": [ISSUER]}, None),
    ({"exp": in_s(-3600)}, "the token has expired"),
    ({"exp": None}, "the token lacks a claim that is required"),
    ({"exp": "soon"}, None),
    ({"exp": float("inf")}, None),
    ({"exp": float("nan")}, None),
    ({"exp": -1}, "the token has expired"),
    ({"exp": [4_000_000_000]}, None),
    ({"nbf": in_s(3600)}, "the token is not valid yet"),
    ({"nbf": "now"}, None),
    ({"iat": in_s(3600)}, "the token is not valid yet"),
    ({"iat": {}}, None),
    ({"client_id": 7}, "the token names no client"),
    ({"client_id": "two words"}, "the token names no client"),
    ({"client_id": "x" * 129}, "the token names no client"),
    ({"client_id": "line\nbreak"}, "the token names no client"),
    ({"client_id": "한국"}, "the token names no client"),
    ({"client_id": None, "sub": None}, "the token names no client"),
    ({"sub": 7}, None),
]


@pytest.mark.parametrize(("claims", "why"), CLAIMS)
def test_claims_that_are_refused(claims, why):
    status, error, challenge = refusal(token(**claims))
    assert status == 401
    assert why is None or error == why
    assert challenge == f'Bearer error="invalid_token", error_description="{error}"'


def hs256(header, payload, secret):
    signed = f"{encoded(header)}.{encoded(payload)}"
    return f"{signed}.{encoded(hmac.new(secret, signed.encode(), 'sha256').digest())}"


PUBLIC_PEM = KEY.private.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
OTHER = SigningKey("first")  # another key with the same id
RIGHT = {"alg": "RS256", "typ": "at+jwt", "kid": "first"}


def changed_payload(**changes):
    head, _, signature = token().split(".")
    return f"{head}.{encoded(claims_of(ISSUER, **changes))}.{signature}"


HOSTILE = {
    "no algorithm": lambda: f"{encoded({**RIGHT, 'alg': 'none'})}.{encoded(claims_of(ISSUER))}.",
    "None": lambda: f"{encoded({**RIGHT, 'alg': 'None'})}.{encoded(claims_of(ISSUER))}.",
    "no algorithm with a signature": lambda: KEY.token(claims_of(ISSUER), alg="none"),
    "without alg": lambda: KEY.token(claims_of(ISSUER), alg=None),
    "alg is a list": lambda: KEY.token(claims_of(ISSUER), alg=["RS256"]),
    "HS256 with the public key as secret": lambda: hs256({**RIGHT, "alg": "HS256"}, claims_of(ISSUER), PUBLIC_PEM),
    "HS256 with the modulus as secret": lambda: hs256(
        {**RIGHT, "alg": "HS256"}, claims_of(ISSUER), KEY.jwk["n"].encode()
    ),
    "HS256 with an empty secret": lambda: hs256({**RIGHT, "alg": "HS256"}, claims_of(ISSUER), b""),
    "HS256 that says RS256": lambda: hs256(RIGHT, claims_of(ISSUER), PUBLIC_PEM),
    "ES256 for an RSA key": lambda: SigningKey("first", "ES256").token(claims_of(ISSUER)),
    "another key with the same id": lambda: OTHER.token(claims_of(ISSUER)),
    "the key in the header": lambda: OTHER.token(claims_of(ISSUER), jwk=OTHER.jwk),
    "the address of keys in the header": lambda: OTHER.token(claims_of(ISSUER), jku="http://127.0.0.1:9/keys"),
    "a certificate in the header": lambda: OTHER.token(claims_of(ISSUER), x5c=["MIIB"], x5u="http://127.0.0.1:9/"),
    "kid is a path": lambda: KEY.token(claims_of(ISSUER), kid="../../../../dev/null"),
    "kid is SQL": lambda: KEY.token(claims_of(ISSUER), kid="' OR '1'='1"),
    "kid is empty": lambda: KEY.token(claims_of(ISSUER), kid=""),
    "kid is a URL": lambda: KEY.token(claims_of(ISSUER), kid="http://127.0.0.1:9/"),
    "kid has a NUL": lambda: KEY.token(claims_of(ISSUER), kid="first\0"),
    "kid is a number": lambda: KEY.token(claims_of(ISSUER), kid=1),
    "without kid": lambda: KEY.token(claims_of(ISSUER), kid=None),
    "critical extension": lambda: KEY.token(claims_of(ISSUER), crit=["exp"], exp=1),
    "an id token": lambda: KEY.token(claims_of(ISSUER), typ="id+jwt"),
    "a logout token": lambda: KEY.token(claims_of(ISSUER), typ="logout+jwt"),
    "typ is a list": lambda: KEY.token(claims_of(ISSUER), typ=["at+jwt"]),
    "changed payload": lambda: changed_payload(scope="gateway:admin"),
    "without its signature": lambda: token().rpartition(".")[0] + ".",
    "signature cut short": lambda: token()[:-8],
    "nothing but dots": lambda: "..",
    "garbage": lambda: "a.b.c",
    "header is an array": lambda: KEY.signed([], claims_of(ISSUER)),
    "header is no JSON": lambda: KEY.signed(b"{", claims_of(ISSUER)),
    "payload is an array": lambda: KEY.signed(RIGHT, b"[]"),
    "payload is no JSON": lambda: KEY.signed(RIGHT, b"{"),
    "payload is deep": lambda: KEY.signed(RIGHT, b'{"exp":' + b"[" * 5000),
    "payload has a huge number": lambda: KEY.signed(RIGHT, b'{"exp":' + b"9" * 5000 + b"}"),
    "header is deep": lambda: KEY.signed(b"[" * 5000, claims_of(ISSUER)),
    "huge": lambda: token(more="x" * 9000),
    "encrypted": lambda: "a.b.c.d.e",
    "not ASCII": lambda: token() + "é",
    "with spaces": lambda: token().replace(".", ". "),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokens_are_401(name):
    # twice: what was asked for before must not be remembered as valid
    for _ in range(2):
        status, error, challenge = refusal(HOSTILE[name](), access="admin", topic=None)
        # the first unknown key id may be looked up at the issuer
        assert (status, error in challenge) == (401, True), name


def test_the_table_fails_for_its_own_reasons():
    assert require(token(scope="gateway:admin"), "admin", None) == "oidc:shop"
    assert require(KEY.signed(RIGHT, claims_of(ISSUER))) == "oidc:shop"
    assert require(KEY.token(claims_of(ISSUER), typ="JWT")) == "oidc:shop"
    assert require(KEY.token(claims_of(ISSUER), typ=None)) == "oidc:shop"


@given(st.data())
def test_no_changed_character_is_accepted(data):
    good = token(scope="gateway:admin")
    at = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.characters(codec="latin-1").filter(lambda character: character != good[at]))
    changed = good[:at] + other + good[at + 1 :]
    # the last character of a part has bits that base64 ignores: the same bytes are the same token
    if [_bytes(part) for part in changed.split(".")] == [_bytes(part) for part in good.split(".")]:
        return
    assert refusal(changed, access="admin", topic=None)[0] == 401


def _bytes(part):
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        return part


@given(st.binary(max_size=200) | st.tuples(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60)).map(
    lambda parts: ".".join(encoded(part) for part in parts).encode()))  # fmt: skip
def test_any_bytes_are_a_401(data):
    assert refusal(data)[0] == 401


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "client_id", "azp", "scope", "jti"]),
                       json_values))  # fmt: skip
def test_any_claims_of_the_issuer_are_a_401_or_403_unless_all_that_counts_is_right(claims):
    given = KEY.token({**claims_of(ISSUER), **claims})
    name, status = "", 0
    try:
        name = require(given)
    except Fault as exc:
        status = exc.status
    if status:
        assert status in (401, 403)
        return
    assert name.startswith("oidc:")
    merged = {**claims_of(ISSUER), **claims}
    assert merged["iss"] == ISSUER
    assert merged["aud"] == AUDIENCE or AUDIENCE in merged["aud"]
    assert "gateway:topic:board" in merged["scope"].split(" ")


def test_a_token_is_verified_once_and_again_when_it_has_expired(monkeypatch):
    tokens, verified = accepting(KEY), []
    real = jwt.decode
    monkeypatch.setattr(jwt, "decode", lambda *args, **more: verified.append(1) or real(*args, **more))
    given = token()
    assert [require(given, tokens=tokens) for _ in range(3)] == ["oidc:shop"] * 3
    assert len(verified) == 1
    late = time.time() + 10_000
    monkeypatch.setattr(time, "time", lambda: late)
    require(given, tokens=tokens)  # by PyJWT's own clock it has not expired
    assert len(verified) == 2


def test_remembered_tokens_are_bounded(monkeypatch):
    monkeypatch.setattr("include.gateway.auth.tokens._MAX_REMEMBERED", 3)
    tokens = accepting(KEY)
    for number in range(6):
        require(token(jti=str(number)), tokens=tokens)
    assert len(tokens._access_tokens._remembered) == 3


def short_rsa():
    private = rsa.generate_private_key(65_537, 1024)
    return {**RSAAlgorithm.to_jwk(private.public_key(), as_dict=True), "kid": "short"}


@pytest.mark.parametrize(
    "unusable",
    [
        {"kty": "oct", "k": encoded(b"secret" * 8), "kid": "k"},
        {"kty": "oct", "k": encoded(b"secret" * 8), "kid": "k", "alg": "HS256"},
        {**KEY.jwk, "kid": "k", "use": "enc"},
        {**KEY.jwk, "kid": "k", "key_ops": ["encrypt"]},
        {**KEY.jwk, "kid": "k", "alg": "HS256"},
        {**KEY.jwk, "kid": "k", "alg": "none"},
        {**KEY.jwk, "kid": "k", "alg": "ES256"},
        {**KEY.jwk, "kid": "k", "alg": ["RS256"]},
        {**SigningKey("k", "ES512").jwk, "alg": "ES256"},
        {**RSAAlgorithm.to_jwk(KEY.private, as_dict=True), "kid": "k"},
        {**KEY.jwk, "kid": "k", "kty": "EC"},
        {**KEY.jwk, "kid": "k", "n": 7},
        {**KEY.jwk, "kid": "k", "n": "!"},
        {**KEY.jwk, "kid": "k", "d": "AQAB"},
        {**KEY.jwk, "kid": 7},
        {**KEY.jwk, "kid": ""},
        {**KEY.jwk, "kid": "x" * 300},
        {name: value for name, value in KEY.jwk.items() if name != "kid"},
        {"kty": "EC", "crv": "secp256k1", "x": "AQ", "y": "AQ", "kid": "k"},
        {"kty": ["RSA"], "kid": "k"}, {}, None, 7, "key", short_rsa(),
    ],
)  # fmt: skip
def test_unusable_keys_are_left_out_and_the_others_count(unusable):
    assert parse_keys({"keys": [unusable, KEY.jwk]}).keys() == {"first"}


@pytest.mark.parametrize("document", [None, [], {}, {"keys": None}, {"keys": {}}, "keys", 7])
def test_what_is_no_key_set_is_an_error(document):
    with pytest.raises(ValueError, match=NO_KEY_SET):
        parse_keys(document)


def test_a_key_that_names_its_algorithm_verifies_no_other():
    key = SigningKey("first", "RS256", KEY.private)
    key.jwk["alg"] = "RS512"
    assert refusal(key.token(claims_of(ISSUER)), tokens=accepting(key))[1] == "the key is for another algorithm"
