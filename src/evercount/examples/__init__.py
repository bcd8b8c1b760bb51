"""Bundled example data, all of it synthetic."""
