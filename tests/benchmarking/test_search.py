"""The search for stock at its best."""

from bert_recipes.benchmarking.search import START, USUAL, search_switches, untried


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


def test_it_keeps_what_is_faster_and_goes_on_from_there():
    result = search_switches(START_SWITCHES, CHOICES, rates(precision=3.0, attn=0.9, compile=1.5))
    assert result.best == {"precision": "bf16", "attn": "sdpa", "compile": True}
    assert result.rate == 45.0
    assert [(item.switch, item.kept) for item in result.tries] == [
        (START, True),
        ("precision", True),
        ("attn", False),
        ("compile", True),
    ]


def test_a_combination_that_fails_is_a_try_with_its_error():
    def measure(switches):
        return (None, "exit code 1: no compiler") if switches["compile"] else (10.0, None)

    result = search_switches(START_SWITCHES, CHOICES, measure)
    assert result.best == START_SWITCHES
    failed = result.tries[-1]
    assert (failed.switch, failed.rate, failed.kept, failed.problem) == (
        "compile",
        None,
        False,
        "exit code 1: no compiler",
    )


def test_a_failing_start_does_not_end_the_search():
    def measure(switches):
        return (5.0, None) if switches["precision"] == "bf16" else (None, "out of memory")

    result = search_switches(START_SWITCHES, CHOICES, measure)
    assert (result.best["precision"], result.rate) == ("bf16", 5.0)


def test_what_there_is_no_time_for_is_recorded_as_not_tried():
    calls = []

    def measure(switches):
        calls.append(dict(switches))
        return 10.0, None

    def why_not(switch):
        return "5 s left" if switch == "compile" else None

    result = search_switches(START_SWITCHES, CHOICES, measure, why_not)
    assert not any(switches["compile"] for switches in calls)
    assert result.tries[-1].problem == "not tried: 5 s left"
    assert untried(result.as_json()) == {"compile": [True]}


def test_the_usual_switches_are_tried_together_and_can_be_turned_back():
    """Alone each is slower, together they are faster; one of them still is not worth it."""

    def measure(switches):
        is_usual = switches["precision"] == "bf16" and switches["attn"] == "eager"
        rate = 30.0 if is_usual else 10.0 - (switches["precision"] == "bf16") - (switches["attn"] == "eager")
        return rate * (1.5 if not switches["compile"] else 1.0), None

    usual = {"precision": "bf16", "attn": "eager", "compile": True}
    result = search_switches(START_SWITCHES, CHOICES, measure, usual=usual)
    assert result.best == {"precision": "bf16", "attn": "eager", "compile": False}
    assert [(item.switch, item.value, item.kept) for item in result.tries[1:]] == [
        (USUAL, usual, True),
        ("precision", "fp32", False),
        ("attn", "sdpa", False),
        ("compile", False, True),
    ]
