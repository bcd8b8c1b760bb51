"""State machines that turn increments into noisy running sums: noise streams, calibration, snapshots."""

from __future__ import annotations

from evercount.mechanisms.base import NoiseStream
from evercount.mechanisms.build import NOISES, Noise, build_noise

__all__ = ["NOISES", "Noise", "NoiseStream", "build_noise"]
