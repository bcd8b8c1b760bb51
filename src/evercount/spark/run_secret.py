"""The secret of a batch run, which executors compute for themselves: it never travels with a job."""

from __future__ import annotations

import os
from pathlib import Path

from evercount._safe_files import read_secret_file
from evercount.errors import ParameterError
from evercount.noise import Secret, random_bytes

VARIABLE, FILE_VARIABLE = "EVERCOUNT_SECRET", "EVERCOUNT_SECRET_FILE"


def root_secret() -> Secret:
    path, text = os.environ.get(FILE_VARIABLE), os.environ.get(VARIABLE)
    if path:
        text = read_secret_file(FILE_VARIABLE, Path(path))
    try:
        if text or path:
            return Secret.from_hex((text or "").strip())
    except ValueError as error:
        raise ParameterError(
            f"{FILE_VARIABLE if path else VARIABLE} holds no secret ({type(error).__name__}): write 64 hexadecimal "
            "digits, for example from `openssl rand -hex 32`"
        ) from None
    raise ParameterError(
        f"the driver and every executor need {FILE_VARIABLE} (a file with 64 hexadecimal digits) or {VARIABLE} in "
        "their environment: the secret of the noise never travels with a job"
    )


def new_run() -> str:
    return random_bytes(16).hex()


def run_secret(run: str) -> Secret:
    """The secret of one run.

    **Guarantee.** Runs with different names have independent noise, if keyed BLAKE2b is a pseudorandom function; so a
    job that is started again publishes no difference of two data sets, and its budget adds to that of the first. Every
    task of one run computes the same secret. Test: tests/spark/test_batch_release.py::test_two_runs_are_independent.
    """
    return root_secret().derive(f"evercount/spark/run/{run}")


def proof_of(secret: Secret) -> str:
    """A public text by which an executor knows that it has the driver's secret."""
    return secret.derive("evercount/spark/proof").hex()[:32]
