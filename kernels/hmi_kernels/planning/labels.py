"""The numba bodies of the exact label program. `hmi.stages.planning.labels` has the same in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled


@compiled
def one_stream(start: Any, seconds: Any, values: Any, latest: Any, limit: Any, chosen: Any) -> Any:
    """Fill chosen int64 [groups] with the setting of each group, -1 if it is dropped.

    seconds, values, latest float64 [groups, settings], the groups in the order in which they run: a setting
    is feasible for a group that ends before `latest`, strictly. A value of -inf is not offered.
    limit: the labels that a front may have, 3 at least. Returns the total value, and a bound of the value
    that the limit has lost: 0 if no front had more labels.
    """
    groups, settings = seconds.shape
    room = limit * (settings + 1)
    times, worths = np.empty((2, room)), np.empty((2, room))
    parents, options = np.empty((2, room), np.int32), np.empty((2, room), np.int8)
    came, took = np.empty((groups, limit), np.int32), np.empty((groups, limit), np.int8)
    clock, worth = np.empty(limit), np.empty(limit)
    clock[0], worth[0], front, lost = start, 0.0, 1, 0.0
    for g in range(groups):
        now, count = 0, front
        for i in range(front):
            times[0, i], worths[0, i], parents[0, i], options[0, i] = clock[i], worth[i], i, -1
        for s in range(settings):
            if values[g, s] > 0.0 and clock[0] + seconds[g, s] < latest[g, s]:
                ends = front
                while not clock[ends - 1] + seconds[g, s] < latest[g, s]:
                    ends -= 1
                labels = times[now, :count], worths[now, :count], parents[now, :count], options[now, :count]
                out = times[1 - now], worths[1 - now], parents[1 - now], options[1 - now]
                count = _merged(labels, clock[:ends], worth[:ends], seconds[g, s], values[g, s], s, out)
                now = 1 - now
        front, step, edge = 0, 0.0, -1.0
        if count > limit:  # of the labels in each bucket of value, keep the earliest, and the last of all
            step = (worths[now, count - 1] - worths[now, 0]) / (limit - 2)
            lost += step
        for i in range(count):
            if step > 0.0 and worths[now, i] < edge and i < count - 1:
                continue
            clock[front], worth[front] = times[now, i], worths[now, i]
            came[g, front], took[g, front] = parents[now, i], options[now, i]
            front += 1
            edge = worths[now, i] + step
    at = front - 1
    total = worth[at]
    for g in range(groups - 1, -1, -1):
        chosen[g] = took[g, at]
        at = came[g, at]
    return total, lost


@compiled
def _merged(labels: Any, clock: Any, worth: Any, takes: Any, more: Any, setting: Any, out: Any) -> Any:
    """Merge a front with what a setting makes of the front before it. Returns the number of labels.

    labels, out: times, values, parents and settings. clock, worth: the front before, as far as the setting
    is feasible. Each front ascends in times and in values, so a label is dominated if its value is no higher
    than the last one's.
    """
    times, worths, parents, options = labels
    made, a, b, best = 0, 0, 0, -1.0
    while a < len(times) or b < len(clock):
        second = a == len(times)
        if not second and b < len(clock):
            ahead, own = times[a], clock[b] + takes
            second = own < ahead or (own == ahead and worth[b] + more > worths[a])
        if second:
            end, value, parent, option = clock[b] + takes, worth[b] + more, b, setting
            b += 1
        else:
            end, value, parent, option = times[a], worths[a], parents[a], options[a]
            a += 1
        if value > best:
            best = value
            out[0][made], out[1][made], out[2][made], out[3][made] = end, value, parent, option
            made += 1
    return made


@compiled
def streams(start: Any, seconds: Any, values: Any, latest: Any, limit: Any, chosen: Any) -> Any:
    """The same as `one_stream`, for several: start float64 [streams] ascending. Labels are compared in pairs.

    If a front has more than `limit` labels, the one whose streams are free soonest in the mean is kept in
    each bucket of value. The loss is bounded by the value that a removed label could still have come to.
    """
    groups, settings = seconds.shape
    lanes, room = len(start), limit * (settings * len(start) + 1)
    clocks, worth = np.empty((limit, lanes)), np.empty(limit)
    times, worths = np.empty((room, lanes)), np.empty(room)
    parents, options = np.empty(room, np.int32), np.empty(room, np.int8)
    came, took = np.empty((groups, limit), np.int32), np.empty((groups, limit), np.int8)
    clocks[0], worth[0], front, highest = start, 0.0, 1, -1.0
    for g in range(groups):
        rest = 0.0
        for h in range(g + 1, groups):
            rest += max(0.0, values[h].max())
        count = 0
        for i in range(front):
            times[count], worths[count], parents[count], options[count] = clocks[i], worth[i], i, -1
            count += 1
            for s in range(settings):
                if not values[g, s] > 0.0:
                    continue
                for lane in range(lanes):
                    end = clocks[i, lane] + seconds[g, s]
                    same = lane > 0 and clocks[i, lane] == clocks[i, lane - 1]
                    if same or not end < latest[g, s]:
                        continue
                    _moved(clocks[i], lane, end, times[count])
                    worths[count], parents[count], options[count] = worth[i] + values[g, s], i, s
                    count += 1
        order = np.argsort(-worths[:count], kind="mergesort")
        if count > 4 * limit:  # so that few pairs are compared
            highest = max(highest, _thinned(order, worths, times, 4 * limit, rest))
        kept = 0
        for place in order:
            if place >= 0 and not _matched(times, order, kept, place):
                order[kept] = place
                kept += 1
        if kept > limit:
            highest = max(highest, _thinned(order[:kept], worths, times, limit, rest))
        front = 0
        for place in order[:kept]:
            if place >= 0:
                clocks[front], worth[front] = times[place], worths[place]
                came[g, front], took[g, front] = parents[place], options[place]
                front += 1
    at, total = 0, worth[0]
    for g in range(groups - 1, -1, -1):
        chosen[g] = took[g, at]
        at = came[g, at]
    return total, max(0.0, highest - total)


@compiled
def _moved(clocks: Any, lane: Any, end: Any, out: Any) -> Any:
    """Fill out with the ascending clocks, after the one at `lane` has moved on to `end`."""
    at = 0
    for other in range(len(clocks)):
        if other != lane:
            out[at] = clocks[other]
            at += 1
    while at > 0 and out[at - 1] > end:
        out[at] = out[at - 1]
        at -= 1
    out[at] = end


@compiled
def _matched(times: Any, order: Any, kept: Any, place: Any) -> Any:
    """Return whether one of the labels order[:kept] is free no later than label `place` in all streams."""
    for k in range(kept):
        later = False
        for lane in range(times.shape[1]):
            if times[order[k], lane] > times[place, lane]:
                later = True
                break
        if not later:
            return True
    return False


@compiled
def _thinned(order: Any, worths: Any, times: Any, most: Any, rest: Any) -> Any:
    """Keep at most `most` of the labels in `order`, which descends in value; the others become -1.

    Returns the highest value that a removed label could come to with `rest`, all that follows.
    """
    highest, edge = -1.0, worths[order[0]]
    step = (edge - worths[order[-1]]) / (most - 2)
    soonest, chosen = np.inf, 0
    for i in range(1, len(order)):  # the first is kept apart from all buckets
        total = times[order[i]].sum()
        if i == 1 or worths[order[i]] < edge - step:
            edge, soonest, chosen = worths[order[i]], total, i
            continue
        gone = i
        if total < soonest:
            soonest, gone, chosen = total, chosen, i
        highest = max(highest, worths[order[gone]] + rest)
        order[gone] = -1
    return highest
