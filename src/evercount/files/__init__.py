"""Files and clocks: rows → ticks × cells → a release file that only grows. DuckDB does the
reading."""
