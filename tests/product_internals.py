"""What tests look at inside the product: one function for each thing that is not public.

A test that compares released numbers with what is protected, or with the noise alone, must see
both. It asks here, so that a private attribute which gets another name is changed in one place.
`tests/docs/test_private_names.py` counts the private attributes that tests read themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evercount.engine import build, noise_choice, worst_errors
from evercount.noise import normal_sampler


def noise_parts(stream: Any) -> Any:
    """Return how a stream draws its noise: key, scale and source."""
    return stream._parameters.noise


def noise_source(stream: Any) -> Any:
    """Return the source that draws the noise of a stream, tick by tick."""
    return noise_parts(stream).stream


def noise_key(stream: Any) -> Any:
    """Return the secret from which the noise of a stream follows."""
    return noise_parts(stream).key


def inner_state(stream: Any) -> Any:
    """Return what a stream, or an encoder, keeps of its events: it is not protected."""
    return stream._state


def true_totals(stream: Any) -> Any:
    """Return the sums of a stream before noise is added."""
    return inner_state(stream).totals


def error_model(owner: Any) -> Any:
    """Return the error model of a stream, of its releases or of a view."""
    return owner._errors


def run_of(release: Any) -> Any:
    """Return the releases to which the release of one tick belongs."""
    return release._run


def cell_errors(release: Any) -> Any:
    """Return the errors of the cells from which the release of one tick is computed."""
    return run_of(release)._cells


def sums_of(owner: Any) -> Any:
    """Return the noisy sums of releases, or the sums of reports in a server of local privacy."""
    return owner._sums


def half_widths(view: Any, *level: float) -> Any:
    """Return how far the intervals of a view reach, before they are cut to legal values."""
    return view._half_widths(*level)


def symmetric_half_widths(releases: Any, level: float) -> Any:
    """Return how far the intervals of releases reach, before they are cut to legal values."""
    return releases._symmetric(level)


def limits(releases: Any, level: float) -> Any:
    """Return the ends of the intervals of all outputs, of keys that are not public, too."""
    return releases._limits(level)


def splits(bridge: Any, ticks: Any) -> Any:
    """Return the levels of a bridge from the whole span down to these ticks."""
    return bridge._descend(ticks)


def value_change_bound(query: Any) -> Any:
    """Return how far one changed value can change the sums of a query."""
    return query._value_change_bound()


CHOICES = noise_choice._least_error


def noise_choices() -> int:
    """Return how many noises were chosen and are remembered."""
    return CHOICES.cache_info().currsize


def forget_fitted_noise() -> None:
    """Forget every noise that was chosen or fitted in this process."""
    modules = (noise_choice, worst_errors)
    named = {module.__name__ for module in modules}
    functions = [value for module in modules for value in vars(module).values()]
    own = [function for function in functions if getattr(function, "__module__", "") in named]
    for function in (*own, build._fitted):
        getattr(function, "cache_clear", lambda: None)()  # a test may have replaced it


def replace_parameters(stream: Any, **changes: Any) -> None:
    """Give a stream other parameters: another noise, or another error model."""
    stream._parameters = replace(stream._parameters, **changes)


def secret_of(owner: Any) -> Any:
    """Return the secret of a client, a counter or a source of noise."""
    return owner._secret


def source_of(noise: Any) -> Any:
    """Return what a stream of Laplace noise draws from."""
    return noise._source


def rounding_coins(noise: Any) -> Any:
    """Return the coins by which a bridge rounds halves."""
    return noise._up


def lake_table(lake: Any) -> Any:
    """Return the table of Delta or Iceberg behind a lake."""
    return lake._table


def takes_keys(query: Any) -> bool:
    """Return whether the events of a query about persons have keys."""
    return bool(query.people._keyed)


def tables_of_normals() -> Any:
    """Return the table by which normals are drawn fast, and its edges."""
    return normal_sampler._tables()
