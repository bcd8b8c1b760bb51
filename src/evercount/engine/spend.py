"""A stream spends its budget from a ledger when it is built.

The order is: build, record the spend durably, hand the stream over. Nothing can be released before the constructor
returns, so whatever is released was recorded before. A crash in between leaves the budget spent and no stream: the safe
side. It is not given back, not even to a retry with the same secret: nobody can tell a stream that was lost before its
first release from one that was lost after it, and a second stream with the same noise over other data would reveal the
difference. A retry with a new secret spends again. `Stream.restore` spends nothing: its stream has spent already.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from evercount.errors import ParameterError
from evercount.noise import Secret, random_bytes
from evercount.privacy import Entry, Ledger

if TYPE_CHECKING:
    from evercount.engine.stream import Stream


def spend_for(stream: Stream, ledger: Ledger, secret: Secret | None) -> Entry:
    """Record the stream in the ledger, or raise BudgetExceeded.

    **Guarantee.** The entry is calibrated as the stream is. Test:
    `tests/engine/test_stream_ledger.py::test_a_stream_spends_exactly_its_budget`.
    """
    if not isinstance(ledger, Ledger):
        raise ParameterError(f'ledger must be a Ledger, such as Ledger(path="all.ledger"), got {ledger!r:.80}')
    identifier = identify(stream, secret)
    return ledger.spend(f"{stream.query.name} {identifier[:12]}", stream.cost, stream=identifier)


def identify(stream: Stream, secret: Secret | None) -> str:
    """The same for two streams with one secret and one declaration, else random; it tells nothing about the secret."""
    if secret is None:
        return random_bytes(16).hex()
    declared = {
        "query": stream.query.named(),
        "budget": stream.budget.to_dict(),
        "horizon": stream.horizon,
        "factorization": stream.factorization.name,
        "range": None if stream.during is None else stream.during.key,
    }
    key = bytes.fromhex(secret.derive("identifier in a ledger").hex())
    text = json.dumps(declared, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16, key=key, person=b"evercount.stream").hexdigest()
