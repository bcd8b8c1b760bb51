"""State machines that turn increments into noisy running sums: noise streams, calibration,
snapshots."""

from __future__ import annotations

from evercount.mechanisms.calibrate import build_noise
from evercount.mechanisms.noise_stream import Noise, NoiseStream

__all__ = ["Noise", "NoiseStream", "build_noise"]
