"""Q-learning that survives corrupted rewards and states: BR-Async-Q, its relatives, and their exact limits.

Learners and wrappers for Gymnasium are in ``online`` and ``corrupted_env``, which need it installed.
"""

from stretto.tabular.q.corruption import Corruption, contaminate
from stretto.tabular.q.learning import Rule, q_learning, sup_errors
from stretto.tabular.q.oracle import best_q, mean_limit, robust_limit, two_point_gap
from stretto.tabular.q.robust import local_share, median_of_means, trim_for, trimmed_mean
from stretto.tabular.q.world import corrupt

__all__ = [
    "Corruption",
    "Rule",
    "best_q",
    "contaminate",
    "corrupt",
    "local_share",
    "mean_limit",
    "median_of_means",
    "q_learning",
    "robust_limit",
    "sup_errors",
    "trim_for",
    "trimmed_mean",
    "two_point_gap",
]
