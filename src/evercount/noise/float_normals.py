"""Fast floating-point normals for simulation. Not private: see `FloatNoise`."""

from __future__ import annotations

from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import ParameterError, SnapshotError
from evercount.noise.exact_normals import as_integer, check_block_size


class FloatNoise:
    """Standard normals as doubles, from a seedable sequential generator. For simulation only.

    Insecure for a real release, for two reasons. The doubles that such a sampler can return have gaps, and
    which doubles can be reached after adding a count depends on that count: one released number can rule out
    a neighbouring data set for certain (Mironov 2012, "On significance of the least significant bits for
    differential privacy"). And the generator is not cryptographic: its outputs can reveal its state, hence
    all noise. `ExactNoise` has neither fault.

    Draws are requested in order; splitting a request into smaller ones gives the same numbers.

    Args:
        seed: An integer ≥ 0 for reproducible numbers; None for a seed from the operating system.

    Raises:
        ParameterError: The seed is anything else.

    >>> noise = FloatNoise(seed=7)
    >>> noise.normals(0, 3, cells=2).shape
    (3, 2)
    >>> noise.position
    3
    """

    name = "insecure-float"

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
            raise ParameterError(f"seed must be None or an integer ≥ 0, not {seed!r}")
        self._generator = np.random.Generator(np.random.SFC64(seed))  # the fastest of numpy's generators for normals
        self._position = 0

    @property
    def position(self) -> int:
        """The draw that comes next."""
        return self._position

    def normals(self, start: int, stop: int, cells: int, out: FloatArray | None = None) -> FloatArray:
        """The next draws.

        Args:
            start: The first draw; it must be `position`.
            stop: One past the last draw.
            cells: Numbers for each draw.
            out: A C-contiguous float64 array that receives them; None allocates one.

        Returns:
            Standard normals of shape (stop − start, cells).

        Raises:
            ParameterError: The draws are out of order, a size is negative or `out` does not fit.
            TooLarge: More than 2^31 numbers at once.
        """
        start, stop, cells = as_integer("start", start), as_integer("stop", stop), as_integer("cells", cells)
        if start != self._position:
            raise ParameterError(
                f"float noise is drawn in order: draw {self._position} comes next, draw {start} was requested"
            )
        if stop < start or cells < 0:
            raise ParameterError(f"cannot draw {stop - start} × {cells} numbers: neither may be negative")
        check_block_size(stop - start, cells)
        shape = (stop - start, cells)
        if out is None:
            out = np.empty(shape)
        elif out.shape != shape or out.dtype != np.float64 or not out.flags.c_contiguous:
            raise ParameterError(f"out must be a C-contiguous float64 array of shape {shape}, not {out.shape}")
        self._generator.standard_normal(out=out)
        self._position = stop
        return out

    def state(self) -> dict[str, Any]:
        """Everything that the next draws depend on, JSON-serialisable. `from_state` is the inverse.

        Returns:
            The state. It gives the next numbers away.
        """
        inner = self._generator.bit_generator.state
        words = [int(word) for word in inner["state"]["state"]]
        return {"name": self.name, "generator": "SFC64", "position": self._position, "words": words}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> FloatNoise:
        """The generator that `state()` describes; it continues with the same numbers.

        Args:
            state: A result of `state()`.

        Returns:
            The generator.

        Raises:
            SnapshotError: It is anything else.
        """
        try:
            words, position = state["words"], state["position"]
            known = state["name"] == cls.name and state["generator"] == "SFC64"
            good = (
                known
                and type(position) is int
                and position >= 0
                and len(words) == 4
                and all(type(word) is int and 0 <= word < 2**64 for word in words)
            )
        except (KeyError, TypeError) as error:
            raise SnapshotError(f"not a state of {cls.name} noise: {error!r}") from error
        if not good:
            raise SnapshotError(f"not a state of {cls.name} noise, or of another version")
        noise = cls(0)
        inner: dict[str, Any] = dict(noise._generator.bit_generator.state)
        inner["state"] = {"state": np.array(words, dtype=np.uint64)}
        noise._generator.bit_generator.state = inner
        noise._position = position
        return noise
