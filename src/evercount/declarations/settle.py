"""`settle`: the noise of a declared stream is chosen and fitted, once, when the stream begins.

A declaration says what the operator wants and may leave its noise open: any that is best for what
is shown. `settle` takes the noise with the least error, which for persons can take a minute, and
names it with all its public numbers. Whoever keeps the stream stores that; who goes on with the
stream reads it and compares declarations as data. So nothing is fitted twice, and on another
processor, where a fit ends at other last digits, a stream keeps its own numbers.
"""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Any, ClassVar, Self

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import table
from evercount.engine.build import RUNNING, Spec, choose_engine
from evercount.engine.build_parameters import choose_revised
from evercount.engine.carried_caps import check_hands_on
from evercount.engine.noise_choice import choose_noise
from evercount.errors import ParameterError
from evercount.privacy import Budget


@table("a stream's declaration")
class Settled(StreamDeclaration):
    """A declaration that leaves nothing open: the budget that its noise keeps, the numbers of that,
    what it is for.

    With δ = 0 for Laplace noise: that is what it promises, and what a ledger is asked for.

    >>> daily = StreamDeclaration.from_dict({"name": "flu", "query": "count", "tick": "1d",
    ...     "zone": "Europe/Vienna", "start": "2026-01-01",
    ...     "budget": {"epsilon": 1, "delta": 1e-9}})
    >>> daily.factorization, daily.noise_for, daily.budget.delta
    (None, (), 1e-09)
    >>> settled = settle(daily)
    >>> settled.factorization, settled.noise_for, settled.budget.delta
    ('fresh', ('per-tick',), 0.0)
    """

    _written: ClassVar[StreamDeclaration | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factorization is None or not self.noise_for:
            raise ParameterError(
                "a settled declaration names its noise, in factorization and noise_for"
            )

    @classmethod
    def of(
        cls, declaration: StreamDeclaration, budget: Budget, spec: Spec, noise_for: tuple[str, ...]
    ) -> Self:
        """The declaration with this noise."""
        written = _values(declaration)
        settled = cls(**written | {"budget": budget, "factorization": spec, "noise_for": noise_for})
        first = declaration.written if isinstance(declaration, Settled) else declaration
        return settled._changed(
            _written=first, earliest=declaration.earliest, first_name=declaration.first_name
        )

    @classmethod
    def _chosen(cls, declaration: StreamDeclaration) -> Self:
        """Choose and fit the noise."""
        query = declaration.query
        views = declaration.views_of_noise
        if declaration.revise_for is not None:
            post = declaration.stream_postprocess
            noise_for = declaration.noise_for
            budget, engine = choose_revised(
                query,
                declaration.budget,
                declaration.factorization,
                post,
                noise_for,
                declaration.revise_for,
            )
            return cls.of(declaration, budget, engine.spec, views)
        horizon = declaration.horizon
        budget, engine = choose_noise(
            query, declaration.budget, horizon, declaration.factorization, views
        )
        if declaration.carry_caps:
            check_hands_on(engine, query, budget, horizon)
        return cls.of(declaration, budget, engine.spec, views)

    @property
    def spec(self) -> Spec:
        """The noise by name, or with the public numbers that were fitted."""
        assert self.factorization is not None
        return self.factorization

    @property
    def views_of_noise(self) -> tuple[str, ...]:
        return self.noise_for

    @property
    def written(self) -> StreamDeclaration:
        """What the operator wrote; of one that is read back, which does not say that, itself."""
        if self._written is None:
            return self
        return self._written

    def unfitted(self) -> StreamDeclaration:
        """The declaration without the noise that was chosen for its horizon, for a stream with
        another one."""
        spec = self.factorization
        if self.noise_for == (RUNNING,) and self.revise_for is None:
            default = choose_engine(self.query, self.budget, self.horizon, None)
            if default.spec == spec:
                spec = None
        if isinstance(spec, dict):
            spec = None
        return StreamDeclaration(**_values(self) | {"factorization": spec})


def _values(declaration: StreamDeclaration) -> dict[str, Any]:
    """List the arguments of `StreamDeclaration`."""
    return {one.name: vars(declaration)[one.name] for one in fields_of(declaration) if one.init}


def settle(declaration: StreamDeclaration) -> Settled:
    """Choose and fit the noise of a declared stream, from public numbers only; of a settled one
    nothing is chosen."""
    if isinstance(declaration, Settled):
        return declaration
    return Settled._chosen(declaration)


def with_noise_of(declaration: StreamDeclaration, known: Settled) -> Settled:
    """The declaration with the noise of the stream that it declares again."""
    return Settled.of(declaration, known.budget, known.spec, known.noise_for)
