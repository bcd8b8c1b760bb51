"""Released graphs that keep every cut: the query, and the graph that it publishes."""
