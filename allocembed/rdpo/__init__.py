"""Retrieval-Driven Policy Optimization: an allocator learns from how its allocations rank, without frame labels.

Read `negatives` (against whom, equation 12), `rewards` (what an allocation is worth, 13–21) and `objective`
(how the policy moves, 22–23) in that order. All three are pure functions of small tensors. `rollouts` turns sampled
scales into vectors, `trainer` is one step of learning, `run` a run from start to end, and `config` all it can be told.
"""

from allocembed.rdpo.negatives import TextPool, allowed_negatives
from allocembed.rdpo.objective import beta_log_prob, clipped_objective, diagnose, sample_actions
from allocembed.rdpo.rewards import RewardOptions, Scores, scale_cost, score_group, token_cost

__all__ = [
    "RewardOptions",
    "Scores",
    "TextPool",
    "allowed_negatives",
    "beta_log_prob",
    "clipped_objective",
    "diagnose",
    "sample_actions",
    "scale_cost",
    "score_group",
    "token_cost",
]
