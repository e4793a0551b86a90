"""How everything looks: one colour per format everywhere, one style for every figure, figures as plain SVG."""

import io
import re
import zlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib import transforms  # noqa: E402

INK, SOFT, FAINT, PAPER = "#1f2733", "#5d6878", "#e3e7ec", "#ffffff"
GOOD, BAD, UNSURE = "#0f7b5f", "#b3362b", "#8a6d1f"

# The baseline is ink; 8 bits are blue, classic 4 bits orange, rotor formats green, those that lose the model red.
FORMATS = {
    "f16": "#3a4556", "f32": "#8b95a5", "bf16": "#6d7889",
    "q8_0": "#2b6cb0", "p8": "#5fa3dd", "i8r": "#1f4b7f",
    "q4_0": "#d97a1c", "q4_1": "#c98f4e", "q4_k": "#b8892b", "q5_0": "#a68a00", "q5_1": "#bda53a", "q5_k": "#8f7a12",
    "q6_k": "#7c6a3c", "p8/q4_0": "#c2a11d", "q8_0/q4_0": "#a3851a",
    "rotor-4": "#49b695", "rotor-3": "#0f7b5f", "rotor-4/rotor-3": "#7fae2e", "rotor-3s": "#b0559b", "rotor-3u": "#c0362c",
    "int4_g128": "#7549b8", "i2_s": "#c23f79", "tq1_0": "#9c4f7a", "tq2_0": "#d06a9a",
}
OTHERS = ("#4f8a8b", "#a05d3b", "#5a6fa8", "#8e5aa6", "#6b8e4e", "#a8577a")

# Parts of a decode step: none of the formats' colours.
CLASSES = {"gemv": "#4c78a8", "gemm": "#7da7cf", "attention": "#e0a526", "append": "#b07aa1", "norm": "#8cb369",
           "rope": "#bcd98f", "rotation": "#c9a3cf", "residual": "#c9bba0", "embed": "#9fb8ad", "activation": "#d98880", "sample": "#76a5af", "other": "#a3a9b3", "gaps": "#e4e1dc"}

STYLE = {
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER,
    "font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK, "text.parse_math": False,
    "axes.labelcolor": SOFT, "axes.edgecolor": "#aab2bd", "axes.titlesize": 10.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlepad": 20, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": FAINT, "grid.linewidth": 0.8,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.minor.bottom": False, "ytick.minor.left": False,
    "lines.linewidth": 2, "lines.markersize": 6, "figure.dpi": 100,
    "svg.fonttype": "none", "path.simplify": False,
}


matplotlib.rcdefaults()  # not what the machine's own matplotlibrc says
matplotlib.rcParams.update(STYLE)


def colour(name):
    """Of a weight or cache format; options behind a colon do not change it. A mixed cache has the colour of V, or of K beside
    an f16 V. An unknown one always gets the same."""
    name = name if name in FORMATS else name.split(":")[0].split(";")[0]
    k, _, v = name.partition("/")
    if v and name not in FORMATS:
        name = k if v == "f16" else v
    return FORMATS.get(name) or OTHERS[zlib.crc32(name.encode("utf-8", "replace")) % len(OTHERS)]


def marker(name):
    """Shapes tell formats apart where colours do not."""
    shapes = {"f16": "o", "rotor-3": "D", "rotor-4": "s", "q8_0": "o", "q4_0": "^", "int4_g128": "D"}
    return shapes.get(name, "osD^vP"[zlib.crc32(name.encode("utf-8", "replace")) % 6])


class Figure:
    """A matplotlib figure that turns into SVG text, PNG bytes, and has a text to show over each marked artist."""

    def __init__(self, name, n_rows, n_columns, width, height, **kwargs):
        self.name = name
        self.tips = []
        self.figure, axes = plt.subplots(n_rows, n_columns, figsize=(width, height), squeeze=False, **kwargs)
        self.axes = [ax for row in axes for ax in row]

    def tip(self, artist, text):
        artist.set_gid(f"tip{len(self.tips)}")
        self.tips.append(text)

    def png(self):
        out = io.BytesIO()
        self.figure.savefig(out, format="png", dpi=160, metadata={"Software": None})
        return out.getvalue()

    def svg(self, data_digest):
        """One <svg> element without network, scripts, dates or names that clash with those of another figure."""
        with matplotlib.rc_context({"svg.hashsalt": self.name}):
            out = io.StringIO()
            self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        text = out.getvalue()
        text = text[text.index("<svg"):]
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
        text = re.sub(r"<style type=\"text/css\">.*?</style>\s*", "", text, flags=re.S)  # it would hold for the whole page
        text = re.sub(r'\b(id="|url\(#|href="#)', lambda m: f"{m[0]}{self.name}-", text)
        for i, tip in enumerate(self.tips):
            text = text.replace(f'<g id="{self.name}-tip{i}">', f'<g id="{self.name}-tip{i}" class="tip"><title>{escape(tip)}</title>', 1)
        text = text.replace("'DejaVu Sans'", "'Inter','Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif")
        text = re.sub(r"<svg ", '<svg role="img" style="stroke-linejoin:round;stroke-linecap:butt" ', text, count=1)
        text = "\n".join(line.rstrip() for line in text.splitlines())
        return f"<!-- data {data_digest}, matplotlib {matplotlib.__version__} -->\n{text}\n"

    def close(self):
        plt.close(self.figure)


def title(ax, text, below):
    """A panel's name, and under it in small letters where it was measured and what the vertical axis counts."""
    ax.set_title(text)
    ax.text(0, 1, below, transform=transforms.offset_copy(ax.transAxes, ax.figure, 0, 6, "points"), fontsize=8, color=SOFT, va="bottom")


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def spread(places, gap):
    """Places (pixels) moved apart to at least `gap`, order kept, each as near to its own as a pass each way allows."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [places[i] for i in order]
    for _ in range(60):
        still = True
        for a in range(len(moved) - 1):
            lack = gap - (moved[a + 1] - moved[a])
            if lack > 1e-6:
                moved[a] -= lack / 2
                moved[a + 1] += lack / 2
                still = False
        if still:
            break
    out = [0.0] * len(places)
    for place, i in zip(moved, order):
        out[i] = place
    return out


def place_of(ax, x, y):
    """In points from the figure's corner, the same for every resolution that it is drawn at."""
    px, py = ax.transData.transform((x, y))
    return px * 72 / ax.figure.dpi, py * 72 / ax.figure.dpi


def write(ax, text, target, place, shade, side, size, leader):
    """Text at a place, with a thin line to what it names when it stands away from it. Both in points."""
    arrow = dict(arrowstyle="-", color=shade, lw=0.6, alpha=0.55, shrinkA=0, shrinkB=3) if leader else None
    ax.annotate(text, target, xytext=place, xycoords="figure points", textcoords="figure points", ha=side, va="center",
                color=shade, fontsize=size, annotation_clip=False, linespacing=1.2, arrowprops=arrow)


def label_ends(ax, ends, gap=11.5):
    """Direct labels to the right of line ends: [(x, y, text, colour)]."""
    if not ends:
        return
    ax.figure.canvas.draw()
    right = max(x for x, _, _, _ in ends)
    for x, y, text, shade in ends:
        if x < right:  # a line that ends early is named where it ends
            px, py = place_of(ax, x, y)
            write(ax, text, (px, py), (px + 6, py + 8), shade, "left", 8, leader=False)
    ends = [end for end in ends if end[0] == right]
    places = [place_of(ax, x, y) for x, y, _, _ in ends]
    for (_, _, text, shade), (x, y), level in zip(ends, places, spread([y for _, y in places], gap)):
        write(ax, text, (x, y), (x + 10, level), shade, "left", 9, leader=abs(level - y) > 3)


class Labels:
    """Puts labels beside points where nothing stands yet; a label without room is left to the point's tip."""

    SPOTS = [(7, 0), (-7, 0), (5, 10), (5, -10), (-5, 10), (-5, -10), (7, 20), (7, -20), (-7, 20), (-7, -20), (9, 32), (9, -32),
             (-9, 32), (-9, -32), (12, 44), (12, -44), (-12, 44), (-12, -44), (14, 56), (14, -56)]

    def __init__(self, ax, overhang=50):
        self.ax, self.taken, self.overhang = ax, [], overhang
        ax.figure.canvas.draw()
        self.frame = [v * 72 / ax.figure.dpi for v in ax.get_window_extent().extents]

    def block(self, x, y, radius=3.5):
        px, py = place_of(self.ax, x, y)
        self.taken.append((px - radius, py - radius, px + radius, py + radius))

    def block_margin(self, x, y, half=12):
        """For a text beside the frame at the height of a point."""
        py = place_of(self.ax, x, y)[1]
        self.taken.append((self.frame[2], py - half, self.frame[2] + 2 * self.overhang, py + half))

    def free(self, box):
        x0, y0, x1, y1 = self.frame
        inside = box[0] >= x0 and box[2] <= x1 + self.overhang and box[1] >= y0 and box[3] <= y1 + 4
        return inside and not any(box[0] < b[2] and box[2] > b[0] and box[1] < b[3] and box[3] > b[1] for b in self.taken)

    def put(self, x, y, text, shade, size=8.5, must=False):
        px, py = place_of(self.ax, x, y)
        lines = text.split("\n")
        width, height = max(map(len, lines)) * size * 0.6, len(lines) * size * 1.4
        box = None
        for dx, dy in self.SPOTS:
            left = px + dx if dx > 0 else px + dx - width
            box = (left, py + dy - height / 2, left + width, py + dy + height / 2)
            if self.free(box):
                break
        else:
            if not must:
                return False
            dx, dy = self.SPOTS[0]
            box = (px + dx, py - height / 2, px + dx + width, py + height / 2)
        self.taken.append(box)
        write(self.ax, text, (px, py), (px + dx, py + dy), shade, "left" if dx > 0 else "right", size, leader=abs(dy) > 15)
        return True
