"""One level for all brokers: what each of them must enforce, so that together they enforce a bound.

**The formula.** Every broker of a cluster enforces the same value L for a quota entity, and knows nothing of the
others. An entity that wants d_b per second on broker b gets min(d_b, L) there. All brokers together shall give it the
bound T:

    sum(min(d_b, L)) = T

Think of brokers as vessels of heights d_b that stand side by side, and of T as the water that is poured into all of
them at once: L is how high the water stands. If there is room for all of it, that is sum(d_b) ≤ T, no broker needs a
bound below T, and L = T.

Sorting solves it. Let d_1 ≤ d_2 ≤ … ≤ d_n, and let the first i brokers be those that L does not reach. They take all
they want, and the others share the rest evenly:

    L_i = (T − (d_1 + … + d_i)) / (n − i)

The answer is the first L_i that does not exceed d_(i + 1). It is also the largest of them. For, as long as d_(i + 1) is
below L_i, taking that broker out leaves the others more: L_(i + 1) > L_i. From there on it leaves them no more.

L_0 = T / n is one of them. So T / n ≤ L ≤ T, whatever the demands are: a level that is not changed any more lets no
broker alone exceed T, and cannot take from the entity what an even division of T would have left it.

A broker that throttles an entity hides what it wants. Its demand counts as unbounded (`saturated`).

**An example.** Three brokers are asked for 60, 30 and 90 per second, and T is 100. L_0 = 33.3 exceeds 30, so the second
broker is not reached. L_1 = (100 − 30) / 2 = 35 does not exceed 60. The brokers give 35 + 30 + 35 = 100.

>>> broker_level(np.array([60.0, 30.0, 90.0]), np.zeros(3, np.bool_), bound=100.0)
35.0

If the third broker were asked for 5 only, all would fit. But if it throttles, what it is asked for is not known:

>>> broker_level(np.array([60.0, 30.0, 5.0]), np.array([False, False, False]), bound=100.0)
100.0
>>> broker_level(np.array([60.0, 30.0, 5.0]), np.array([False, False, True]), bound=100.0)
35.0
"""

import numpy as np

from quota.arrays import Flags, Floats
from quota.errors import InvalidArgument


def broker_level(demand: Floats, saturated: Flags, bound: float) -> float:
    """The level of one entity.

    Args:
        demand: d_b, per second, float64[n], not negative; infinity is allowed.
        saturated: where it is True the demand counts as unbounded, bool[n].
        bound: T, per second, not negative.

    Returns:
        L, with T / n ≤ L ≤ T. T for no broker at all, and if all fits.

    Raises:
        InvalidArgument: a demand is negative or no number, or T is negative or not finite.
    """
    return float(broker_levels(demand[None, :], saturated[None, :], np.array([bound], np.float64))[0])


def broker_levels(demand: Floats, saturated: Flags, bound: Floats) -> Floats:
    """The levels of many entities on the same brokers.

    Args:
        demand: float64[m, n]: one row per entity, one column per broker.
        saturated: bool[m, n].
        bound: T of each entity, float64[m].

    Returns:
        L of each entity, float64[m]. Equal rows give equal levels, and the order of the brokers changes nothing.

    Raises:
        InvalidArgument: as for `broker_level`.
    """
    if not (demand >= 0).all():
        worst = demand[~(demand >= 0)][0]
        message = f"the demand on a broker is {worst}; it can be 0 or more"
        raise InvalidArgument(message)
    if not (np.isfinite(bound) & (bound >= 0)).all():
        worst = bound[~(np.isfinite(bound) & (bound >= 0))][0]
        message = f"the bound is {worst}; it can be a finite number of 0 or more"
        raise InvalidArgument(message)
    brokers = demand.shape[1]
    if brokers == 0:
        return bound.copy()
    wanted = np.sort(np.where(saturated, np.inf, demand), axis=1)
    sums = np.cumsum(wanted, axis=1)
    below = np.concatenate((np.zeros((len(bound), 1)), sums[:, :-1]), axis=1)
    shares = (bound[:, None] - below) / np.arange(brokers, 0, -1)
    return np.where(sums[:, -1] <= bound, bound, shares.max(axis=1))
