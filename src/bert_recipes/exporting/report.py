"""What an export says of itself: export.json, and the same as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


JSON_FILE = "export.json"
TABLE_FILE = "export.md"


def format_report(report: Mapping[str, Any]) -> str:
    """Export.json as Markdown.

    Args:
        report: As `export_checkpoint` returns it.
    """
    compared, machine = report["compared_on"], report["machine"]
    parts = [
        f"# {report['model']} as {report['format']}",
        f"`{report['architecture']}`, {report['parameters']:,} parameters, inputs of up to {report['max_seq_length']} tokens. "
        f"Compared on {compared['number']:,} {compared['unit']}: {compared['source']}.",
        format_table(report),
        f"Differences are those of the outputs at real tokens from the checkpoint's in float32, absolute; allowed for float32: "
        f"{report['tolerance']:g}. Speed: {report['speed']['examples']} inputs in batches of {report['batch_size']} "
        f"({report['speed']['tokens']:,} tokens), the median of {report['speed']['rounds']} turns of each side (least and most), "
        f"{report['threads']} threads for every side; alone: one input at a time. "
        f"{machine['processor']}, {machine['cores']} cores, {_load(report['load_average'])}{report['date']}.",
        _int8_part(report) if "int8" in report else "",
        _format_part(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def format_table(report: Mapping[str, Any]) -> str:
    """The rows as a Markdown table."""
    figures = list(report["rows"][0]["scores"])
    header = [
        "",
        "MB",
        *figures,
        "largest difference",
        "mean difference",
        "same predictions",
        "a second",
        "",
        "alone, ms",
    ]
    lines = [_line(header), _line(["---", *["---:"] * (len(header) - 1)])]
    for row in report["rows"]:
        rates = row["rounds"]["examples_per_second"]
        lines.append(
            _line(
                [
                    row["name"],
                    "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f}",
                    *(_number(row["scores"].get(name), ".4f") for name in figures),
                    *(_number(row[name], ".1e") for name in ("largest_difference", "mean_difference")),
                    "" if row["same_predictions"] is None else f"{100 * row['same_predictions']:.2f} %",
                    f"{row['examples_per_second']:,.1f} ({min(rates):,.1f} to {max(rates):,.1f})",
                    f"{row['ratio']:.2f}x",
                    f"{row['milliseconds_alone']:.2f}",
                ]
            )
        )
    return "\n".join(lines)


def _load(average: float | None) -> str:
    return "" if average is None else f"load average {average} before it, "


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _int8_part(report: Mapping[str, Any]) -> str:
    """How int8 was made, and what was tried."""
    int8 = report["int8"]
    total = int8["int8_weights"] + int8["float_weights"]
    scale = "a scale for each column of a weight" if int8["per_channel"] else "one scale for each weight"
    left = ", ".join(f"{count} {name}" for name, count in int8["float_operators"].items()) or "none"
    text = (
        f"int8: weights of {' and '.join(int8['operators'])}, {scale}{', 7 bits' if int8['reduce_range'] else ''}: "
        f"{int8['int8_weights']:,} of {total:,} numbers ({100 * int8['int8_weights'] / total:.1f} %). In float32 stay biases, "
        f"LayerNorm, softmax, the activation, {int8['float_products']} products of two activations, and the weights of: {left}."
    )
    if len(int8["tried"]) < 2:
        return text
    figures = list(int8["tried"][0]["scores"])
    lines = [_line(["tried", "MB", *figures, "mean difference"]), _line(["---", *["---:"] * (len(figures) + 2)])]
    for each in int8["tried"]:
        scores = [_number(each["scores"].get(name), ".4f") for name in figures]
        size = f"{each['bytes'] / 1e6:.1f}"
        lines.append(_line([each["settings"], size, *scores, _number(each["mean_difference"], ".1e")]))
    return (
        f"{text} Of these the first was taken, by its score, its size and then its mean difference on {int8['tried_on']} "
        f"{report['compared_on']['unit']}:\n\n" + "\n".join(lines)
    )


def _format_part(report: Mapping[str, Any]) -> str:
    """What a program that loads the file has to know."""
    inputs = ", ".join(f"`{name}` {_axes(axes)}" for name, axes in report["inputs"].items())
    outputs = ", ".join(f"`{name}` {_axes(axes)}" for name, axes in report["outputs"].items())
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    opset = ", ".join(f"{name} {number}" for name, number in report["opset"].items())
    return (
        f"`model.onnx`: int64 {inputs}; float32 {outputs}. Operators: {opset}; IR {report['ir_version']}; made with {versions}. "
        "`example.py` runs it with onnxruntime and tokenizers alone."
    )


def _axes(axes: list[str | int]) -> str:
    return f"({', '.join(map(str, axes))})"
