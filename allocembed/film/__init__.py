"""The filmstrip: each candidate frame of a video with its scale and tokens, and the total against the budget.

`as_json` is for programs, `save_png` for papers, `save_html` for people. Frames are drawn with the pixels that the
backbone gets if `factor`, its pixels per token side, is given; otherwise as they were sampled.
"""

from allocembed.film.page import save_html
from allocembed.film.png import save_png
from allocembed.film.strip import as_json, format_time, scale_colour

__all__ = ["as_json", "format_time", "save_html", "save_png", "scale_colour"]
