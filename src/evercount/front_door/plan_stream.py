"""`plan`: which error will the numbers have? For the options of `declare`, before anything is counted or spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from evercount.front_door.declare_stream import Declared, check_declaration, declare, with_options

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.planning.plan_views import ViewPlan


@with_options(Declared)
def plan(declaration: StreamDeclaration | None = None, **options: Unpack[Declared]) -> ViewPlan:
    """Which error will the numbers have? The std of each view, with every noise that a stream may have.

    Nothing is counted and nothing is spent: it follows from the declaration alone. Columns of the data may be left out.

    Args:
        declaration: The stream, instead of the options of `declare`.
        options: Those of `declare`: `every`, `epsilon`, `views` and so on.

    Returns:
        A table: the noise that is chosen first, then the others. `to_pandas` and `to_polars` give it away.

    Raises:
        ParameterError: An option is missing or not legal, or the query has no views.

    >>> plan(every="1d", zone="UTC", epsilon=1, horizon=365, views=["per-tick", "running"])
    noise           delta  per-tick  running  twice: epsilon
    fresh (chosen)      0      1.36    25.92            2.00
    ...
    """
    from evercount.declarations.unit_periods import with_period_ticks
    from evercount.declarations.view_names import noise_views
    from evercount.planning.plan_views import plan_views

    if declaration is None:
        if options.get("time") is None:
            options["time"] = "time"
        declaration = declare(**options)
    check_declaration(declaration)
    asked, schedule = declaration.asked, declaration.schedule
    names = declaration.views or declaration.noise_for
    views = {name: view for name in names for view in noise_views([name], schedule)}
    return plan_views(with_period_ticks(asked.budget, schedule), declaration.horizon, views, declaration.query)
