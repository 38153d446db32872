"""A table in LaTeX, for booktabs."""

from wechsel_jax.report import section
from wechsel_jax.report.markdown import one_line

_SPECIAL = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--",
    **{one: f"\\{one}" for one in "&%$#_{}"},
    # In LaTeX's first encoding these are other characters; babel's German makes a command of the double quote.
    "|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}", '"': r"{\char34}",
})  # fmt: skip


def latex(table: section.Table) -> str:
    """Renders a table as a tabular; the preamble needs booktabs. The best values are bold.

    >>> print(latex(section.Table(("model", "score_1"), (("a & b", section.Best("1.5 ± 0.2")),))))
    \\begin{tabular}{lr}
    \\toprule
    model & score\\_1 \\\\
    \\midrule
    a \\& b & \\textbf{1.5 $\\pm$ 0.2} \\\\
    \\bottomrule
    \\end{tabular}
    <BLANKLINE>
    """
    columns = "".join("l" if i in table.at_left else "r" for i in range(len(table.head)))
    head, *rows = (" & ".join(map(_cell, row)) + r" \\" for row in (table.head, *table.rows))
    # Behind the end of a row these are its arguments.
    rows = [f"{{}}{row}" if row.startswith(("[", "*")) else row for row in rows]
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _cell(cell: section.Text) -> str:
    text = one_line(section.plain(cell)).translate(_SPECIAL)
    return rf"\textbf{{{text}}}" if any(isinstance(part, section.Best) for part in section.parts(cell)) else text
