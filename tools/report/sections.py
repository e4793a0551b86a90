"""The sections of the report, in order: what each reads, draws and says. A new one is a module and a row here."""

import csv
import dataclasses
import io
from typing import Callable

import attribution
import decode
import machine
import quality
import regime
import roofline
import search


@dataclasses.dataclass(frozen=True)
class Section:
    name: str  # of its files: NAME.csv, NAME.svg, NAME.png
    title: str
    command: str  # that makes its rows
    fields: list
    data: Callable  # rows -> lines (dicts that have `fields`)
    draw: Callable  # (lines, look, rows) -> look.Figure
    say: Callable  # lines -> what one sees, one or two sentences
    how: str  # to read the figure


SECTIONS = [
    Section("ceilings", machine.TITLE, machine.COMMAND, machine.FIELDS, machine.data, lambda lines, look, rows: machine.draw(lines, look),
            machine.sentence, "Measured by Ridge's own kernels over buffers several times the last-level cache."),
    Section("decode", decode.TITLE, decode.COMMAND, decode.FIELDS, decode.data, lambda lines, look, rows: decode.draw(lines, look),
            decode.sentence, "A step must read the weights and the cache once; 100 % is doing nothing else."),
    Section("roofline", roofline.TITLE, roofline.COMMAND, roofline.FIELDS, roofline.data,
            lambda lines, look, rows: roofline.draw(lines, look, machine.data(rows)), roofline.sentence,
            "One point per kernel. Hollow points had their data in a cache. Bytes are the op's declared work, whatever a kernel moves."),
    Section("attribution", attribution.TITLE, attribution.COMMAND, attribution.FIELDS, attribution.data,
            lambda lines, look, rows: attribution.draw(lines, look), attribution.sentence, "Each bar is one step, cut by class of operation."),
    Section("batch", regime.TITLE_BATCH, regime.COMMAND_BATCH, regime.FIELDS, regime.batch_data,
            lambda lines, look, rows: regime.draw(lines, look, "batch", "tokens at a time (batch)"), lambda lines: "",
            "Above 1 the format is faster than f16 on the same machine, below (red) slower. The band goes from quartile to quartile; hollow points are undecided."),
    Section("depth", regime.TITLE_DEPTH, regime.COMMAND_DEPTH, regime.FIELDS, regime.depth_data,
            lambda lines, look, rows: regime.draw(lines, look, "depth", "cached tokens (depth)"), lambda lines: "",
            "As above, for caches. `whole step` is tokens per second of a whole model, where the weights are read as well."),
    Section("quality", quality.TITLE, quality.COMMAND, quality.FIELDS, quality.data, lambda lines, look, rows: quality.draw(lines, look),
            quality.sentence, f"Down and left is better. Hollow circles fail the gate (perplexity at most +{quality.PPL_RISE} above f16, mean KLD at most {quality.KLD}); area is speed relative to "
            "f16 where it was measured (on the model and depth that the table names)."),
    Section("search", search.TITLE, search.COMMAND, search.FIELDS, search.data, lambda lines, look, rows: search.draw(lines, look), search.sentence,
            "Down and left is better. Green points lie below the line of the best uniform pairs by more than two standard errors of the difference."),
]


def to_csv(lines, fields):
    """Lines as CSV. Floats keep 9 digits: more than any measurement has, fewer than versions of Python may print apart."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(fields)
    for line in lines:
        writer.writerow(["" if line[f] is None else f"{line[f]:.9g}" if isinstance(line[f], float) else line[f] for f in fields])
    return out.getvalue()
