"""Engines that are not ours, Horovod and BytePS: how plans and training methods run on them.

``catalogue.py`` has their entries, which `ddlnb.engines.catalogue` lists beside its own, and what
both need. Each has a folder: ``runtime.py`` joins ranks by its means, ``engine.py`` runs plans.
"""
