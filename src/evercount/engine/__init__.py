"""The engine: a stream, its noise and its releases. The flow of one tick is on the page of
`stream.py`."""
