"""Lossy compression of gradients: one short file per algorithm, each with its byte count.

Start with ``base``, which defines a compressor, then ``feedback`` and ``catalogue``
(all compressors by name). ``profiling`` measures the seconds that compressors take, ``profile``
holds them. Source: survey of Shi et al. 2020, section 3.1.3.
"""
