"""The search for stock at its best."""

import itertools

from speed.search import (
    AGAIN,
    LAST,
    START,
    USUAL,
    is_unfinished,
    near_misses,
    search_switches,
    tried,
    untried,
    what_is_left,
)


START_SWITCHES = {"precision": "fp32", "attn": "sdpa", "compile": False}
CHOICES = {"precision": ("fp32", "bf16"), "attn": ("sdpa", "eager"), "compile": (False, True)}


def rates(**factors: float):
    """10 a second times a factor for each switch that is turned."""

    def measure(switches):
        rate = 10.0
        for name, factor in factors.items():
            rate *= factor if switches[name] != START_SWITCHES[name] else 1.0
        return rate, None

    return measure


def steps_of(result):
    return [(item.switch, item.kept) for item in result.tries]


def test_it_keeps_what_is_faster_and_goes_on_from_there():
    result = search_switches(START_SWITCHES, CHOICES, rates(precision=3.0, attn=0.6, compile=1.5))
    assert result.best == {"precision": "bf16", "attn": "sdpa", "compile": True}
    assert result.rate == 45.0
    first_round = [(START, True), ("precision", True), ("attn", False), ("compile", True)]
    assert steps_of(result) == [*first_round, (LAST, True), (LAST, False)]
    assert not is_unfinished(result.as_json())
    assert what_is_left(result.as_json()) == []


def test_a_combination_that_fails_is_a_try_with_its_error():
    def measure(switches):
        return (None, "exit code 1: no compiler") if switches["compile"] else (10.0, None)

    result = search_switches(START_SWITCHES, CHOICES, measure)
    assert result.best == START_SWITCHES
    failed = next(item for item in result.tries if item.switch == "compile")
    assert (failed.rate, failed.kept, failed.problem) == (None, False, "exit code 1: no compiler")
    assert not untried(result.as_json())


def test_a_failing_start_does_not_end_the_search():
    def measure(switches):
        return (5.0, None) if switches["precision"] == "bf16" else (None, "out of memory")

    result = search_switches(START_SWITCHES, CHOICES, measure)
    assert (result.best["precision"], result.rate) == ("bf16", 5.0)


def test_what_there_is_no_time_for_is_recorded_and_told():
    calls = []

    def measure(switches):
        calls.append(dict(switches))
        return 10.0, None

    def why_not(switch, switches):
        return "5 s left" if switch in ("compile", AGAIN, LAST, "attn") and len(calls) > 1 else None

    result = search_switches(START_SWITCHES, CHOICES, measure, why_not).as_json()
    assert not any(switches["compile"] for switches in calls)
    assert untried(result) == {"attn": ["eager"], "compile": [True]}
    assert is_unfinished(result)
    told = what_is_left(result)
    assert told == [
        "not tried: attn eager, compile True",
        "not repeated: the best, the last comparison",
    ]
    assert all(item["problem"] is None for item in tried(result))


def test_the_usual_switches_are_tried_together_and_can_be_turned_back():
    """Alone each is slower, together they are faster; one of them still is not worth it."""

    def measure(switches):
        is_usual = switches["precision"] == "bf16" and switches["attn"] == "eager"
        rate = 30.0 if is_usual else 10.0 - (switches["precision"] == "bf16") - (switches["attn"] == "eager")
        return rate * (1.5 if not switches["compile"] else 1.0), None

    usual = {"precision": "bf16", "attn": "eager", "compile": True}
    result = search_switches(START_SWITCHES, CHOICES, measure, usual=usual)
    assert result.best == {"precision": "bf16", "attn": "eager", "compile": False}
    assert [(item.switch, item.value, item.kept) for item in result.tries[1:5]] == [
        (USUAL, usual, True),
        ("precision", "fp32", False),
        ("attn", "sdpa", False),
        ("compile", False, True),
    ]
    # The usual value that lost is tried once more.
    assert ("compile", True, False) in [(item.switch, item.value, item.kept) for item in result.tries[5:]]


def unlucky(factors, bad):
    """The rates of `factors`, a third of it in the tries with these numbers."""
    numbers = itertools.count()
    true = rates(**factors)
    return lambda switches: (true(switches)[0] * (1 / 3 if next(numbers) in bad else 1.0), None)


def test_one_unlucky_try_does_not_decide_about_a_usual_switch():
    """bfloat16 is twice as fast; the machine was busy when it was first tried, and it seemed slower than fp32."""
    usual = {"precision": "bf16"}
    result = search_switches(START_SWITCHES, CHOICES, unlucky({"precision": 2.0, "attn": 0.5}, bad={1}), usual=usual)
    assert [item.kept for item in result.tries if item.switch == USUAL] == [False]
    assert result.best == {"precision": "bf16", "attn": "sdpa", "compile": False}


def test_what_lost_narrowly_is_tried_again():
    usual = {"precision": "bf16"}
    choices = {"attn": ("sdpa", "eager")}
    numbers = itertools.count()

    def measure(switches):
        """Eager is a tenth faster; its first try has a tenth less than sdpa."""
        rate = 10.0 * (2.0 if switches["precision"] == "bf16" else 1.0) * (1.1 if switches["attn"] == "eager" else 1.0)
        return rate * (0.8 if next(numbers) == 2 else 1.0), None

    result = search_switches(START_SWITCHES, choices, measure, usual=usual)
    tries = [item.kept for item in result.tries if item.switch == "attn"]
    assert len(tries) == 2
    assert result.best == {"precision": "bf16", "attn": "eager", "compile": False}


def test_one_lucky_try_does_not_win():
    """compile is as fast as nothing; its first try was three times as fast."""
    numbers = itertools.count()

    def measure(switches):
        number = next(numbers)
        return (30.0 if switches["compile"] and number == 1 else 9.0 if switches["compile"] else 20.0), None

    result = search_switches(START_SWITCHES, {"compile": (False, True)}, measure)
    assert next(item.kept for item in result.tries if item.switch == "compile")
    assert [item.switch for item in result.tries].count(LAST) == 2
    assert result.best["compile"] is False


def test_values_that_lost_are_near_or_far():
    tries = [
        {"switch": START, "value": START_SWITCHES, "rate": 10.0, "kept": True},
        {"switch": "precision", "value": "bf16", "rate": 12.0, "kept": True},  # fp32 lost narrowly
        {"switch": "attn", "value": "eager", "rate": 8.0, "kept": False},  # by a third
        {"switch": "compile", "value": True, "rate": 11.0, "kept": False},
        {"switch": "optim", "value": "other", "rate": None, "kept": False},
    ]
    best = START_SWITCHES | {"precision": "bf16"}
    assert near_misses(tries, best, {}) == [("compile", True), ("precision", "fp32")]
    assert near_misses(tries, best, {"attn": "eager"})[0] == ("attn", "eager")


def test_a_search_goes_on_with_what_an_earlier_one_left_out():
    """It tries that alone, and what the earlier one rejected narrowly."""
    late = {"compile", AGAIN, LAST}
    first = search_switches(
        START_SWITCHES,
        CHOICES,
        rates(attn=0.9, compile=2.0),
        lambda switch, switches: "no time" if switch in late else None,
    ).as_json()
    assert untried(first) == {"compile": [True]}
    left = {name: [first["best"][name], *values] for name, values in untried(first).items()}
    second = search_switches(
        first["best"], left, rates(attn=0.9, compile=2.0), usual={"precision": "bf16"}, earlier=tried(first)
    )
    assert second.best["compile"] is True
    assert [item.switch for item in second.tries][:2] == [START, "compile"]
    # attn reached 0.9 of the best in the earlier search, precision is usual and was rejected.
    assert {item.switch for item in second.tries[2:]} == {AGAIN, LAST, "attn", "precision"}
    whole = {**second.as_json(), "tries": [*tried(first), *second.as_json()["tries"]]}
    assert not is_unfinished(whole)


def test_a_search_that_repeated_nothing_says_so():
    """Those of older results files."""
    tries = [{"switch": START, "value": START_SWITCHES, "rate": 10.0, "kept": True, "problem": None}]
    assert is_unfinished({"best": START_SWITCHES, "tries": tries})
    assert what_is_left({"best": START_SWITCHES, "tries": tries}) == ["decided by one short try each"]
