"""Formatting of numbers for display."""

import math
from collections.abc import Callable, Sequence

SPARKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def format_count(value: float) -> str:
    """Formats a count with three significant digits and an SI prefix: `950`, `12.3 k`, `4.20 M`."""
    if not math.isfinite(value):
        return "-"
    if abs(value) < 999.5:
        return f"{value:.0f}"
    for prefix, size in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        scaled = value / size
        if abs(scaled) < 999.5 or prefix == "T":
            digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:.{digits}f} {prefix}"
    raise AssertionError("unreachable")


def format_number(value: float) -> str:
    """Formats a value in at most nine characters: four significant digits; integers in full."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == round(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    if 1e-3 <= abs(value) < 1e5:
        digits = max(0, 3 - math.floor(math.log10(abs(value))))
        return f"{value:.{min(digits, 4)}f}"
    return f"{value:.2e}"


def format_fixed(value: float, digits: int) -> str:
    """Formats a value with `digits` decimals; `-` if not finite."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def format_finite(value: float) -> str:
    """Formats a value as `format_number`; `-` if not finite."""
    return format_number(value) if math.isfinite(value) else "-"


def format_estimate(estimate: Sequence[float], shown: Callable[[float], str]) -> str:
    """Formats a value with the ends of its interval, `0.5 [0.4, 0.6]`; the value alone without them."""
    value, low, high = map(float, estimate)
    return f"{shown(value)} [{shown(low)}, {shown(high)}]" if math.isfinite(low + high) else shown(value)


def format_percent(value: float) -> str:
    """Formats a fraction as `41.2 %`; `-` if not finite."""
    return f"{100 * value:.1f} %" if math.isfinite(value) else "-"


def format_short_percent(value: float, digits: int = 1) -> str:
    """Formats a fraction as `70 %` or `66.7 %`: at most `digits` decimals, without trailing zeros."""
    return f"{round(100 * value, digits):.6g} %" if math.isfinite(value) else "-"


def format_clock(seconds: float) -> str:
    """Formats seconds as `m:ss` or `h:mm:ss`; `-` if not finite."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def draw_sparkline(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    """Draws a sparkline of values, scaled from `low` to `high`, by default their range."""
    if not values:
        return ""
    low = min(values) if low is None else low
    high = max(values) if high is None else high
    if high <= low:
        return SPARKS[len(SPARKS) // 2 - 1] * len(values)
    top = len(SPARKS) - 1
    return "".join(SPARKS[min(max(round((v - low) / (high - low) * top), 0), top)] for v in values)


def draw_bar(fraction: float, width: int) -> str:
    """Draws a horizontal bar with a resolution of 1/8 cell, padded to `width`."""
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8) if math.isfinite(fraction) else 0
    full, part = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[part] if part else "")).ljust(width)
