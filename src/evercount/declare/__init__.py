"""What an operator declares about a stream: query, budget, schedule, columns, late rule."""

try:
    import pydantic as pydantic
except ImportError as error:
    from evercount.errors import MissingExtra

    raise MissingExtra("A declaration", "cli") from error
