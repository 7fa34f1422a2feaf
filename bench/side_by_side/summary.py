"""The summary of a run: medians and ranges, small enough to be kept beside the pages that are made of it.

Role: between the raw result and everything that is shown. Invariants: pages and plots are made of the
summary alone, so that a test can make them again.
"""

import statistics

DIGITS = 4


def rounded(number):
    """With so many digits that count."""
    return None if number is None else float(f"{number:.{DIGITS}g}")


def spread(values):
    """Median, least, most."""
    return [rounded(statistics.median(values)), rounded(min(values)), rounded(max(values))]


def of_measure(measure):
    rounds = measure["rounds"]
    fields = [field for field in rounds[0] if all(field in each for each in rounds)]
    told = {
        "key": measure["key"],
        "server": measure["server"],
        "what": measure["what"],
        "rounds": len(rounds),
    }
    return told | {"fields": {field: spread([each[field] for each in rounds]) for field in fields}}


def of_bar(bar):
    told = {
        name: bar[name]
        for name in ("row", "name", "against", "limit", "is_least", "unit", "lacks", "field", "is_met")
    }
    told["values"] = [rounded(value) for value in bar["values"]]
    told["ours"] = rounded(bar["ours"])
    told["theirs"] = [[key, rounded(value)] for key, value in bar["theirs"] or []]
    return told


def of_result(result):
    """Of all that a run tells."""
    tables = []
    for table in result["tables"]:
        tables.append(
            {
                "name": table["name"],
                "title": table["title"],
                "seconds": table["seconds"],
                "facts": table["facts"],
                "bars": [of_bar(bar) for bar in table["bars"]],
                "measures": [of_measure(measure) for measure in table["measures"]],
            }
        )
    return {name: result[name] for name in ("machine", "versions", "missing", "settings")} | {
        "tables": tables
    }
