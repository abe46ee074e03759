"""The text of /metrics, read back: values, their rates between two scrapes, quantiles of histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from hmi.metrics.reading import quantile

Labels = Mapping[str, str]
_LATEST = ("hmi_scrape_timestamp_seconds", "process_start_time_seconds", "hmi_queue_oldest_seconds")
"""Metrics of which a sum over servers says nothing."""


@dataclass(frozen=True)
class Scrape:
    """The samples of one scrape, by name."""

    samples: Mapping[str, Sequence[tuple[Labels, float]]]

    @classmethod
    def parse(cls, text: str) -> Scrape:
        """Parse Prometheus' text format. Raises ValueError if it is none."""
        found: dict[str, list[tuple[Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return cls(found)

    @classmethod
    def of_all(cls, scrapes: Sequence[Scrape]) -> Scrape:
        """The samples of several servers as if they were one's: a sum is that of all, a time the latest."""
        together: dict[str, list[tuple[Labels, float]]] = {}
        for scrape in scrapes:
            for name, found in scrape.samples.items():
                together.setdefault(name, []).extend(found)
        latest = {name: [max(together[name], key=lambda one: one[1])] for name in _LATEST if name in together}
        return cls({**together, **latest})

    @property
    def at(self) -> float:
        """When the server read these values, in Unix time by its clock; 0 if it does not say."""
        return self.value("hmi_scrape_timestamp_seconds") or 0.0

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples with these labels, or None if there is none."""
        found = [v for given, v in self.samples.get(name, ()) if labels.items() <= given.items()]
        return sum(found) if found else None

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The sums of the samples with these labels, by the value of `label`."""
        found: dict[str, float] = {}
        for given, value in self.samples.get(name, ()):
            if label in given and labels.items() <= given.items():
                found[given[label]] = found.get(given[label], 0.0) + value
        return found

    def only(self, name: str, label: str, beginning: str) -> Scrape:
        """The samples of the family `name` whose `label` has this beginning, and no others."""
        return Scrape(
            {
                sample: [(given, v) for given, v in found if given.get(label, "").startswith(beginning)]
                for sample, found in self.samples.items()
                if sample.startswith(name)
            }
        )


@dataclass(frozen=True)
class Between:
    """The changes of the metrics between two scrapes of one server process."""

    before: Scrape
    after: Scrape
    seconds: float

    def rate(self, name: str, **labels: str) -> float | None:
        """The growth of a counter in a second; None without the counter."""
        after = self.after.value(name, **labels)
        return None if after is None else self._grown(after, self.before.value(name, **labels))

    def rates(self, name: str, label: str, *, others: str = "") -> dict[str, float]:
        """The growths of a counter in a second, by the value of `label`.

        `others` is the value that stands for all that the server does not tell apart. If the earlier scrape
        has it, those that it lacks are left out: what they were then is not known.
        """
        before, after = self.before.by(name, label), self.after.by(name, label)
        return {
            key: self._grown(value, before.get(key))
            for key, value in after.items()
            if key in before or others not in before
        }

    def mean(self, name: str) -> float | None:
        """The mean of what a histogram observed; None if that is nothing."""
        count, total = self.rate(f"{name}_count"), self.rate(f"{name}_sum")
        return total / count if count and total is not None else None

    def quantile(self, q: float, name: str, **labels: str) -> float | None:
        """The q-quantile of what a histogram observed; None if nothing was observed."""
        before = self.before.by(f"{name}_bucket", "le", **labels)
        after = self.after.by(f"{name}_bucket", "le", **labels)
        return quantile(sorted((float(le), count - before.get(le, 0.0)) for le, count in after.items()), q)

    def _grown(self, after: float, before: float | None) -> float:
        # A deleted tenant leaves the sums, so a counter may also shrink.
        return max(0.0, after - (before or 0.0)) / self.seconds


def between(before: Scrape, after: Scrape) -> Between | None:
    """The time between two scrapes; None if there is none, or the server was restarted meanwhile."""
    started = "process_start_time_seconds"
    if after.at <= before.at or before.value(started) != after.value(started):
        return None
    return Between(before, after, after.at - before.at)
