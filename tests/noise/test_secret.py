"""Secrets: drawn by the operating system, shown by hex() only."""

from __future__ import annotations

import copy
import hashlib
import pickle
import sys

import pytest

from evercount.errors import ParameterError
from evercount.noise import ExactNoise, Secret

KEY = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"


def appearances(secret: object) -> list[str]:
    return [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r}",
        repr([secret]),
    ]


def test_generate_gives_256_fresh_bits() -> None:
    keys = {Secret.generate().hex() for _ in range(50)}
    assert len(keys) == 50
    assert all(len(bytes.fromhex(text)) == 32 for text in keys)


def test_hex_round_trip() -> None:
    assert Secret.from_hex(KEY).hex() == KEY
    assert Secret.from_hex(KEY.upper()) == Secret.from_hex(KEY)


@pytest.mark.parametrize("holder", [lambda s: s, ExactNoise], ids=["secret", "noise"])
def test_repr_str_and_format_never_show_the_key(holder: object) -> None:
    shown = appearances(holder(Secret.from_hex(KEY)))  # type: ignore[operator]
    for text in shown:
        assert "Secret(…)" in text
        for length in (8, 16):
            assert not any(KEY[i : i + length] in text for i in range(0, 64, length))
    assert f"{Secret.from_hex(KEY):>80}" == "Secret(…)"
    assert not hasattr(Secret.from_hex(KEY), "__dict__")


@pytest.mark.parametrize(
    "text",
    [
        "",
        KEY[:-1],
        KEY + "0",
        KEY[:-1] + "g",
        " " + KEY[1:],
        KEY[:31] + " " + KEY[32:],
        b"\0" * 64,
        None,
    ],
)
def test_from_hex_refuses_and_does_not_repeat_the_text(text: object) -> None:
    with pytest.raises(ParameterError) as caught:
        Secret.from_hex(text)  # type: ignore[arg-type]
    assert KEY[8:24] not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    frame = caught.tb
    while frame.tb_next is not None:
        frame = frame.tb_next
    assert frame.tb_frame.f_code.co_name == "from_hex"
    assert all(KEY[8:24] not in repr(value) for value in frame.tb_frame.f_locals.values())


def test_errors_inside_the_room_carry_no_key() -> None:
    secret = Secret.from_hex(KEY)
    for action in (
        lambda: secret.derive(""),
        lambda: pickle.dumps(secret),
        lambda: ExactNoise(secret).normals(-1, 0, 1),
    ):
        try:
            action()
        except ParameterError:
            _, error, trace = sys.exc_info()
        else:
            pytest.fail("no error")
        assert KEY[:8] not in str(error)
        while trace is not None:
            if (
                "evercount" in trace.tb_frame.f_code.co_filename
                and "test_" not in trace.tb_frame.f_code.co_filename
            ):
                assert KEY[:8] not in repr(trace.tb_frame.f_locals)
                assert repr(bytes.fromhex(KEY))[2:20] not in repr(trace.tb_frame.f_locals)
            trace = trace.tb_next


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_is_refused(protocol: int) -> None:
    secret = Secret.from_hex(KEY)
    for thing in (secret, {"deep": [secret]}, ExactNoise(secret)):
        with pytest.raises(ParameterError):
            pickle.dumps(thing, protocol)


def test_copies_are_the_same_secret() -> None:
    secret = Secret.generate()
    assert copy.copy(secret) == secret
    assert copy.deepcopy({"a": secret})["a"] == secret


def test_immutable_unhashable_and_not_constructed_directly() -> None:
    secret = Secret.generate()
    with pytest.raises(AttributeError):
        secret._Secret__key = b""  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        hash(secret)
    with pytest.raises(ParameterError):
        Secret()


def test_equality() -> None:
    secret = Secret.from_hex(KEY)
    assert secret == Secret.from_hex(KEY)
    assert secret != Secret.from_hex(KEY[:-1] + "e")
    assert secret != KEY
    assert secret != bytes.fromhex(KEY)


def test_derive_is_keyed_blake2b_and_separates_labels() -> None:
    secret = Secret.from_hex(KEY)
    digest = hashlib.blake2b(
        b"label", digest_size=32, key=bytes.fromhex(KEY), person=b"evercount.derive"
    )
    assert secret.derive("label").hex() == digest.hexdigest()
    labels = ["a", "b", "ab", "a/b", "a\0", "é"]
    assert len({secret.derive(label).hex() for label in labels} | {KEY}) == len(labels) + 1
    assert secret.derive("a").derive("b") != secret.derive("b").derive("a")
    for bad in ("", None, b"a"):
        with pytest.raises(ParameterError):
            secret.derive(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [None, KEY, bytes.fromhex(KEY), 7])
def test_exact_noise_takes_only_a_secret_and_does_not_repeat_it(bad: object) -> None:
    with pytest.raises(ParameterError) as caught:
        ExactNoise(bad)  # type: ignore[arg-type]
    assert KEY[:8] not in str(caught.value)
