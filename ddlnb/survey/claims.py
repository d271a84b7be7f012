"""What section 4 of the survey says about its figure, as predicates over a throughput table.

How words become numbers: an order without qualifier ("not slower", "no gain") must hold in every
cell, up to EQUAL, since noise must not refute it. "Most" is more than half of the cells, and a size
("clearly", "about", "nearly", "poorly") is that of the typical cell, so it too must hold in most;
there a tie counts only where the claim includes it. Claims about a network are judged by cells
beyond one node, because the others do not use it; the rest by every cell there is.

>>> import ddlnb
>>> ddlnb.CLAIMS["A44"].text
'BSP-A2A is faster than BSP-PS in most cells'
"""

from __future__ import annotations

import math

import pandas as pd

from ddlnb.errors import require_whole
from ddlnb.results.tables import GPUS_PER_NODE, cell_rates
from ddlnb.survey.comparisons import (
    BERTS,
    EQUAL,
    IB,
    TCP,
    Claim,
    Part,
    Strength,
    Table,
    a2a_growth_over_ps,
    bert_lost_in_node,
    best_bert_on_ib,
    gains,
    judged,
    larger_batches,
    leader_over_best,
    more_than_on_ib,
    over,
    ps_over_a2a_on_tcp,
)

BETTER = math.nextafter(1.0, 2.0)  # the smallest ratio above 1: a tie is no win
CLEAR = 0.05  # "well above", "clearly above": more than twice EQUAL, so no matter of noise
MANY_GPUS = 32  # "at 32 workers", the most the survey has
TEN_TO_EIGHTY_PERCENT = (1.10, 1.80)  # as the survey says
ABOUT_15_PERCENT = (1.05, 1.25)  # "about +15 %": a CLEAR gain at least, and as far above 15 %
NEARLY_TWICE = (1.6, 2.2)  # "nearly 2x": a fifth less, and for noise a tenth more
POOR = 0.80  # "poorly": BERT-Base's 72.5 % (A41) is meant by it, ResNet-50's 98.8 % (A40) is not
MAIN_CAUSE = 0.5  # "because of": what explains more than half of a loss

COLUMNS = [
    *("claim", "section", "text", "holds", "cells", "share", "failures", "reason"),
    *("decided_by", "needed", "deciding_cells", "deciding_support"),
]

# In the order of their ids.
_ALL = (
    Claim(
        "A44",
        "4.2.2",
        "BSP-A2A is faster than BSP-PS in most cells",
        (
            Part(
                "cells of BSP-A2A beside BSP-PS",
                lambda table: over(table, "BSP-A2A", "BSP-PS"),
                "times BSP-PS",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A45",
        "4.2.2",
        "WFBP-PS is well above WFBP-A2A on TCP networks or with 32 GPUs, "
        "and more so on TCP networks than on IB",
        (
            Part(
                "cells of WFBP-PS beside WFBP-A2A on TCP beyond one node, or with 32 GPUs",
                lambda table: over(
                    table,
                    "WFBP-PS",
                    "WFBP-A2A",
                    lambda c: table.uses_network(c) and (c.network in TCP or c.gpus >= MANY_GPUS),
                ),
                "times WFBP-A2A",
                Strength.MOST,
                low=1 + CLEAR,
            ),
            Part(
                "cells of WFBP-PS beside WFBP-A2A on TCP and on 100GbIB beyond one node, "
                "with fewer than 32 GPUs",
                lambda table: more_than_on_ib(
                    table, "WFBP-PS", "WFBP-A2A", lambda c: c.gpus < MANY_GPUS
                ),
                "times the ratio to WFBP-A2A on 100GbIB",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A46",
        "4.2.2",
        "MG-WFBP is as fast as WFBP-PS or faster, in every cell",
        (
            Part(
                "cells of MG-WFBP beside WFBP-PS",
                lambda table: over(table, "MG-WFBP", "WFBP-PS"),
                "times WFBP-PS",
                Strength.EVERY,
                low=1 - EQUAL,
            ),
        ),
    ),
    Claim(
        "A47",
        "4.2.2",
        "PS is faster than A2A with the same schedule in most cells on TCP networks, "
        "and A2A grows more with the GPUs in most cases on IB",
        (
            Part(
                "cells of PS beside A2A with the same schedule on TCP beyond one node",
                ps_over_a2a_on_tcp,
                "times its A2A counterpart",
                Strength.MOST,
                low=BETTER,
            ),
            Part(
                "PS beside A2A with the same schedule for two numbers of GPUs on 100GbIB, "
                "the larger beyond one node",
                a2a_growth_over_ps,
                "times the growth of its PS counterpart",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A48",
        "4.2.3",
        "WFBP is not slower than BSP on the same architecture, in every cell",
        (
            Part(
                "cells of WFBP beside BSP on the same architecture",
                lambda table: over(table, "WFBP-PS", "BSP-PS") | over(table, "WFBP-A2A", "BSP-A2A"),
                "times BSP",
                Strength.EVERY,
                low=1 - EQUAL,
            ),
        ),
    ),
    Claim(
        "A49",
        "4.2.3",
        "MG-WFBP is clearly above WFBP-A2A, and more so on TCP networks than on IB",
        (
            Part(
                "cells of MG-WFBP beside WFBP-A2A beyond one node",
                lambda table: over(table, "MG-WFBP", "WFBP-A2A", table.uses_network),
                "times WFBP-A2A",
                Strength.MOST,
                low=1 + CLEAR,
            ),
            Part(
                "cells of MG-WFBP beside WFBP-A2A on TCP and on 100GbIB beyond one node",
                lambda table: more_than_on_ib(table, "MG-WFBP", "WFBP-A2A"),
                "times the ratio to WFBP-A2A on 100GbIB",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A50",
        "4.2.3",
        "ByteScheduler-A2A gains nothing over WFBP-A2A, in every cell",
        (
            Part(
                "cells of ByteScheduler-A2A beside WFBP-A2A",
                lambda table: over(table, "ByteScheduler-A2A", "WFBP-A2A"),
                "times WFBP-A2A",
                Strength.EVERY,
                high=1 + EQUAL,
            ),
        ),
    ),
    Claim(
        "A51",
        "4.2.3",
        "ByteScheduler-PS is faster than WFBP-PS for ResNet-50 on 100GbE, in every cell",
        (
            Part(
                "cells of ByteScheduler-PS beside WFBP-PS for resnet50 on 100GbE beyond one node",
                lambda table: over(
                    table,
                    "ByteScheduler-PS",
                    "WFBP-PS",
                    lambda c: (
                        c.model == "resnet50" and c.network == "100GbE" and table.uses_network(c)
                    ),
                ),
                "times WFBP-PS",
                Strength.EVERY,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A52",
        "4.2.4",
        "100GbE is 10 % to 80 % faster than 10GbE in most cells",
        (
            Part(
                "cells on 100GbE beside 10GbE beyond one node",
                lambda table: gains(table, "10GbE", "100GbE"),
                "times that on 10GbE",
                Strength.MOST,
                *TEN_TO_EIGHTY_PERCENT,
            ),
        ),
    ),
    Claim(
        "A53",
        "4.2.4",
        "ResNet-50 with WFBP gains about 15 % from 100GbE to IB",
        (
            Part(
                "cells of WFBP for resnet50 on 100GbIB beside 100GbE beyond one node",
                lambda table: gains(
                    table,
                    "100GbE",
                    IB,
                    lambda c: c.model == "resnet50" and c.method in ("WFBP-PS", "WFBP-A2A"),
                ),
                "times that on 100GbE",
                Strength.MOST,
                *ABOUT_15_PERCENT,
            ),
        ),
    ),
    Claim(
        "A54",
        "4.2.4",
        "BERT with MG-WFBP is nearly twice as fast on IB as on 100GbE",
        (
            Part(
                "cells of MG-WFBP for BERT on 100GbIB beside 100GbE beyond one node",
                lambda table: gains(
                    table, "100GbE", IB, lambda c: c.model in BERTS and c.method == "MG-WFBP"
                ),
                "times that on 100GbE",
                Strength.MOST,
                *NEARLY_TWICE,
            ),
        ),
    ),
    Claim(
        "A55",
        "4.2.4",
        "BERT scales poorly on IB even with its best method, and loses most within the node",
        (
            Part(
                "cells of BERT on 100GbIB beyond one node together with its single-GPU rows "
                "(method 'single', gpus 1)",
                best_bert_on_ib,
                "of linear speedup",
                Strength.MOST,
                high=POOR,
            ),
            Part(
                "cells of BERT within one node beside 100GbIB together with its single-GPU rows "
                "(method 'single', gpus 1)",
                bert_lost_in_node,
                "for the loss within the node over all that is lost",
                Strength.MOST,
                low=MAIN_CAUSE,
            ),
        ),
    ),
    Claim(
        "A56",
        "4.2.4",
        "no method is the fastest in every configuration",
        (
            Part(
                "two configurations with all methods of the table, two or more",
                leader_over_best,
                "of the best",
                Strength.ANY,
                high=math.nextafter(1 - EQUAL, 0.0),
            ),
        ),
    ),
    Claim(
        "A57",
        "4.2.1",
        "a larger local batch, as a larger memory allows, scales better in most cells",
        (
            Part(
                "second local_batch of a model (with single-GPU rows or two numbers of GPUs)",
                larger_batches,
                "times the speedup at the smaller batch",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A58",
        "4.2.3",
        "merging fits A2A and partition fits PS: in most cells MG-WFBP is not slower than "
        "ByteScheduler-A2A, and ByteScheduler-PS not slower than WFBP-PS",
        (
            Part(
                "cells of MG-WFBP beside ByteScheduler-A2A",
                lambda table: over(table, "MG-WFBP", "ByteScheduler-A2A"),
                "times ByteScheduler-A2A",
                Strength.MOST,
                low=1.0,
            ),
            Part(
                "cells of ByteScheduler-PS beside WFBP-PS",
                lambda table: over(table, "ByteScheduler-PS", "WFBP-PS"),
                "times WFBP-PS",
                Strength.MOST,
                low=1.0,
            ),
        ),
    ),
)

# The claims by their id in the notes on the survey, in order. A claim has the ``section`` of the
# survey and the ``text`` of its sentence, and the ``parts`` by which `evaluate_claims` judges it.
CLAIMS: dict[str, Claim] = {claim.id: claim for claim in _ALL}


def evaluate_claims(rows: pd.DataFrame, *, gpus_per_node: int = GPUS_PER_NODE) -> pd.DataFrame:
    """Judge every claim by a throughput table: one row each, with the share of supporting cells.

    ``holds`` is True or False, or None where the table lacks the cells, and ``reason`` says which.
    ``cells`` is the number judged and ``share`` that of the supporting ones, from 0 to 1.
    ``failures`` are the cells against the claim, worst first. A claim of several parts fails with
    any of them, even if another cannot be judged; a cell counts once for each part. ``decided_by``
    is the part on which it stands or falls, in words; ``deciding_support`` of its
    ``deciding_cells`` support it, and ``needed`` says how many must. Raises InputError if the rows
    are no table.

    >>> import ddlnb
    >>> resnet50 = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    >>> rows = ddlnb.forecast(resnet50, "survey-10GbE", ["BSP-PS", "BSP-A2A"], gpus=8, draws=0)
    >>> verdicts = ddlnb.evaluate_claims(rows).set_index("claim")
    >>> verdicts.loc["A44", ["holds", "failures"]].to_list()
    [True, '']
    """
    require_whole(gpus_per_node=gpus_per_node)
    table = Table(cell_rates(rows), gpus_per_node)
    lines = [judged(claim, table) for claim in CLAIMS.values()]
    return pd.DataFrame(lines, columns=COLUMNS).astype({"holds": object})
