"""Model parallelism, a pipeline of layers and data parallelism on real ranks (section 1, Fig. 1).

All three train a multi-layer perceptron on the batches that one worker also trains it on, and end
with that worker's parameters up to rounding.
"""

from ddlnb.studies.sec1_parallelism.comparison import compare_parallelism
from ddlnb.studies.sec1_parallelism.findings import parallelism_findings
from ddlnb.studies.sec1_parallelism.formulas import break_even_batch, traffic

__all__ = ["break_even_batch", "compare_parallelism", "parallelism_findings", "traffic"]
