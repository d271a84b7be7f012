"""Traces of one rank by torch.profiler (Kineto): operations, gradients, a workload, a timeline."""
