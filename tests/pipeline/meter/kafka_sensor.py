"""Kafka's `Rate` of one sensor as a broker keeps it: sample windows begin with requests, and a scrape empties old ones.

After `org.apache.kafka.common.metrics.stats.SampledStat` and `Rate` of Kafka 4.3.1.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Sample:
    start_ms: int
    last_ms: int
    value: float = 0.0


@dataclass(slots=True)
class KafkaSensor:
    """N + 1 samples in a ring; a new one begins with the first request after the current one is full."""

    num_samples: int = 11
    sample_window_ms: int = 1000
    samples: list[Sample] = field(default_factory=list)
    current: int = 0

    def record(self, value: float, now_ms: int) -> None:
        """A request was charged."""
        if not self.samples:
            self.samples.append(Sample(now_ms, now_ms))
        if now_ms - self.samples[self.current].start_ms >= self.sample_window_ms:
            self.current = (self.current + 1) % (self.num_samples + 1)
            if self.current == len(self.samples):
                self.samples.append(Sample(now_ms, now_ms))
            self.samples[self.current] = Sample(now_ms, now_ms)
        sample = self.samples[self.current]
        sample.value += value
        sample.last_ms = now_ms

    def rate(self, now_ms: int) -> float:
        """What a scrape shows, per second."""
        for at, sample in enumerate(self.samples):
            if now_ms - sample.last_ms >= self.num_samples * self.sample_window_ms:
                self.samples[at] = Sample(now_ms, now_ms)
        if not self.samples:
            return 0.0
        elapsed_ms = now_ms - min(sample.start_ms for sample in self.samples)
        missing = max(self.num_samples - 1 - elapsed_ms // self.sample_window_ms, 0)
        window_ms = max(elapsed_ms + missing * self.sample_window_ms, 1)
        return sum(sample.value for sample in self.samples) / (window_ms / 1000)
