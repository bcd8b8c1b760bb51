"""Whole lives of streams under attack: random declarations, events and operations, every way in.

    draw_life ─► Life ─► a way in, in two worlds ─► Record, Record ─► judge ─► Find
                  └────► neighbours, from the words of the guarantee

A life runs once for each world, with one secret: noise cancels, and what is left of the difference
of all that was published is priced against what was stated (`verdict.py`).
"""
