"""Lossy compression of gradients: one short file per algorithm, each with its byte count.

``base`` says what a compressor promises, ``feedback`` what error feedback is, ``catalogue`` which
there are. Source of the list: survey of Shi et al. 2020, section 3.1.3.
"""
