"""What a run brings: tables of measures, with all their rounds, and the bars that are judged by them.

Role: between the rows and the report; plain data, that becomes JSON. Invariants: a ratio is made within
its round and never of medians; a bar whose peers were not there is not judged.
"""

import statistics


class Measure:
    """One setting of one server, once in every round."""

    def __init__(self, key, server, what):
        self.key, self.server, self.what, self.rounds = key, server, what, []

    def plain(self):
        return {"key": self.key, "server": self.server, "what": self.what, "rounds": self.rounds}


class Bar:
    """What was wished: a figure of every round, and the limit for its median."""

    def __init__(self, row, name, against, limit, is_least, unit=""):
        self.row, self.name, self.against = row, name, against
        self.limit, self.is_least, self.unit = limit, is_least, unit
        self.values, self.lacks, self.field, self.ours, self.theirs = [], None, None, None, None

    def meets(self, value):
        return value >= self.limit if self.is_least else value <= self.limit

    def plain(self):
        told = {
            "row": self.row,
            "name": self.name,
            "against": self.against,
            "limit": self.limit,
            "is_least": self.is_least,
            "unit": self.unit,
            "values": self.values,
            "lacks": self.lacks,
            "field": self.field,
            "ours": self.ours,
            "theirs": self.theirs,
            "median": None,
            "is_met": None,
        }
        if self.values:
            told["median"] = statistics.median(self.values)
            told["is_met"] = self.meets(told["median"])
        return told


class Table:
    """Measures that were taken together, in alternating rounds."""

    def __init__(self, name, title, seconds):
        self.name, self.title, self.seconds = name, title, seconds
        self.measures, self.bars, self.facts = {}, [], []

    def plain(self):
        return {
            "name": self.name,
            "title": self.title,
            "seconds": self.seconds,
            "facts": self.facts,
            "measures": [measure.plain() for measure in self.measures.values()],
            "bars": [bar.plain() for bar in self.bars],
        }

    def take(self, key, server, what, sample):
        """Adds a sample that stands in no turn with others."""
        self.measures.setdefault(key, Measure(key, server, what)).rounds.append(sample)

    def alternate(self, rounds, steps, is_turned=True):
        """Takes every step once in each round, each round beginning with another one if it is turned.

        A step is: key, server, what, and a function that gives a sample.
        """
        for key, server, what, _ in steps:
            self.measures[key] = Measure(key, server, what)
        for number in range(rounds):
            first = number % len(steps) if steps and is_turned else 0
            for key, _, _, sample in steps[first:] + steps[:first]:
                self.measures[key].rounds.append(sample())

    def judge(self, bar, figure, needs, shows=None):
        """Adds a bar: `figure` makes a number of the samples of one round, named by the keys in `needs`.

        `shows` says how the medians beside the ratio are made: field, key of ours, keys of theirs.
        """
        lacking = [key for key in needs if key not in self.measures]
        if lacking:
            bar.lacks = ", ".join(lacking)
        else:
            columns = [self.measures[key].rounds for key in needs]
            bar.values = [figure(**dict(zip(needs, row))) for row in zip(*columns, strict=True)]
            if shows:
                field, ours, theirs = shows
                bar.ours = median(self.measures[ours], field)
                bar.theirs = [[key, median(self.measures[key], field)] for key in theirs]
                bar.field = field
        self.bars.append(bar)
        return bar


def median(measure, field):
    values = [each[field] for each in measure.rounds if field in each]
    return statistics.median(values) if len(values) == len(measure.rounds) and values else None
