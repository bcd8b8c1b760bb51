"""Import it to have the noise of the streams in `killed_interfaces` fitted: processes that are
forked afterwards need not fit it again."""

from __future__ import annotations

from killed_interfaces import KINDS, events_of, library_releases

for kind in KINDS:
    library_releases(kind, events_of(0))
