"""The paper's own numbers, to stand beside ours: tables 1, 3, 6 and 8 of "Allocate Before You Embed"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MMEB_V2 = (
    "MSR-VTT",
    "MSVD",
    "DiDeMo",
    "YouCook2",
    "VATEX",
    "Video-MME",
    "NExTQA",
    "EgoSchema",
    "MVBench",
    "ActivityNetQA",
)
LONGRET = ("LoVR-Clip", "LoVR-Video", "Vript-Clip", "Vript-Video")


@dataclass(frozen=True)
class Published:
    """A line of a table: Hit@1 in percent by task, their mean as printed, and the cost in units of Base's."""

    hits: dict[str, float]
    average: float
    cost: float


def _lines(tasks: Sequence[str], *lines: tuple) -> dict[str, Published]:
    return {method: Published(dict(zip(tasks, hits, strict=True)), *rest) for method, hits, *rest in lines}


# fmt: off
RESULTS = {
    "vlm2vec-v2-2b": _lines(
        MMEB_V2,
        ("base", (28.30, 48.06, 30.38, 10.63, 26.46, 30.70, 20.92, 34.00, 33.70, 52.30), 31.55, 1.000),
        ("full", (31.90, 50.15, 33.07, 11.20, 30.77, 31.07, 21.28, 36.80, 34.15, 49.80), 33.02, 2.952),
        ("uniform", (25.80, 49.10, 31.87, 11.61, 28.20, 32.26, 21.54, 34.80, 34.25, 51.90), 32.13, 1.025),
        ("content", (26.40, 45.67, 31.87, 11.48, 27.78, 32.52, 21.19, 35.80, 33.50, 53.70), 31.99, 1.003),
        ("select", (26.80, 45.22, 30.68, 9.81, 25.10, 31.07, 20.95, 32.20, 33.62, 51.20), 30.67, 1.000),
        ("learned", (29.00, 48.66, 32.77, 12.05, 28.94, 32.56, 21.82, 38.60, 34.48, 53.20), 33.21, 0.943),
    ),
    "qwen3-vl-embedding-2b": _lines(
        MMEB_V2,
        ("base", (47.00, 68.21, 43.33, 23.28, 40.31, 50.48, 64.85, 57.80, 57.63, 73.60), 52.65, 1.000),
        ("full", (51.10, 71.49, 48.21, 28.22, 45.40, 53.56, 67.90, 62.40, 59.17, 75.40), 56.28, 2.923),
        ("uniform", (47.20, 67.91, 46.91, 25.86, 41.27, 53.93, 65.30, 57.60, 57.95, 73.70), 53.76, 1.002),
        ("content", (46.00, 68.66, 45.92, 24.91, 41.02, 52.93, 65.26, 54.80, 56.60, 74.00), 53.01, 1.038),
        ("select", (46.30, 65.67, 45.82, 22.84, 39.01, 50.93, 65.14, 58.40, 56.95, 72.40), 52.35, 1.000),
        ("learned", (50.20, 69.70, 47.61, 27.27, 43.52, 54.85, 63.70, 55.80, 56.97, 73.70), 54.33, 0.997),
    ),
}
"""Table 1."""

LONGRET_RESULTS = {
    "vlm2vec-v2-2b": _lines(
        LONGRET,
        ("base", (61.10, 74.09, 69.92, 77.26), 70.59, 1.000),
        ("full", (71.23, 83.73, 78.63, 84.59), 79.54, 2.997),
        ("uniform", (70.45, 82.66, 75.58, 84.76), 78.36, 1.016),
        ("content", (65.67, 80.09, 72.60, 84.21), 75.64, 1.001),
        ("select", (48.39, 65.10, 58.96, 73.43), 61.47, 1.000),
        ("learned", (71.45, 83.73, 77.24, 86.32), 79.68, 0.979),
    ),
    "qwen3-vl-embedding-2b": _lines(
        LONGRET,
        ("base", (80.94, 83.51, 81.83, 88.51), 83.70, 1.000),
        ("full", (91.01, 90.58, 91.84, 93.43), 91.72, 2.984),
        ("uniform", (82.87, 89.51, 88.05, 92.97), 88.35, 1.036),
        ("content", (78.52, 88.87, 85.24, 93.98), 86.65, 1.018),
        ("select", (59.96, 78.59, 67.74, 88.17), 73.61, 1.000),
        ("learned", (83.87, 90.15, 89.20, 94.36), 89.39, 0.977),
    ),
}
"""The complete LongRet results, last table of the appendix."""
# fmt: on

TRANSFER = {
    "vlm2vec-v2-2b": {"MMEB-V2": (1.66, 0.943), "LongRet": (9.09, 0.979)},
    "vlm2vec-qwen2vl-7b": {"MMEB-V2": (1.34, 0.943), "LongRet": (7.07, 0.979)},
    "qwen3-vl-embedding-2b": {"MMEB-V2": (1.68, 0.997), "LongRet": (5.69, 0.977)},
    "qwen3-vl-embedding-8b": {"MMEB-V2": (1.69, 0.997), "LongRet": (7.63, 0.977)},
}
"""Gain of AllocEmbed over Base in Hit@1, and its cost: the table of generalisation across embedding models."""


@dataclass(frozen=True)
class Durations:
    """A corpus of LongRet: its videos, hours in all, minutes, and counts of videos by duration."""

    videos: int
    hours: float
    minutes: dict[str, float]
    bins: dict[str, int]


STATISTICS = ("mean", "min", "P25", "median", "P75", "P95", "max")
BINS = {"<10": (0, 10), "10–15": (10, 15), "15–20": (15, 20), "20–30": (20, 30), "≥30": (30, float("inf"))}
"""Minutes, the lower end included and the upper one not."""
QUERIES = {"LoVR-Clip": 1401, "LoVR-Video": 467, "Vript-Clip": 7112, "Vript-Video": 2375}
CORPORA = {
    "LoVR": Durations(
        467,
        202.41,
        dict(zip(STATISTICS, (26.01, 16.64, 18.49, 21.56, 29.00, 50.59, 59.57), strict=True)),
        dict(zip(BINS, (0, 0, 189, 170, 108), strict=True)),
    ),
    "Vript": Durations(
        2375,
        563.53,
        dict(zip(STATISTICS, (14.24, 10.00, 11.28, 13.39, 16.36, 20.93, 29.82), strict=True)),
        dict(zip(BINS, (0, 1560, 661, 154, 0), strict=True)),
    ),
}
"""LongRet's composition, tables (a) to (c)."""
