"""The work behind the notebooks: one module or folder per notebook, under the notebook's name.

Only notebooks, benchmarks and tests import from here. The figures of what comes out are in
`ddlnb.figures`.

>>> from ddlnb.survey.fig2_taxonomy import taxonomy
>>> [aspect.name for aspect in taxonomy()]
['synchronisation', 'compression', 'scheduling', 'architecture', 'protocol', 'topology']
"""

from __future__ import annotations
