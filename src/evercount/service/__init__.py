"""The HTTP service: events in, private releases out, live."""
