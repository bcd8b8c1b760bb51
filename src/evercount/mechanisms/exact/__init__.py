"""Exact noise: correlated normals in fixed-point integers, with a proved distance from the ideal
mechanism."""
