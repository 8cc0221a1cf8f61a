"""Retrieval-Driven Policy Optimization: train an allocator from how its allocations rank, without frame labels.

Read `negatives` (the candidate set, equation 12), `rewards` (what an allocation is worth, 13–21) and `objective` (how
the policy is updated, 22–23) in that order; all three are pure functions of small tensors. `rollouts` turns sampled
scales into vectors, `trainer` is one training step, `run` a run from start to end, `config` its settings.
"""
